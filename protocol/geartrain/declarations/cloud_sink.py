"""Sinks in the cloud beside the flow's own tables: another database, files, lines to look at, a topic.

Last on a record's path; `geartrain_cloud.sinks` writes them, and says which are exactly once and which at
least once.
"""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.declarations.sink import Sink


@dataclass(frozen=True)
class PostgresTable(Sink):
    """A table in a PostgreSQL database: exactly once.

    dsn: where the database is, as libpq has it (`host=db.example dbname=plant user=geartrain`, a
    `postgresql://` address, or empty for the PG… variables of the environment). A password does not belong
    there: it comes from PGPASSWORD or ~/.pgpass.
    """

    dsn: str = ""


@dataclass(frozen=True)
class ParquetTable(Sink):
    """A folder of Parquet files beside the flow's own tables: exactly once, rows are only added.

    folder: where the folder is made; empty for the folder of the flow's own tables.
    """

    folder: str = ""


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """Lines of JSON on the driver's standard output: at least once, for looking on.

    rows_max: of one micro-batch, at the most; the others are counted.
    """

    rows_max: int = 20


@dataclass(frozen=True)
class MqttSink(Sink):
    """Messages of JSON to a topic: at least once, each with its record's `_id`, by which to know it again.

    topic: a field's value takes the place of `{field}`; host, port: of the broker; tls, ca, certificate,
    private_key: how it is reached, as the table `[broker]` of an agent's file has it, where the last is
    called key; paths are taken from the driver's working directory.
    """

    topic: str = ""
    host: str = "127.0.0.1"
    port: int = 1883
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    private_key: str = ""
