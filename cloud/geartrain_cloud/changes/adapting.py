"""When a device whose cut follows its figures goes to another one: a function of figures, memory and time.

Over `fitting`, which knows what a cut would take. Guarantees: nothing flaps. A device goes down only above
its capacity, and up only to what would take `LOW` of it. What was measured with a cut counts more than any
estimate, so that a cut which was too much is not tried again at the same rate. Two moves have a pause between
them, which doubles with each change of direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from geartrain.control.states import Measured
from geartrain_cloud.changes.fitting import (
    CAPACITY,
    FREE_BYTES_MIN,
    Fit,
    Ladder,
    Rung,
    named,
    room,
    share_with,
)

LOW = 0.7
"""Of its capacity: a device goes to a cut which would take no more, unless there is none below it."""
PAUSE_S = 600.0
PAUSE_S_MAX = 86_400.0
"""Between two moves of a device, seconds: at first, and at the most."""

Direction = Literal["", "down", "up"]


class Memory(msgspec.Struct, frozen=True):
    """What is known of a device of an app. moved_s: when it was given its cut, on a clock that never goes
    back; pause_s: before its next move; last: where the last move went; costs: by cut the CPU seconds that a
    record took when the cut was last measured.
    """

    moved_s: float = -math.inf
    pause_s: float = PAUSE_S
    last: Direction = ""
    costs: Mapping[str, float] = {}

    def learn(self, cut: str, measured: Measured) -> Memory:
        """With what a cut takes; figures without records tell nothing of it."""
        if not measured.records_per_s:
            return self
        return replace(self, costs={**self.costs, cut: measured.cpu_share / measured.records_per_s})

    def moves(self, direction: Direction, now_s: float) -> Memory:
        """With a move, which is made at `now_s` or was refused then."""
        turns = self.last not in ("", direction)
        rested = now_s - self.moved_s >= PAUSE_S_MAX
        pause_s = PAUSE_S if rested else min(self.pause_s * (2 if turns else 1), PAUSE_S_MAX)
        return replace(self, moved_s=now_s, pause_s=pause_s, last=direction)


class Move(msgspec.Struct, frozen=True):
    """Where a device is to go, and why in one line."""

    fit: Fit
    direction: Direction


def next_move(
    ladder: Ladder,
    before: str,
    measured: Measured,
    memory: Memory,
    now_s: float,
    capacity: float = CAPACITY,
) -> Move | None:
    """Where a device with the cut `before` is to go now; None: it stays. measured: with that cut, and learnt;
    capacity: the share of one core that the app may take.
    """
    if now_s - memory.moved_s < memory.pause_s:
        return None
    work, known = ladder.works[before], _Known(ladder, before, measured, memory)
    below = [rung for rung in ladder.rungs if rung.work < work]
    short = measured.free_bytes < FREE_BYTES_MIN
    taken = f"at {measured.records_per_s:.4g} records/s it takes {measured.cpu_share:.2g} of a core"
    if short or measured.cpu_share > capacity:
        if not below:
            return None
        fitting = [] if short else [one for one in below if known.share(one) <= LOW * capacity]
        best = fitting[-1] if fitting else below[0]
        why = (
            f"{measured.free_bytes / 1e6:.0f} MB of memory are free, {FREE_BYTES_MIN / 1e6:.0f} are the least"
            if short
            else f"{taken}, more than {capacity:.2g}; with {named(best)} {known.share(best):.2g}"
        )
        return Move(Fit(best.cut, why), "down")
    if not measured.records_per_s or measured.free_bytes < 2 * FREE_BYTES_MIN:
        return None
    may = LOW * room(measured, capacity)
    above = [one for one in ladder.rungs if one.work > work and known.share(one) <= may]
    if not above:
        return None
    why = f"{taken}; with {named(above[-1])} {known.share(above[-1]):.2g}, within {may:.2g}, and fewer bytes"
    return Move(Fit(above[-1].cut, why), "up")


class _Known:
    """What a device would take on other rungs: as it was measured there, or as it is estimated."""

    def __init__(self, ladder: Ladder, before: str, measured: Measured, memory: Memory) -> None:
        self._ladder, self._before, self._measured, self._memory = ladder, before, measured, memory

    def share(self, rung: Rung) -> float:
        """Of one core."""
        cost = self._memory.costs.get(rung.cut)
        if cost is not None and self._measured.records_per_s:
            return cost * self._measured.records_per_s
        return share_with(self._ladder, self._before, self._measured, rung)
