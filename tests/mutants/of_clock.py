"""Faults planted in what an agent does while its device does not know the time, and once it is told."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from geartrain_edge.settings import Policy
from geartrain_edge.sources.untimed import Offset, Timed, Untimed
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.fleet.troubles import LOSSES, SPOOL_POINTS, Fault
from geartrain_simulation.machine.clock import SimBootClock


def clock_of_1970(seed: int) -> None:
    """A run of a live device whose boots begin in 1970, with kills and loss of power on both sides of the
    moment at which it is told the time.
    """
    random, name = Random(f"{seed}/clock of 1970"), "device-1"
    faults = [Fault("1970", name, for_s=random.uniform(1.0, 4.0)), Fault(random.choice(LOSSES), name)]
    for _ in range(random.choice((1, 2, 3))):
        kind = random.choice(("kill", "power loss"))
        if random.random() < 0.7:
            faults.append(Fault(kind, name, at_s=random.uniform(1.0, 5.0)))
        else:
            nth = random.randint(1, 30)
            faults.append(Fault(kind, name, point=random.choice(SPOOL_POINTS), nth=nth))
    device = Device(name, 0, 60, policy=Policy.DROP_NEWEST, spool_bytes_max=1 << 20)
    Fleet(seed, devices=[device], faults=faults).run()


def _clock_of_1970_believed(patches: Patches) -> None:
    patches.replace(SimBootClock, "wall_is_known", lambda right: lambda clock: True)


def _changes_that(patches: Patches, keep: Any) -> None:
    """Write only the changes that `keep` says."""

    def make(right: Any) -> Any:
        def changes(untimed: Untimed) -> Any:
            return {at: value for at, value in right(untimed).items() if keep(at, value)}

        return changes

    patches.replace(Untimed, "changes", make)


def _kept_in_memory_only(patches: Patches) -> None:
    _changes_that(patches, lambda at, value: at[1] == b"offsets")


def _timed_reads_not_deleted(patches: Patches) -> None:
    _changes_that(patches, lambda at, value: at[1] == b"offsets" or value is not None)


def _earlier_boot_by_this_ones_clock(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def _set_offsets(untimed: Untimed) -> bool:
            done = bool(right(untimed))
            ours = [one for one in untimed._offsets.values() if not one.is_bound]
            untimed._offsets = dict.fromkeys(untimed._offsets, Offset(ours[0].us, False)) if ours else {}
            return done

        return _set_offsets

    patches.replace(Untimed, "_set_offsets", make)


def _newest_first(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def following(untimed: Untimed, split: Any, position: int) -> Timed | None:
            if waiting := untimed._held.get(split):
                waiting.rotate(1)
            timed: Timed | None = right(untimed, split, position)
            if timed is not None and (left := untimed._held.get(split)):
                left.rotate(-1)
            return timed

        return following

    patches.replace(Untimed, "next", make)


def _timed_at_their_release(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def following(untimed: Untimed, split: Any, position: int) -> Timed | None:
            timed: Timed | None = right(untimed, split, position)
            if timed is None:
                return None
            now_us = untimed._clock.now_us()
            times = [now_us for _ in timed.read.times]
            return replace(timed, read=replace(timed.read, times=times), now_us=now_us)

        return following

    patches.replace(Untimed, "next", make)


def _not_marked(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def following(untimed: Untimed, split: Any, position: int) -> Timed | None:
            timed: Timed | None = right(untimed, split, position)
            return None if timed is None else replace(timed, marks={})

        return following

    patches.replace(Untimed, "next", make)


def _watermark_ahead_of_untimed_reads(patches: Patches) -> None:
    patches.replace(Untimed, "holds", lambda right: lambda untimed, split: False)


OF_CLOCK = (
    Mutant("clock of 1970 believed", _clock_of_1970_believed, clock_of_1970),
    Mutant("reads without a time kept in memory only", _kept_in_memory_only, clock_of_1970),
    Mutant("timed reads not deleted", _timed_reads_not_deleted, clock_of_1970),
    Mutant("earlier boot timed by this one's clock", _earlier_boot_by_this_ones_clock, clock_of_1970),
    Mutant("times set in another order", _newest_first, clock_of_1970),
    Mutant("watermark ahead of untimed reads", _watermark_ahead_of_untimed_reads, clock_of_1970),
    Mutant("timed at their release", _timed_at_their_release, clock_of_1970),
    Mutant("set time not marked", _not_marked, clock_of_1970),
)
