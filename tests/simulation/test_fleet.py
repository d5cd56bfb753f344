"""Real agents and a real ingest in a bad world: nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import geartrain_cloud.ingest
import geartrain_edge
from geartrain.ports.buggify import buggify
from geartrain_cloud.ports import EntryKind
from geartrain_edge.settings import Policy
from geartrain_simulation.fleet.devices import Device, draw_devices
from geartrain_simulation.fleet.fleet import Fleet, Outcome
from geartrain_simulation.fleet.readings import make_graph
from geartrain_simulation.fleet.troubles import KINDS, POINTS, Fault, draw_faults
from geartrain_simulation.machine.faults import Faults
from tests.waiting import WAIT_S

SEEDS = 50
PIECES = 5


@pytest.mark.parametrize("piece", range(PIECES))
def test_nothing_is_lost_or_doubled(piece: int) -> None:
    fleets = [Fleet(seed) for seed in range(piece, SEEDS, PIECES)]
    outcomes = [fleet.run() for fleet in fleets]
    # The runs have been through something.
    assert sum(outcome.crashes for outcome in outcomes) > 2 * len(outcomes)
    for fault in ("drop up", "drop down", "undelivered"):
        assert any(outcome.faults.get(fault, 0) > 1 for outcome in outcomes), fault
    for counter in ("duplicates", "reordered_batches", "epochs_opened"):
        assert any(outcome.counters.get(counter, 0) > 1 for outcome in outcomes), counter
    assert not any(outcome.counters.get("losses", 0) for outcome in outcomes)
    for fleet, outcome in zip(fleets, outcomes, strict=True):
        if not {"restore", "delete", "flip", "copy"} & {fault.kind for fault in fleet.faults}:
            for counter in ("digest_conflicts", "digest_mismatches", "quarantined_batches"):
                assert not outcome.counters.get(counter, 0), counter
        if not fleet.sensors and not {"restore", "delete", "copy"} & {fault.kind for fault in fleet.faults}:
            assert not outcome.counters.get("records_overtaken", 0)


def test_an_instance_has_a_dot_in_its_name_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "geartrain_simulation.fleet.fleet.make_graph", lambda *given: make_graph(*given).named("readings.3")
    )
    for seed in range(3):
        world = Fleet(seed)
        assert world.flow == "readings.3"
        assert world.run().counters["records_logged"] > 0


def test_every_kind_of_fault_and_of_device_is_drawn_and_none_too_often() -> None:
    seeds = range(300)
    fleets = [(draw_devices(seed), seed) for seed in seeds]
    kinds = Counter(
        kind for devices, seed in fleets for kind in {fault.kind for fault in draw_faults(seed, devices)}
    )
    assert kinds.keys() == set(KINDS)
    assert all(5 < count < 290 for count in kinds.values()), kinds
    devices = [device for few, _ in fleets for device in few]
    assert {device.policy for device in devices} == set(Policy)
    assert {len(few) for few, _ in fleets} == {1, 2, 3, 4}
    assert 50 < sum(any(device.readings for device in few) for few, _ in fleets) < 150
    assert any(device.readings and device.records for device in devices)


def test_taking_out_a_fault_or_a_device_leaves_the_others_as_they_are() -> None:
    devices = draw_devices(4)
    faults = draw_faults(4, devices)
    fewer = [fault for fault in draw_faults(4, devices[:1]) if fault.node == devices[0].name]
    assert fewer == [fault for fault in faults if fault.node == devices[0].name]
    for kind in sorted({fault.kind for fault in faults}):
        outcome = Fleet(4, faults=[fault for fault in faults if fault.kind != kind]).run()
        assert outcome.counters["records_logged"] > 0
    assert Fleet(4, devices=devices[:1]).run().counters["records_logged"] > 0
    assert Fleet(4, faults=[]).run().faults == {}


def test_the_points_of_production_code_are_those_that_are_drawn() -> None:
    roots = [Path(str(module.__file__)).parent for module in (geartrain_edge, geartrain_cloud.ingest)]
    found = [
        name
        for root in roots
        for file in root.rglob("*.py")
        for name in re.findall(r'buggify\(\s*"([^"]+)"', file.read_text())
    ]
    assert sorted(found) == sorted(POINTS)


def test_no_point_strikes_outside_of_a_run() -> None:
    struck: list[str] = []
    fleet = Fleet(1, faults=[Fault("buggify", point=point) for point in POINTS])
    strikes = fleet._strikes

    def noted(name: str, p: float) -> bool:
        struck.append(name)
        return strikes(name, p)

    fleet._strikes = noted  # type: ignore[method-assign]
    fleet.run()
    assert set(struck) >= set(POINTS) - {"merge at once"}
    assert not buggify("early flush", 1.0)


def test_of_two_agents_on_one_spool_one_goes_on_and_delivers_all() -> None:
    """Each begins a new epoch when it hears of the other's history; who is closed out again gives up."""
    stopped = epochs = 0
    for seed in range(6):
        devices = [Device("device-1", records=24), Device("device-2", records=8)]
        fleet = Fleet(seed, devices=devices, faults=[Fault("copy", "device-1", at_s=3.0)])
        outcome = fleet.run()
        stopped += len(fleet.lives.alarmed)
        epochs += outcome.counters["epochs_opened"]
        assert not outcome.counters.get("losses", 0)
    assert stopped > 0
    assert epochs > 2 * 6


