"""A kill and a loss of power at every seventeenth point between source and log; the proofs take every one."""

from __future__ import annotations

import pytest

from tests.simulation.kill_points import points_of, run_killed

STRIDE = 17


@pytest.mark.parametrize(("node", "power"), [("device-1", False), ("ingest", False), ("ingest", True)])
def test_a_crash_at_some_points_changes_nothing(node: str, power: bool) -> None:
    points = points_of(node)
    assert points > 50
    for number in range(1, points + 1, STRIDE):
        assert run_killed(node, number, power=power).crashes >= 1
