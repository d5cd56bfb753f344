"""Sinks as declared in a flow: where the records of a stream come to rest.

Last on a record's path. The cloud writes them (`geartrain_cloud.sinks`); `gear run` keeps the records of
every sink in a table of its name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import msgspec

from geartrain.errors import ConfigError, FlowError


@dataclass(frozen=True)
class Sink:
    """A place named `name` for the records of one stream.

    key: fields that name a row; a row is then replaced only by a canonically later record of the same key.
    Without, every record is a row of its own.
    """

    name: str
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_") or not self.name.isascii():
            raise FlowError(
                f"table name {self.name!r}: use letters, digits and _, not starting with a digit or _"
            )

    def with_options(self, values: dict[str, Any], where: str) -> Self:
        """A copy with other options than name and key; raises `ConfigError`."""
        known = {
            f.name: f.type if isinstance(f.type, str) else f.type.__name__
            for f in fields(self)
            if f.name not in ("name", "key")
        }
        for option, value in values.items():
            if option not in known:
                listed = ", ".join(known) or "none"
                raise ConfigError(f"{where}: there is no option {option!r}; options of the sink: {listed}")
            kind = {"int": int, "str": str, "float": float, "bool": bool}.get(known[option])
            if kind is None:
                raise ConfigError(f"{where}: option {option!r} can be set only where the flow is written")
            try:
                values = values | {option: msgspec.convert(value, kind, strict=False)}
            except msgspec.ValidationError as error:
                raise ConfigError(f"{where}.{option} = {value!r}: {error}") from None
        return replace(self, **values)


@dataclass(frozen=True)
class Table(Sink):
    """A table of the flow's own SQLite file, whose columns are the record's fields: exactly once."""


@dataclass(frozen=True)
class DeviceSink(Sink):
    """Base of the sinks on a device (`geartrain.device_sink`). In `gear run` it is a table."""


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
