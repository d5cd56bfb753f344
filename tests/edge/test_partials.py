"""A split aggregate from two agents, over a bad network and every restart, to the fragment that merges."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain import Flow, Record, Table, agg, sliding
from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain.planning import Plan, make_plan
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.source import Reject
from geartrain.testing import TestingSource
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run
from tests.edge.flows import Reading, items
from tests.edge.network import MemoryNet, NaiveIngest, Troubles
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.rows import Answer
from tests.reference.two_tiers import answer_of

DEVICES = ("north", "south")


class Level(Record):
    sensor: str
    window_start: int
    n: int
    sum_level: float
    avg: float
    opening: float
    most: list[float]


def unlucky(reading: Reading) -> float:
    if reading.level == 13:
        raise ValueError("an unlucky level")
    return reading.level


def readings(device: str) -> list[Any]:
    """Of one device; its levels are no round numbers, so that an inexact sum would show."""
    rng = random.Random(device)
    return [
        item
        if isinstance(item, Reject) or item[1].level == 13
        else (item[0], Reading(item[1].sensor, item[1].level / 3 + rng.random() * 10.0 ** rng.randrange(9)))
        for item in items(90, len(device))
    ]


class Readings(TestingSource[Reading]):
    """Each device's own."""

    def open(self, device: str, step: str, kind: type[Reading]) -> Any:
        mine = TestingSource[Reading](items=readings(device)) if device in DEVICES else self
        return TestingSource.open(mine, device, step, kind)


def plan_of(cut: str = "edge") -> Plan:
    flow = Flow("fleet")
    by_sensor = flow.source("readings", Readings(), out=Reading).key_by("sensor", name="by_sensor")
    windows = by_sensor.window(sliding(timedelta(seconds=4), timedelta(seconds=2)))
    parts: dict[str, Any] = {"n": agg.count(), "sum_level": agg.sum("level"), "avg": agg.mean(unlucky)}
    parts |= {"opening": agg.first("level"), "most": agg.top_n("level", 3)}
    windows.aggregate("levels", out=Level, **parts).sink("table", Table("levels"))
    return make_plan(flow.graph(), cut)


def sent(plan: Plan, folder: Path, device: str, troubles: Troubles, dies: int | None = None) -> NaiveIngest:
    """What ingest has of a device whose agent dies at its n-th durable write and lives again."""
    ingest, settings = NaiveIngest(plan), replace(SETTINGS, device=device)

    async def live(store: MortalSpool, seed: int) -> None:
        agent = agent_of(plan, store, MemoryNet(ingest, troubles), settings, seed)
        task = asyncio.create_task(agent.run())
        await asyncio.wait([task])
        if not isinstance(task.exception(), KilledError):
            assert task.result()

    path = folder / f"{device}.sqlite"
    if dies is not None:
        run(live(MortalSpool(path, dies), 1))
    run(live(MortalSpool(path), 2))
    return ingest


def merged(plan: Plan, ingests: list[NaiveIngest]) -> Answer:
    """What the cloud's fragment makes of the rows of all devices."""
    fragment = Fragment(plan.graph, plan.cloud)
    parts: list[tuple[str, Batch]] = []
    for ingest in ingests:
        for channel, rows in ingest.rows.items():
            columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], [], []]
            batch = Batch(*columns)
            if channel in (DEAD_LETTERS, LATE):
                parts.append((channel, batch))
            else:
                fragment.feed(channel, batch)
    fragment.advance(plan.channels[0].id, END_OF_TIME)
    parts += [(sink, batch) for sink, batches in fragment.take().batches.items() for batch in batches]
    return answer_of(plan.graph, parts)


def wanted() -> Answer:
    graph = plan_of("cloud").graph
    source: Any = graph["readings"].operator
    splits = {
        split.name: readings(device)
        for device in DEVICES
        for split in source.source.open(device, "readings", Reading)
    }
    return interpret(graph, {"readings": splits}, {"readings": 0})


def check(found: Answer, want: Answer) -> None:
    assert len(want.sinks["table"]) > 20
    assert {letter[0] for letter in want.dead} == {"readings", "levels"}
    assert want.late
    check_equal(found, want)


@pytest.mark.parametrize("seed", range(4))
def test_partials_of_two_agents_over_a_bad_network_are_what_one_step_gives(tmp_path: Path, seed: int) -> None:
    plan = plan_of()
    assert plan.channels[0].id == "levels_partial"
    troubles = Troubles(lose=0.2, double=0.2, delay=0.15, cut=0.03, seed=seed)
    ingests = [sent(plan, tmp_path, device, troubles) for device in DEVICES]
    rows = sum(len(ingest.rows["levels_partial"]) for ingest in ingests)
    assert rows < len(readings("north"))
    check(merged(plan, ingests), wanted())


def test_a_kill_at_every_write_loses_and_doubles_no_partial(tmp_path: Path) -> None:
    plan = plan_of()
    counting = MortalSpool(tmp_path / "whole.sqlite")
    settings = replace(SETTINGS, device="north")
    assert run(agent_of(plan, counting, MemoryNet(NaiveIngest(plan)), settings).run())
    south, want = sent(plan, tmp_path, "south", Troubles()), wanted()
    assert counting.done > 10
    for writes in range(1, counting.done + 1):
        folder = tmp_path / str(writes)
        folder.mkdir()
        north = sent(plan, folder, "north", Troubles(), dies=writes)
        check(merged(plan, [north, south]), want)
