"""Many more random flows that go through random revisions, each under three schedules. In one of them new
steps begin anywhere in the log of before; in another, devices send records of former types, too.

`make revisions` runs 1,000; `--from` begins with another one than the first.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from tests.hosting.former_log import FormerLog
from tests.hosting.in_process import Seen, check_flow

FIRST, FLOWS, SCHEDULES = 100, 20, 3
CORES = 2


def check_flows(first: int, count: int) -> Seen:
    """Check `count` flows from number `first` on, on all cores; raises for one that differs."""
    seen = Seen()
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        for part in pool.map(_check, range(first, first + count)):
            seen.add(part)
    return seen


def _check(number: int) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        seen = check_flow(at / "present", number, SCHEDULES - 2)
        past = check_flow(at / "past", number, 1, past=True)
        former = check_flow(at / "former", number, 1, FormerLog, past=number % 2 == 1)
    for one in (past, former):
        seen.add(replace(one, flows=0))
    return seen


def test_many_flows_go_through_revisions_as_the_reference_does() -> None:
    seen = check_flows(FIRST, FLOWS)
    assert seen.flows > FLOWS / 2
    assert seen.rows > 160 * FLOWS
    assert seen.killed > 2 * FLOWS
    assert seen.scaled > 2 * FLOWS
    assert seen.migrated
    assert seen.in_past
    assert seen.letters


def main() -> None:
    """Run as many as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flows", type=int)
    parser.add_argument("--from", type=int, default=FIRST, dest="first")
    asked = parser.parse_args()
    print(check_flows(asked.first, asked.flows))


if __name__ == "__main__":
    main()