def test_an_ingest_whose_subscription_is_forgotten_hears_of_its_devices_again() -> None:
    devices = [Device("device-1", records=24), Device("device-2", records=16)]
    outcome = Fleet(2, devices=devices, faults=[Fault("forget", "ingest", at_s=3.0)]).run()
    assert outcome.counters["subscriptions_renewed"] > 0
    assert outcome.counters.get("connections_lost", 0) == 0


def test_what_retention_removes_was_read_before() -> None:
    devices = [Device("device-1", records=24), Device("device-2", records=24)]
    outcome = Fleet(3, devices=devices, faults=[Fault("retention", reach=1.0)]).run()
    assert outcome.counters["records_removed"] > 10


def test_two_ingests_share_a_log_and_each_follows_the_clock_of_the_other() -> None:
    devices = [Device(f"device-{number}", records=16) for number in range(1, 5)]
    power = Fault("power loss", "ingest-b", at_s=4.0)
    fleet = Fleet(6, devices=devices, faults=[Fault("two ingests"), power])
    outcome = fleet.run()
    partitions = {
        name: {entry.partition for entry in fleet.ledger.all_entries() if entry.kind is EntryKind.ROWS}
        & set(config.owned)
        for name, config in fleet._configs.items()
    }
    assert all(partitions.values())
    assert outcome.crashes == 2  # they lose power together
    assert fleet.world.nodes["ingest"].generation == fleet.world.nodes["ingest-b"].generation == 2
    assert outcome.counters["records_logged"] == sum(e.count for e in fleet.ledger.all_entries())


def test_a_fault_says_what_it_does_in_one_line() -> None:
    assert str(Fault("kill", "ingest", point="disk.fsync", nth=3)) == "kill ingest point=disk.fsync nth=3"
    assert str(Fault("drop", at_s=1.5, for_s=2.0, rate=0.1)) == "drop at_s=1.5 for_s=2 rate=0.1"


def test_batches_that_are_damaged_on_the_way_are_refused_and_come_again() -> None:
    def damage(fleet: Fleet) -> None:
        fleet.broker.faults = Faults(damage=0.2, damage_filter="geartrain/v1/+/+/+/up")
        fleet.world.later(8.0, heal, fleet)

    def heal(fleet: Fleet) -> None:
        fleet.broker.faults = Faults()

    outcomes = [Fleet(seed, plot=damage).run() for seed in range(6)]
    assert sum(outcome.faults.get("damage", 0) for outcome in outcomes) > 30
    for counter in ("digest_mismatches", "malformed_batches", "quarantined_batches"):
        assert sum(outcome.counters.get(counter, 0) for outcome in outcomes) > 0, counter
    assert not any(outcome.counters.get("losses", 0) for outcome in outcomes)


RUN = """
import json, logging, sys
from geartrain_simulation.fleet.fleet import Fleet
logging.disable(logging.CRITICAL)
print(json.dumps([Fleet(int(seed)).run().digest for seed in sys.argv[1:]]))
"""


def digests_of_another_process(hash_seed: str, seeds: list[int]) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", RUN, *map(str, seeds)]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=WAIT_S
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_seed_gives_one_trace_in_every_process() -> None:
    seeds = [2, 5, 8]
    here = [Fleet(seed).run().digest for seed in seeds]
    assert len(set(here)) == len(seeds)
    assert digests_of_another_process("1", seeds) == here
    assert digests_of_another_process("2", seeds) == here


def test_an_outcome_tells_what_the_run_was_like() -> None:
    outcome: Outcome = Fleet(3, faults=[]).run()
    assert outcome.steps > 100
    assert outcome.virtual_s > 1
    assert outcome.counters["records_logged"] > 30
