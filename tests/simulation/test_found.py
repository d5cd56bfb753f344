"""What the simulator has found in agent and ingest, each as small as it could be made."""

from __future__ import annotations

import pytest

from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet, Size
from geartrain_simulation.fleet.troubles import Fault


@pytest.mark.parametrize("seed", range(2))
def test_agent_and_ingest_connect_again_after_the_broker_was_away(seed: int) -> None:
    """Python 3.11 and 3.12: a child that fails while its parent waits in the task group leaves the parent's
    `cancelling()` raised: both took a broken connection for their own end, and never connected again.
    """

    def plot(fleet: Fleet) -> None:
        fleet.world.later(2.5, fleet.broker.crash, 0.5)

    outcome = Fleet(seed, plot=plot, size=Size(devices=1, records=100, limit_s=120)).run()
    assert outcome.counters["connections_lost"] >= 1


def test_an_agent_that_lost_its_spool_waits_for_a_source_that_has_nothing_there_yet() -> None:
    """A read that gives no row was taken for a file that has changed, while the rows of a former life were
    read again: the agent stopped, and with a split that began each life so it never came to its end.
    """
    devices = [Device("device-1", records=16)]
    outcome = Fleet(6, devices=devices, faults=[Fault("delete", "device-1", at_s=3.0)]).run()
    assert outcome.counters["epochs_opened"] == 2
