"""Sources that promise no time before 1970: what breaks the promise is a dead letter at its birth."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from geartrain import Flow, Record, Table
from geartrain.errors import ConfigError
from geartrain.planning import make_plan
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.runtime.splits import SplitTracker
from geartrain.source import Batch
from geartrain.testing import TestingSource, run_flow
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.directory import CsvDirectory
from geartrain_devices.http_poll import HttpPoll
from geartrain_devices.json_lines import JsonLines
from geartrain_devices.mqtt_topic import MqttTopic
from geartrain_devices.simulated import SimulatedSensor
from tests.edge.agents import agent_of, run, until
from tests.edge.network import MemoryNet, NaiveIngest


class Plain(Record):
    n: int


class Numbers(SimulatedSensor[Plain]):
    def make(self, random: random.Random, number: int, device: str) -> Plain:
        return Plain(number)


class Modern(TestingSource[Plain]):
    since_1970 = True


def test_a_record_before_1970_moves_nothing_where_the_source_says_that_there_is_none() -> None:
    tracker = SplitTracker("rows", "d1", 5, None, since_1970=True)
    times = [-1, 0, -(10**15), END_OF_TIME, 9, 3]
    batch, late, rejected = tracker.observe(Batch([Plain(n) for n in range(6)], times, range(6), 6))
    assert (batch.times, [letter.event_time for letter in late]) == ([0, 9], [3])
    assert [(letter.event_time, letter.origin.number) for letter in rejected] == [
        (-1, 0),
        (-(10**15), 2),
        (None, 3),
    ]
    assert rejected[0].reason == (
        "event time is 1969-12-31T23:59:59.999999Z, but its source says that it has none before 1970"
    )
    assert (tracker.before_1970, tracker.quarantined, tracker.watermark) == (2, 0, 4)
    alone = SplitTracker("rows", "d1", 5, None, since_1970=True)
    alone.observe(Batch([Plain(1)], [-1], [0], 1))
    assert alone.watermark == START_OF_TIME


def test_a_file_that_is_said_to_be_modern_keeps_its_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("at,n\n1969-12-31T23:00:00Z,1\n1970-01-01T00:00:00Z,2\n2026-01-01T00:00:00Z,3\n")
    taken = {}
    for since_1970 in (False, True):
        source = CsvReplay[Plain](path=str(path), time_column="at", since_1970=since_1970)
        flow = Flow("f")
        flow.source("rows", source, out=Plain).sink("all", Table("t"))
        results = run_flow(flow)
        taken[since_1970] = [value.n for _, value in results.tables["all"]]
        assert [letter.step for letter in results.dead_letters] == ["rows"] * since_1970
    assert taken == {False: [1, 2, 3], True: [2, 3]}


def test_what_says_so_and_what_cannot_know() -> None:
    assert not CsvReplay[Plain](time_column="at").since_1970
    assert JsonLines[Plain](since_1970=True).since_1970
    assert CsvDirectory[Plain](since_1970=True).since_1970
    assert HttpPoll[Plain]().since_1970
    assert MqttTopic[Plain]().since_1970
    assert Numbers().since_1970
    assert not Numbers(start="1969-12-31T23:59:59Z").since_1970
    assert not Numbers(start="yesterday").since_1970  # `open` says what is wrong


def test_a_device_cannot_take_the_promise_back() -> None:
    flow = Flow("f")
    flow.source("rows", Numbers(), out=Plain).sink("all", Table("t"))
    with pytest.raises(ConfigError, match="start would change whether there are records before 1970"):
        flow.graph().with_options({"rows": {"start": "1960-01-01T00:00:00Z"}})
    changed: Any = flow.graph().with_options({"rows": {"start": "1990-01-01T00:00:00Z"}})["rows"].operator
    assert changed.source.start == "1990-01-01T00:00:00Z"


def test_an_agent_counts_them(tmp_path: Path) -> None:
    flow = Flow("fleet")
    items = [(-5, Plain(1)), (7, Plain(2)), (-3, Plain(3))]
    flow.source("rows", Modern(items=items), out=Plain).sink("all", Table("t"))
    plan = make_plan(flow.graph(), "edge")
    ingest = NaiveIngest(plan)
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest))

    async def story() -> None:
        task = asyncio.create_task(agent.run())
        await until(lambda: len(ingest.rows["_dead_letters"]) == 2 and len(ingest.rows["rows"]) == 1)
        agent.stop()
        await task

    run(story())
    assert agent.status().counters["records_before_1970"] == 2
