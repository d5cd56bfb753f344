"""deal: give each record of a stream to the one device that it names; the stream goes down to the devices
behind it.

The planner puts it, in the cloud, before a step that is pinned to devices by `.at("edge", device=...)`: its
output is a down channel. It changes nothing of a record, so that a run in one process, where there is only
one place, gives the same.

>>> from geartrain import Flow, Record, by_key
>>> from geartrain.sinks import JsonLinesFile
>>> from geartrain.testing import TestingSource, run_flow
>>> class Level(Record):
...     tank: str
...     metres: float
>>> flow = Flow("tanks")
>>> items = [(1, Level("tank-1", 7.5)), (2, Level("tank-2", 3.0)), (3, Level("no tank", 9.0))]
>>> levels = flow.source("levels", TestingSource(items=items), out=Level)
>>> high = levels.filter(lambda level: level.metres > 5, name="high").at("cloud")
>>> high.key_by("tank").log("seen").at("edge", device=by_key).sink("valve", JsonLinesFile("valve"))
>>> found = run_flow(flow)
>>> found.tables["valve"]
[(1, Level(tank='tank-1', metres=7.5))]
>>> found.dead_letters[0].step
'seen_down'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec
from msgspec.structs import replace

from geartrain.graph.conform import dead_letter, one_by_one
from geartrain.graph.graph import Graph, Step
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch
from geartrain.records.codes import Code
from geartrain.wire.topics import check_name


class ByKey(msgspec.Struct, frozen=True):
    """Each record goes to the device that its key names."""

    def __repr__(self) -> str:
        return "by_key"


by_key: Final = ByKey()
"""For `.at("edge", device=by_key)`: the key of a keyed stream is the name of the device."""

Device = ByKey | str | Callable[[Any], str]
"""How a user says which device gets a record: by its key, by a field, or by a function of it."""


class Deal(Plain, frozen=True):
    """Deal each record to the device that `function` names.

    field: the field of which that is the value, None where it is no field; local: the stream is keyed, and
    all records of a key go to one device.
    """

    function: Callable[[Any], Any]
    field: str | None = None
    local: bool = False
    kind = "deal"
    keeps_key: ClassVar[bool] = True
    only_tier: ClassVar[Literal["edge", "cloud"] | None] = "cloud"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """A device has all records with one value of `field`; they come from many splits, in no order."""
        return StreamProperties(
            self.field, False, key_local=self.local, timely=inputs[0].timely, from_cloud=True
        )

    def device_of(self, value: Any) -> str:
        """The name of the device; raises whatever the user's function does, `TypeError` for what is no text,
        and `WireError` for one that cannot name a device.
        """
        name = self.function(value)
        if type(name) is not str:
            raise TypeError(f"a device's name is a str, not {type(name).__name__}")
        return check_name("device", name)

    def open(self, services: Services) -> Transform:
        """The batch as it is; a record that names no device is a dead letter."""
        device_of = self.device_of

        def run(batch: Batch) -> Batch:
            return one_by_one(device_of, batch, services)[0]

        return run


class DealAmong(Deal, frozen=True):
    """The same among the devices that there are; devices: their names."""

    devices: frozenset[str] = frozenset()

    def open(self, services: Services) -> Transform:
        """The batch without the records for other devices, which are dead letters."""
        device_of, devices = self.device_of, self.devices

        def run(batch: Batch) -> Batch:
            batch, names = one_by_one(device_of, batch, services)
            for row, name in enumerate(names):
                if name not in devices:
                    services.reject(dead_letter(services, batch, row, Code.NO_DEVICE, no_device(name)))
            return batch.take([row for row, name in enumerate(names) if name in devices])

        return run


def no_device(device: str) -> str:
    """Why a record goes to no device: a sentence."""
    return f"no device {device!r} is assigned to the flow: mend what device= says, or assign it"


def deal_among(graph: Graph, devices: Iterable[str]) -> Graph:
    """The graph whose records are dealt to these devices alone."""
    names = frozenset(devices)

    def among(step: Step) -> Step:
        deal = step.operator
        if not isinstance(deal, Deal):
            return step
        return replace(step, operator=DealAmong(deal.function, deal.field, deal.local, names))

    return replace(graph, steps=tuple(among(step) for step in graph.steps))
