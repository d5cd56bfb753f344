"""Failing runs, shrunk and kept: what the simulator has found once is run again for ever.

A JSON file of cases, each with its seed, its devices and its faults as they were, so that it stays the same
run when the drawing of faults changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from geartrain_simulation.campaign.runs import Result, run_fleet
from geartrain_simulation.campaign.shrinking import Tries, shrink
from geartrain_simulation.fleet.devices import Device, draw_devices
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.fleet.troubles import Fault, draw_faults


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a seed with these devices and these faults; rule, detail: what it broke when it was found."""

    seed: int
    devices: tuple[Device, ...]
    faults: tuple[Fault, ...]
    rule: str = ""
    detail: str = ""

    def run(self, trace_lines: int = 0) -> Result:
        """Run it; `trace_lines`: how much of its trace it gives when it is good, too."""
        return run_fleet(
            self.seed, lambda: Fleet(self.seed, faults=self.faults, devices=self.devices), trace_lines
        )


def drawn(seed: int) -> Case:
    """A seed as it draws its world."""
    devices = draw_devices(seed)
    return Case(seed, tuple(devices), tuple(draw_faults(seed, devices)))


def shrunk(result: Result, tries: Tries | None = None) -> Case:
    """The smallest form of a seed that was found to break a rule: without the faults and the devices that it
    does not take.
    """
    case, tries = drawn(result.seed), tries if tries is not None else Tries()

    def breaks(devices: Sequence[Device], faults: Sequence[Fault]) -> bool:
        return Case(case.seed, tuple(devices), tuple(faults)).run().rule == result.rule

    if not breaks(case.devices, case.faults):
        return _found(case, result)
    faults = shrink(case.faults, lambda fewer: breaks(case.devices, fewer), tries)
    devices = shrink(case.devices, lambda fewer: breaks(fewer, faults), tries, least=1)
    faults = shrink(faults, lambda fewer: breaks(devices, fewer), tries)
    small = Case(case.seed, tuple(devices), tuple(faults))
    return _found(small, small.run())


def _found(case: Case, result: Result) -> Case:
    return Case(case.seed, case.devices, case.faults, result.rule, result.detail)


def load(path: Path) -> list[Case]:
    """The cases of a file, none where there is no file. Raises `msgspec.MsgspecError` for another file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Case]) if path.exists() else []


def keep(path: Path, cases: Sequence[Case]) -> int:
    """Add cases to a file, but those that it holds; returns how many were added. Raises `OSError`."""
    held = load(path)
    known = {(case.seed, case.devices, case.faults) for case in held}
    fresh = [case for case in cases if (case.seed, case.devices, case.faults) not in known]
    if fresh:
        path.write_bytes(msgspec.json.format(msgspec.json.encode([*held, *fresh]), indent=1) + b"\n")
    return len(fresh)
