"""What the host knows of a flow without its code: made once by `prepare`, kept beside the pickled query.

Between the process that prepares a flow and the host, which opens its tables by it. Guarantees: it names
every sink with its schema, so no user code is needed to write a row.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.files import write_durable
from geartrain.declarations.cloud_sink import (
    ConsoleSink,
    DeltaTable,
    KafkaSink,
    MqttSink,
    ParquetTable,
    PostgresTable,
    WebhookSink,
)
from geartrain.declarations.sink import Sink, Table
from geartrain.graph.graph import GIVEN
from geartrain.schema import Schema
from geartrain_cloud.hosting.errors import HostError, PreparationError
from geartrain_cloud.sinks.opening import SinkPlace

_KINDS: dict[str, type[Sink]] = {
    kind.__name__: kind
    for kind in (
        Table,
        PostgresTable,
        ParquetTable,
        DeltaTable,
        ConsoleSink,
        MqttSink,
        KafkaSink,
        WebhookSink,
    )
}


class SinkSaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sink: the id of its step, its kind with its options, its schema as text, and the defaults of fields
    for rows that are older than they, each packed.
    """

    id: str
    kind: str
    options: dict[str, Any]
    schema: str
    defaults: dict[str, bytes] = {}

    @staticmethod
    def of(place: SinkPlace) -> SinkSaid:
        """Raises `PreparationError` for a sink that a host does not write."""
        kind = type(place.sink).__name__
        if _KINDS.get(kind) is not type(place.sink):
            raise PreparationError(
                f"sink {place.id!r} is a {kind}, which a host of flows does not write: end the stream in a "
                "sink that comes with Geartrain"
            )
        options = {one.name: getattr(place.sink, one.name) for one in fields(place.sink)}
        defaults = {name: msgspec.msgpack.encode(value) for name, value in place.defaults.items()}
        return SinkSaid(place.id, kind, options, place.schema.to_json(noted=True), defaults)

    def place(self) -> SinkPlace:
        """The sink again."""
        options = self.options | {"key": tuple(self.options.get("key", ()))}
        defaults = {name: msgspec.msgpack.decode(packed) for name, packed in self.defaults.items()}
        return SinkPlace(self.id, _KINDS[self.kind](**options), Schema.from_json(self.schema), defaults)


class DownSaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream that goes down: the id of the step that deals it, its schema as text, and whether a step on
    the device waits for its time.
    """

    id: str
    schema: str
    is_timed: bool


class PastSaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How steps that are new in a revision read the log of before. begin: `earliest`, or the event time in
    microseconds; sources: those above them, whose clock says where that is; takes: those of them that keep
    state; plan: the hash of their query, together with the steps above them, and what it reads; above_plan:
    the same of the steps above them alone, "" where these keep nothing.
    """

    begin: str
    sources: tuple[str, ...]
    takes: tuple[str, ...]
    plan: str
    channels: tuple[str, ...]
    above_plan: str = ""
    above_channels: tuple[str, ...] = ()


class Prepared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """plan: the hash of the pickled query; code: by top-level name, the hash of the user's files; stages:
    those behind a shuffle; channels: what it reads; sources: the flow's; sinks: what the cloud writes; down:
    what goes to devices; states: of each step that keeps state, the stage in which it stands; merges: the
    aggregates among them that merge what devices gather; forms: by task, what stands for the layout of what
    it keeps; migrates: the tasks that name former types of their state;
    past: how new steps read the log of before, None where they do not; program: which one has made all this.
    """

    plan: str
    code: dict[str, str]
    stages: int
    channels: tuple[str, ...]
    sources: tuple[str, ...]
    sinks: tuple[SinkSaid, ...]
    down: tuple[DownSaid, ...] = ()
    states: dict[str, int] = {}
    merges: tuple[str, ...] = ()
    forms: dict[str, str] = {}
    migrates: tuple[str, ...] = ()
    past: PastSaid | None = None
    program: str = ""

    @property
    def dealt(self) -> tuple[DownSaid, ...]:
        """What goes to devices of the flow's own, without the state that they claim."""
        return tuple(one for one in self.down if one.id != GIVEN)


def put_prepared(plans: Path, prepared: Prepared) -> None:
    """Keep it durably beside its plan; raises `OSError`."""
    write_durable(prepared_path(plans, prepared.plan, prepared.code), msgspec.json.encode(prepared))


def read_prepared(plans: Path, plan: str, code: dict[str, str]) -> Prepared:
    """What was kept; raises `HostError`."""
    path = prepared_path(plans, plan, code)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Prepared)
    except (OSError, msgspec.DecodeError) as error:
        raise HostError(f"{path} cannot be read ({error}): bring it back from a copy") from None


def prepared_path(plans: Path, plan: str, code: dict[str, str]) -> Path:
    """Where it lies: equal queries may be run by different code."""
    mixed = "".join(one[:8] for _, one in sorted(code.items()))[:64]
    return plans / f"{plan}.{mixed}.json"
