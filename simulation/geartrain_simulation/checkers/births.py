"""Whether each live reading has the time at which it was born, whenever its device was told the time.

One of the checkers of the end. Guarantees: a reading that a spool has kept until its time was known is in the
log, with its time, in its order, and marked. Anything else is a breach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from geartrain.graph.graph import LATE
from geartrain.ports import SpoolCommit
from geartrain.records.batch import origin_name
from geartrain_edge.sources.untimed import MARK_BOUND, MARK_EXACT, UNTIMED, HeldRead
from geartrain_simulation.machine.clock import WALL_START_US
from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.stores.segments import LoggedRow

DRIFT_US = 300_000
"""What a clock may have gained in a run, and a read may take."""
_EPOCH_BYTES = 8
_held = msgspec.msgpack.Decoder(HeldRead[Any]).decode
_entry = msgspec.msgpack.Decoder(tuple[str, str, bytes, int, bool, bytes]).decode


class Birth(Protocol):
    """When and how a reading was born; see `geartrain_simulation.fleet.readings`."""

    @property
    def true_us(self) -> int: ...  # noqa: D102
    @property
    def off_us(self) -> int: ...  # noqa: D102
    @property
    def boot(self) -> int: ...  # noqa: D102
    @property
    def is_known(self) -> bool: ...  # noqa: D102


class Births:
    """The readings that spools have kept without a time, by device."""

    def __init__(self, breach: Breach) -> None:
        self._breach = breach
        self._kept: dict[str, set[int]] = {}

    def committed(self, device: str, change: SpoolCommit) -> None:
        """Note the readings that a commit keeps until their time is known."""
        for (step, key), value in change.state.items():
            if step == UNTIMED and key != b"offsets" and value is not None:
                numbers = _held(_entry(value)[5]).numbers
                self._kept.setdefault(device, set()).update(numbers)

    def check(
        self,
        device: str,
        births: Mapping[int, Birth],
        rows: Sequence[tuple[str, LoggedRow]],
        *,
        loses: bool,
        jumps: bool,
    ) -> None:
        """Compare what the log holds of a sensor, by channel, with how its readings were born.

        loses: whether its spool has dropped or lost rows; jumps: whether its clock was set more than once.
        """
        ours = [(c, logged.row) for c, logged in rows if logged.row.name == origin_name("beats", device)]
        lost = self._kept.get(device, set()) - {row.number for _, row in ours}
        if lost and not loses:
            self._breach("kept until timed", f"{device}: {len(lost)} readings lost, first {min(lost)}")
        last_us, last = -(2**63), 0
        for channel, row in sorted(ours, key=lambda one: one[1].number):
            if row.number not in births:
                self._breach("exactly once", f"{device}: reading {row.number} of {channel} was never born")
            birth, mark = births[row.number], row.path[_EPOCH_BYTES : _EPOCH_BYTES + 1]
            is_marked = mark in (MARK_EXACT, MARK_BOUND)
            if is_marked == birth.is_known:
                self._breach("marked", f"{device}: reading {row.number} of {channel} has the mark {mark!r}")
            if not is_marked or jumps:
                continue
            if channel == LATE and not birth.off_us:
                self._breach(
                    "order of birth", f"{device}: reading {row.number} was late when it got its time"
                )
            if channel != "beat_levels":
                continue
            gained_us = row.time - WALL_START_US - birth.true_us - birth.off_us
            if gained_us < -DRIFT_US or (mark == MARK_EXACT and gained_us > DRIFT_US):
                self._breach("time set", f"{device}: reading {row.number} is {gained_us} us off ({mark!r})")
            if row.time - birth.off_us < last_us - DRIFT_US:
                self._breach("order of birth", f"{device}: reading {row.number} lies before {last}")
            last_us, last = row.time - birth.off_us, row.number
