"""Many more random flows whose devices go from cut to cut while the flow goes through revisions.

`make revisions` runs 1,000 under three schedules each; `--from` begins with another one than the first.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.hosting.moved_revisions import check_flow

FIRST, FLOWS, SCHEDULES = 100, 30, 3
CORES = 2


def check_flows(first: int, count: int, schedules: int) -> Counter[str]:
    """Check `count` flows from number `first` on, on all cores; raises for one that differs."""
    check = partial(_check, schedules)
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(check, range(first, first + count)), Counter[str]())


def _check(schedules: int, number: int) -> Counter[str]:
    seen = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        check_flow(Path(folder), number, schedules, seen)
    return seen


def test_many_flows_move_and_go_through_revisions_as_the_reference_does() -> None:
    seen = check_flows(FIRST, FLOWS, 1)
    assert seen["flows"] > FLOWS // 2, seen
    for what in ("taken", "left", "gone over", "amid a claim", "scaled", "killed", "replaced kept"):
        assert seen[what] > FLOWS // 6, (what, seen)
    for what in ("canary went back", "retired amid a claim", "retired amid cells", "retired after a move"):
        assert seen[what], (what, seen)


def main() -> None:
    """Run as many as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flows", type=int)
    parser.add_argument("--from", type=int, default=FIRST, dest="first")
    asked = parser.parse_args()
    print(check_flows(asked.first, asked.flows, SCHEDULES))


if __name__ == "__main__":
    main()
