"""Spark's driver and executors killed with SIGKILL at the worst moments: each row once, in order, as plain
Python gives them, with timers set and records held in Spark's state when the kill comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.faults.cluster import WORKERS
from tests.spark.faults.drivers import Drivers
from tests.spark.faults.flows import HeldLog, held_writer
from tests.spark.faults.kill_points import POINTS
from tests.spark.faults.stories import executors_killed, killed_at, lost_and_made_again

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    started = Drivers(tmp_path)
    yield started
    started.close()


def test_a_driver_killed_at_each_point_goes_on_exactly(drivers: Drivers) -> None:
    """Five lives are killed, each at another point; then the checkpoint is lost, and the sixth makes it again
    and ends by itself.
    """
    log = HeldLog(held_writer(drivers.folder / "log"))
    taken_s = [killed_at(drivers, log, point) for point in POINTS]
    assert lost_and_made_again(drivers, log) > 0
    assert len(drivers.started) == len(POINTS) + 2
    print("from a driver's start until its first micro-batch:", *(f"{one:.1f} s" for one in taken_s))


def test_killed_executors_do_not_stop_the_query(tmp_path: Path) -> None:
    """One after the other, each in the middle of a micro-batch, on a cluster of two workers."""
    taken_s, _, _ = executors_killed(tmp_path)
    assert len(taken_s) == WORKERS
