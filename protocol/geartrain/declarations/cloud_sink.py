"""Sinks in the cloud beside the flow's own tables: another database, files, lines, a topic, an address.

Last on a record's path; `geartrain_cloud.sinks` writes them, and says which are exactly once and which at
least once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from geartrain.declarations.options import FilePath, Positive, SecretOrText
from geartrain.declarations.sink import Sink


@dataclass(frozen=True)
class PostgresTable(Sink):
    """A table in a PostgreSQL database: exactly once.

    Args:
        name: what the table is called.
        key: fields that name a row, as for every sink.
        dsn: where the database is, as libpq has it: `host=db.example dbname=plant user=geartrain`, or a
            `postgresql://` address. Empty means the PG… variables of the environment. A password does not
            belong here: write `password=secret:NAME`, or it comes from PGPASSWORD or ~/.pgpass.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    dsn: str = ""


@dataclass(frozen=True)
class ParquetTable(Sink):
    """A folder of Parquet files: exactly once, rows are only added.

    Args:
        name: what the folder is called, `NAME.parquet`.
        key: must be empty: rows are not replaced.
        folder: where the folder is made; empty for the folder of the flow's own tables.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    folder: FilePath = ""


@dataclass(frozen=True)
class DeltaTable(Sink):
    """A Delta table in a folder: exactly once, rows are only added.

    Args:
        name: what the folder is called, `NAME.delta`.
        key: must be empty: rows are not replaced.
        folder: where the folder is made; empty for the folder of the flow's own tables.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    folder: FilePath = ""


@dataclass(frozen=True)
class ConsoleSink(Sink):
    """Lines of JSON on the driver's standard output, for looking on: at least once.

    Args:
        name: what the lines begin with.
        key: not used.
        rows_max: how many rows of a micro-batch are printed; the others are counted.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    rows_max: int = 20


@dataclass(frozen=True)
class MqttSink(Sink):
    """Messages of JSON to a topic: at least once, each with its record's `_id`, which is equal in a
    repetition.

    Args:
        name: what the sink is called.
        key: not used.
        topic: where to publish; the value of a field takes the place of `{field}`.
        host: of the broker.
        port: of the broker.
        tls: whether the connection is encrypted.
        ca: the file of the certificate authority, from the folder of the driver's file; empty for the
            system's.
        certificate: the file of the client's certificate.
        private_key: the file of its key. An agent's table `[broker]` calls it `key`.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    topic: str = ""
    host: str = "127.0.0.1"
    port: int = 1883
    tls: bool = False
    ca: FilePath = ""
    certificate: FilePath = ""
    private_key: FilePath = ""


@dataclass(frozen=True)
class KafkaSink(Sink):
    """Messages of JSON to a topic of Kafka: exactly once for consumers that read committed messages.

    Args:
        name: what the sink is called.
        key: fields that make the key of a message, by which Kafka chooses its partition; without them the
            partition is any.
        brokers: where the cluster is, such as `kafka-1:9092,kafka-2:9092`.
        topic: where the messages go.
        marks: the topic that keeps how far each query is; it is made, compacted, if there is none.
        properties: properties of librdkafka, such as `security.protocol`; a password is `secret:NAME`.
        properties_file: a file of lines `NAME=VALUE` that stand above these: the place for passwords.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    brokers: str = ""
    topic: str = ""
    marks: str = "geartrain-marks"
    properties: dict[str, str] = field(default_factory=dict)
    properties_file: FilePath = ""


@dataclass(frozen=True)
class WebhookSink(Sink):
    """Records of JSON to an HTTP address: at least once, each request with a key that is equal in a
    repetition.

    Args:
        name: what the sink is called.
        key: not used.
        url: where to POST, such as `https://hooks.example/alerts`; one that is a secret is `secret:NAME`. A
            redirection is not followed.
        rows_max: how many records a request carries at the most. With 1, its body is the record; with more,
            it is a list.
        timeout_s: how long a request may take, seconds.
        headers: headers of each request; the value of one that is a secret is `secret:NAME`.
        headers_file: a file of lines `NAME: VALUE` that stand above these, which only its owner may read: the
            place for tokens.
        ca: the file of the certificate authority; empty for the system's.
        certificate: the file of the client's certificate.
        private_key: the file of its key.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    url: SecretOrText = ""
    rows_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    timeout_s: Positive = 10.0
    headers: dict[str, str] = field(default_factory=dict)
    headers_file: FilePath = ""
    ca: FilePath = ""
    certificate: FilePath = ""
    private_key: FilePath = ""
