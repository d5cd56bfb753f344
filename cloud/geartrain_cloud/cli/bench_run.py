"""Runs of a flow on a platform of its own, one after another, each timed from first record to last row.

It stands around the whole path, like `gear demo`; all of it goes by the platform's REST. Guarantees: a run
counts only once its app has ended and its accounts are even, or once its time is over. Times are read from
what processes and tables say of themselves, every 0.2 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from geartrain_client.cli.submitting import SubmitWishes, body_of
from geartrain_client.errors import FailedError, UnreachableError
from geartrain_client.rest.answers import ENDED, FAILED, AppInfo, Submitted, answer_as
from geartrain_client.rest.door import find_door
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform, segment
from geartrain_cloud.cli.bench_result import BenchResult
from geartrain_cloud.cli.demo_run import SETTLE_S, are_even, check_processes
from geartrain_cloud.cli.hops import Hops, read_accounts, read_hops, read_standing, served_tables
from geartrain_cloud.control.machine import processor_seconds
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.supervisor.child import Child

ASK_EVERY_S = 0.4
"""How often control is asked how the app is: each answer takes some of the processor that is measured."""

Show = Callable[[str, Hops], None]


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is to be run.

    flow: as `module:name`; wishes: what each run is submitted with, but for its name and cut; cuts: each is
    run `rounds` times, in turns; devices: their names; for_s: seconds of each run from its first row in a
    table, None for as long as the sources last.
    """

    flow: str
    wishes: SubmitWishes
    cuts: Sequence[str]
    rounds: int
    devices: Sequence[str]
    for_s: float | None


@dataclass(slots=True)
class _Run:
    """One run under way; all times are of the monotonic clock, in seconds, 0 for not yet.

    cpu: seconds of a processor that each process had used before it; held: where the tables stood at the last
    look; hops: of the last look.
    """

    name: str
    cut: str
    number: int
    submitted_s: float
    cpu: Mapping[str, float]
    instance: str = ""
    first_read_s: float = 0.0
    first_row_s: float = 0.0
    last_row_s: float = 0.0
    settle_by_s: float = 0.0
    held: tuple[int, int] = (0, 0)
    hops: Hops = field(default_factory=Hops)


class BenchRuns:
    """The work of `bring_up`; `results` are those of the runs that have ended."""

    def __init__(self, plan: BenchPlan, places: PlatformPlaces, show: Show) -> None:
        """`show` gets which run is under way and how far it is, five times a second."""
        self.results: list[BenchResult] = []
        self._plan, self._places, self._show = plan, places, show
        self._waiting = [(number, cut) for number in range(1, plan.rounds + 1) for cut in plan.cuts]
        self._run: _Run | None = None
        self._are_added, self._ask_s = False, 0.0

    def __call__(self, url: str, children: Mapping[str, Child]) -> bool:
        """A turn; raises `SupervisorError`, `FailedError` for an app that failed; what planning raises."""
        check_processes(children)
        try:
            if url and self._run is None:
                if not self._waiting:
                    return True
                self._begin(self._platform(), children)
            elif url and self._run is not None:
                self._look(self._run, children)
        except UnreachableError:  # control begins just now
            return False
        return False

    def _platform(self) -> Platform:
        return Platform(find_door(None, self._places.folder, {}), attempts=1)

    def _begin(self, platform: Platform, children: Mapping[str, Child]) -> None:
        """Submit the next run."""
        plan = self._plan
        if not self._are_added:
            for device in plan.devices:
                platform.change("POST", "/devices", {"name": device, "local": True})
            self._are_added = True
        number, cut = self._waiting[0]
        name = f"bench_{plan.rounds * len(plan.cuts) - len(self._waiting) + 1}"
        body = body_of(plan.flow, replace(plan.wishes, name=name, cut=cut))
        began_s, cpu = time.monotonic(), _processor_seconds(children)
        made = answer_as(Submitted, platform.change("POST", "/apps", body, SUBMIT_TIMEOUT_S))
        del self._waiting[0]
        self._run = _Run(name, cut, number, began_s, cpu, made.instance)

    def _look(self, run: _Run, children: Mapping[str, Child]) -> None:
        """Note what has happened since the last look, and end the run where it is over."""
        now_s = time.monotonic()
        run.hops = read_hops(self._places, run.instance, self._plan.devices)
        self._show(f"cut {run.cut}, run {run.number}", run.hops)
        if run.hops.read and not run.first_read_s:
            run.first_read_s = now_s
        held = read_standing(served_tables(self._places, run.instance))
        if held != run.held:
            run.held, run.last_row_s = held, now_s
            run.first_row_s = run.first_row_s or (now_s if held[1] else 0.0)
        limit_s = self._plan.for_s
        if limit_s is not None and run.first_row_s and now_s - run.first_row_s >= limit_s:
            self._finish(run, children)
            kill = {"mode": "now", "purge": False}
            self._platform().change("POST", f"/apps/{segment(run.name)}/kill", kill)
        elif now_s >= self._ask_s:
            self._ask_s = now_s + ASK_EVERY_S
            found = answer_as(AppInfo, self._platform().get(f"/apps/{segment(run.name)}"))
            if found.state == FAILED:
                raise FailedError(f"{run.instance} failed: {found.why}")
            if found.state == ENDED and self._is_settled(run):
                self._finish(run, children)

    def _is_settled(self, run: _Run) -> bool:
        """Whether the accounts are even; raises `SupervisorError` where they stay uneven."""
        run.settle_by_s = run.settle_by_s or time.monotonic() + SETTLE_S
        accounts = read_accounts(self._places, run.instance, self._plan.devices)
        return are_even(accounts, self._places, run.settle_by_s)

    def _finish(self, run: _Run, children: Mapping[str, Child]) -> None:
        cpu = _processor_seconds(children)
        began_s = run.first_read_s or run.submitted_s
        self.results.append(
            BenchResult(
                cut=run.cut,
                number=run.number,
                records=run.hops.read,
                log_rows=run.held[1],
                seconds=max(run.last_row_s - began_s, 0.0),
                first_record_s=began_s - run.submitted_s,
                first_row_s=run.first_row_s - run.submitted_s if run.first_row_s else None,
                cpu_s={name: used - run.cpu.get(name, 0.0) for name, used in cpu.items()},
            )
        )
        self._run = None


def _processor_seconds(children: Mapping[str, Child]) -> dict[str, float]:
    """Seconds of a processor that each process of the platform has used, with all that it has started."""
    pids = {child.pid: name for name, child in children.items() if child.pid is not None}
    return {pids[pid]: used for pid, used in processor_seconds(pids.keys()).items()}
