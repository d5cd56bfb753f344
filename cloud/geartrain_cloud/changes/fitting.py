"""Which cut fits a device, by what was measured of it: a function of figures, and of nothing else.

Between what devices report and the change of their cuts. Guarantees: the same figures give the same cut. A
device of which nothing was measured gets what `auto` is without figures. Each choice has its reason.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from geartrain.control.states import Measured

CAPACITY = 0.5
"""The share of one core of a device that an app may take, unless said otherwise."""
IDLE_TAKEN = 0.8
"""Of what a device's cores have left, an app may take so much more than it does."""
FREE_BYTES_MIN = 32 << 20
"""A device with less free memory does as little as it may."""


class Rung(msgspec.Struct, frozen=True):
    """A cut by its text; work: that it asks of a device; bytes: that it sends. Only proportions count."""

    cut: str
    work: float
    bytes: int


class Ladder(msgspec.Struct, frozen=True):
    """rungs: least work first; works: of the cuts in use, "" for the app's own."""

    rungs: tuple[Rung, ...]
    works: Mapping[str, float]


class Fit(msgspec.Struct, frozen=True):
    """The cut that fits a device, and why in one line."""

    cut: str
    why: str


def fit(ladder: Ladder, before: str, measured: Measured | None, capacity: float = CAPACITY) -> Fit:
    """The cut for a device that has the cut `before`, "" for the app's; measured: with that cut, None where
    nothing is known; capacity: the share of a core that it may take.
    """
    top, low = ladder.rungs[-1], ladder.rungs[0]
    if measured is None:
        return Fit(top.cut, "nothing was measured yet: by estimate")
    if measured.free_bytes < FREE_BYTES_MIN:
        left = f"{measured.free_bytes / 1e6:.0f} MB of memory are free"
        return Fit(low.cut, f"{left}, and {FREE_BYTES_MIN / 1e6:.0f} MB are the least")
    if not measured.records_per_s:
        return Fit(top.cut, "its sources gave no record in the last half minute: by estimate")
    may = room(measured, capacity)
    taken = f"at {measured.records_per_s:.4g} records/s it takes {measured.cpu_share:.2g} of a core"
    fitting = [one for one in ladder.rungs if share_with(ladder, before, measured, one) <= may]
    if not fitting:
        return Fit(low.cut, f"{taken} and may take {may:.2g}: as little as it may do")
    best = fitting[-1]
    would = f"{taken}, with this cut {share_with(ladder, before, measured, best):.2g} of {may:.2g}"
    if best == top:
        return Fit(top.cut, f"{would}: the fewest bytes")
    above = ladder.rungs[ladder.rungs.index(best) + 1]
    return Fit(best.cut, f"{would}; with {named(above)} {share_with(ladder, before, measured, above):.2g}")


def named(rung: Rung) -> str:
    """The cut of a rung in a sentence."""
    return rung.cut or "the app's cut"


def room(measured: Measured, capacity: float) -> float:
    """The share of a core that an app may take of its device."""
    return min(capacity, measured.cpu_share + IDLE_TAKEN * measured.idle_cores)


def share_with(ladder: Ladder, before: str, measured: Measured, rung: Rung) -> float:
    """The share of a core that an app would take on a rung, from what it takes now."""
    return measured.cpu_share * rung.work / ladder.works[before]
