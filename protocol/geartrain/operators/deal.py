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

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from geartrain.graph.conform import one_by_one
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch
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
