"""Spark's host and executors killed with SIGKILL at the worst moments: each row once, in order, as plain
Python gives them, with timers set and records held in Spark's state when the kill comes.

The host's points are drawn by the commit; `make proofs-long` takes them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.drawing import drawn
from tests.spark.faults.cluster import WORKERS
from tests.spark.faults.executors import executors_killed
from tests.spark.faults.flows import HeldLog, held_writer
from tests.spark.faults.hosts import Hosts
from tests.spark.faults.kill_points import POINTS
from tests.spark.faults.stories import killed_at, lost_and_made_again

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    started = Hosts(tmp_path)
    yield started
    started.end()


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(drawn("points of the host", POINTS, 2), id="drawn"),
        pytest.param(POINTS, id="each", marks=pytest.mark.long),
    ],
)
def test_a_host_killed_at_points_goes_on_exactly(hosts: Hosts, points: Sequence[str]) -> None:
    """Each life is killed at another point; then the checkpoint is lost, and one makes it
    again.
    """
    log = HeldLog(held_writer(hosts.wanted.log))
    taken_s = [killed_at(hosts, log, point) for point in points]
    assert lost_and_made_again(hosts, log) > 0
    assert len(hosts.started) == len(points) + 1
    print("from a host's start until its first micro-batch:", *(f"{one:.1f} s" for one in taken_s))


def test_killed_executors_do_not_stop_the_query(tmp_path: Path) -> None:
    """One after the other, each in the middle of a micro-batch, on a cluster of two workers."""
    taken_s, _, _ = executors_killed(tmp_path)
    assert len(taken_s) == WORKERS
