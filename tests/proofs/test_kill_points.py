"""Every effect of an agent and of ingest is the last one once: killed there, or without power from there."""

from __future__ import annotations

import pytest

from tests.simulation.kill_points import points_of, run_killed


@pytest.mark.parametrize(("node", "power"), [("device-1", False), ("ingest", False), ("ingest", True)])
def test_a_crash_at_every_point_changes_nothing(node: str, power: bool) -> None:
    points = points_of(node)
    assert points > 50
    for number in range(1, points + 1):
        assert run_killed(node, number, power=power).crashes >= 1
