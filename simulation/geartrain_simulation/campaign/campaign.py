"""Many seeds over all cores, and some of them twice: each run is to be a function of its seed alone.

Guarantees: what is run depends on the seeds, and not on how they are dealt to processes. One seed in a
hundred is run again in a new process with another hash seed, and must leave the same trace.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from geartrain_edge.agent.process import GARBAGE_THRESHOLD
from geartrain_simulation.campaign.runs import USUAL, Key, Result, current_key, run_seed

CHUNK = 10
"""Seeds that a process is given at a time."""
REPEAT_EVERY = 100
"""Of so many seeds one is run twice."""
VIOLATIONS_MAX = 20
"""Broken seeds after which no more are begun: they have something in common."""
_REPEAT_S_EACH = 120.0

Progress = Callable[[int, int], None]
"""Told (seeds done, rules broken) now and then."""


@dataclass(slots=True)
class Report:
    """What came of the seeds from `first` on.

    asked, done: how many; violations: the results of those that broke a rule; repeated, differ: the seeds
    that were run twice, and those of them that left another trace; seconds: of wall time.
    """

    key: Key
    first: int
    asked: int
    done: int = 0
    violations: list[Result] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    differ: list[int] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    virtual_s: float = 0.0
    crashes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether all were run, none broke a rule, and each left one trace."""
        return self.done == self.asked and not self.violations and not self.differ

    def take(self, result: Result) -> None:
        """Add a result to the sums."""
        self.done += 1
        self.steps += result.steps
        self.virtual_s += result.virtual_s
        self.crashes += result.crashes
        for sums, figures in ((self.faults, result.faults), (self.counters, result.counters)):
            for name, count in figures.items():
                sums[name] = sums.get(name, 0) + count
        if not result.is_good:
            self.violations.append(result)


def run_seeds(
    first: int,
    count: int,
    *,
    kind: str = USUAL,
    workers: int | None = None,
    progress: Progress = lambda done, broken: None,
) -> Report:
    """Run the seeds from `first` on in `workers` processes, by default one for each core; kind: of worlds."""
    started_s = time.monotonic()
    report = Report(current_key(), first, count)
    digests: dict[int, str] = {}
    workers = workers or len(os.sched_getaffinity(0))
    chunks = (range(n, min(n + CHUNK, first + count)) for n in range(first, first + count, CHUNK))
    context = multiprocessing.get_context("spawn")
    # Worlds make much that lives long and little garbage, as agents do.
    with ProcessPoolExecutor(workers, context, gc.set_threshold, (GARBAGE_THRESHOLD,)) as pool:
        for results in _in_turn(
            pool, chunks, kind, 2 * workers, lambda: len(report.violations) < VIOLATIONS_MAX
        ):
            for result in results:
                report.take(result)
                if result.is_good and result.seed % REPEAT_EVERY == 0:
                    digests[result.seed] = result.digest
            progress(report.done, len(report.violations))
    report.violations.sort(key=lambda result: result.seed)
    report.repeated = sorted(digests)
    again = digests_elsewhere(report.repeated, kind=kind)
    report.differ = [seed for seed in report.repeated if again[seed] != digests[seed]]
    report.seconds = time.monotonic() - started_s
    return report


def _in_turn(
    pool: ProcessPoolExecutor,
    chunks: Iterable[Sequence[int]],
    kind: str,
    ahead: int,
    goes_on: Callable[[], bool],
) -> Iterator[list[Result]]:
    """The results of the chunks as they come, never more than `ahead` chunks under way."""
    running: set[Future[list[Result]]] = set()
    for chunk in chunks:
        if not goes_on():
            break
        running.add(pool.submit(run_chunk, list(chunk), kind))
        while len(running) >= ahead:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    yield from (future.result() for future in running)


def run_chunk(seeds: list[int], kind: str = USUAL) -> list[Result]:
    """Run some seeds in this process."""
    return [run_seed(seed, kind) for seed in seeds]


def digests_elsewhere(seeds: Sequence[int], hash_seed: int = 4_711, *, kind: str = USUAL) -> dict[int, str]:
    """The digests of seeds that are run in a new process with another `PYTHONHASHSEED`."""
    if not seeds:
        return {}
    done = subprocess.run(
        [sys.executable, "-m", "geartrain_simulation.campaign.campaign", kind, *map(str, seeds)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60 + _REPEAT_S_EACH * len(seeds),
    )
    digests: list[str] = json.loads(done.stdout)
    return dict(zip(seeds, digests, strict=True))


if __name__ == "__main__":
    sys.stdout.write(json.dumps([run_seed(int(word), sys.argv[1]).digest for word in sys.argv[2:]]))
