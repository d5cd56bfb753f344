"""What the simulator has found in agent and ingest, each as small as it could be made."""

from __future__ import annotations

import pytest

from geartrain_simulation.fleet import Fleet, Size


@pytest.mark.parametrize("seed", range(2))
def test_agent_and_ingest_connect_again_after_the_broker_was_away(seed: int) -> None:
    """Python 3.11 and 3.12: a child that fails while its parent waits in the task group leaves the parent's
    `cancelling()` raised: both took a broken connection for their own end, and never connected again.
    """

    def plot(fleet: Fleet) -> None:
        fleet.world.later(2.5, fleet.broker.crash, 0.5)

    outcome = Fleet(seed, plot=plot, size=Size(devices=1, records=100, limit_s=120)).run()
    assert outcome.counters["connections_lost"] >= 1
