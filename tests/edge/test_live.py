"""Live sources: a split that is silent holds nobody up, and a record from the future moves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.planning import make_plan
from geartrain.ports import SplitProgress
from geartrain.records.event_time import END_OF_TIME, SECOND_US, START_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.reader import open_splits
from geartrain.runtime.splits import FUTURE_US_MAX, SplitTracker
from geartrain.source import Batch, Reject, Source, Split
from geartrain.testing import FakeClock
from geartrain_devices.file_replay import ReplaySplit
from geartrain_devices.json_lines import JsonLines
from geartrain_edge.sources.intake import Intake
from geartrain_edge.spool.backlog import Counters
from tests.edge.agents import agent_of, run, until
from tests.edge.flows import Reading
from tests.edge.network import MemoryNet, NaiveIngest

NOW = 1_700_000_000 * SECOND_US


def tracker_of(bound_us: int = 0) -> SplitTracker:
    return SplitTracker("readings", "d1", bound_us, None)


def poll(*times: int) -> Batch:
    return Batch([Reading("s", 1.0)] * len(times), times, range(len(times)), len(times))


def test_an_idle_split_follows_the_clock_in_steps_and_never_back() -> None:
    tracker = tracker_of(bound_us=7)
    assert tracker.watermark == START_OF_TIME
    tracker.idle(NOW, SECOND_US)
    assert tracker.watermark == NOW - SECOND_US - 7
    tracker.idle(NOW + SECOND_US // 2, SECOND_US)
    assert tracker.watermark == NOW - SECOND_US - 7
    tracker.idle(NOW + SECOND_US, SECOND_US)
    assert tracker.watermark == NOW - 7
    tracker.idle(0, SECOND_US)
    tracker.idle(-(10**15), SECOND_US)
    assert tracker.watermark == NOW - 7
    batch, late, rejected = tracker.observe(poll(NOW + 5, NOW - 8), NOW + SECOND_US)
    assert (batch.times, [letter.event_time for letter in late], rejected) == ([NOW + 5], [NOW - 8], [])


def test_the_end_of_time_is_not_reached_by_a_clock() -> None:
    tracker = tracker_of()
    tracker.idle(END_OF_TIME * 2, SECOND_US)
    assert tracker.watermark == END_OF_TIME - 1


def test_a_record_from_the_future_is_refused_and_moves_nothing() -> None:
    tracker = tracker_of()
    far, near = NOW + FUTURE_US_MAX + 1, NOW + FUTURE_US_MAX
    batch, late, rejected = tracker.observe(poll(NOW, far, near, END_OF_TIME), NOW)
    assert (batch.times, late, tracker.watermark, tracker.quarantined) == ([NOW, near], [], near, 1)
    assert rejected[0].reason.startswith("quarantined: event time is 2023-11-14T22:18:20.000001Z, ")
    assert "in the future" in rejected[0].reason
    assert "it is not in the years 100 to 2199: give an int of micro" in rejected[1].reason
    assert tracker_of().observe(poll(far))[0].times == [far]  # whoever replays has no clock to compare with
    restored = SplitTracker("readings", "d1", 0, SplitProgress(3, near))
    assert restored.watermark == near


def test_dead_letters_of_one_read_are_in_the_order_of_their_numbers() -> None:
    given = poll(NOW, END_OF_TIME, NOW, END_OF_TIME)
    rejects = [Reject(2, "no record", b""), Reject(5, "none", b"")]
    mixed = replace(given, numbers=[0, 1, 3, 4], rejects=rejects)
    _, _, rejected = tracker_of().observe(mixed, NOW)
    assert [letter.origin.number for letter in rejected] == [1, 2, 4, 5]


class _Asking:
    """A database that is asked, and not there at first: what it holds is of an hour ago."""

    name, out_of_orderness_us, live_clock, is_behind = "cloud-1/rows", 0, True, True

    def __init__(self) -> None:
        self.there: list[int] = []

    async def read(self, position: int, limit: int) -> Batch:
        times = self.there[position : position + limit]
        numbers = range(position, position + len(times))
        return Batch([Reading("s", 1.0)] * len(times), times, numbers, position + len(times))

    async def close(self) -> None:
        """Nothing to release."""


class Rows(Source[Reading]):
    split: ClassVar[_Asking]

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [self.split]


def test_one_that_is_behind_does_not_follow_the_clock() -> None:
    split = Rows.split = _Asking()
    flow, clock = Flow("fleet"), FakeClock(NOW)
    flow.source("rows", Rows(), out=Reading).sink("levels", Table("levels"))
    (reader,) = open_splits(flow.graph(), "cloud-1", clock)

    async def story() -> None:
        clock.advance(60)
        assert not (await reader.read(10)).rows
        assert reader.watermark == START_OF_TIME
        split.there = [NOW - 3_600 * SECOND_US, NOW - 1_800 * SECOND_US]
        found = await reader.read(10)
        assert (found.batch.times, found.late) == (split.there, [])
        clock.advance(60)
        await reader.read(10)
        assert reader.watermark == split.there[-1]
        split.is_behind = False
        await reader.read(10)
        assert reader.watermark == NOW + 119 * SECOND_US

    asyncio.run(story())


class _Live:
    """A sensor that speaks, or is silent, by the wall clock."""

    out_of_orderness_us = 0
    live_clock = True

    def __init__(self, name: str, speaks: bool) -> None:
        self.name, self._speaks = name, speaks

    async def read(self, position: int, limit: int) -> Batch:
        if not self._speaks:
            return Batch([], [], [], position)
        await asyncio.sleep(0.005)
        now_us = time.time_ns() // 1_000
        if position % 10 == 3:
            now_us += 3_600 * SECOND_US
        return Batch([Reading(self.name, 1.0)], [now_us], [position], position + 1)

    async def close(self) -> None:
        """Nothing to release."""


class Sensors(Source[Reading]):
    pausable: ClassVar[bool] = False
    idle_after_ms: ClassVar[int] = 30

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [_Live("talker", True), _Live("door", False)]


def test_a_silent_door_holds_up_nobody(tmp_path: Path) -> None:
    flow = Flow("fleet")
    flow.source("readings", Sensors(), out=Reading).sink("levels", Table("levels"))
    plan = make_plan(flow.graph(), "edge")
    ingest = NaiveIngest(plan)
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest))
    start_us = time.time_ns() // 1_000

    async def story() -> None:
        task = asyncio.create_task(agent.run())
        await until(lambda: ingest.watermarks["readings"] > start_us + 200_000)
        assert ingest.watermarks["readings"] < time.time_ns() // 1_000
        await until(lambda: len(ingest.rows["_dead_letters"]) > 2)
        agent.stop()
        assert not await task

    run(story())
    counters = agent.status().counters
    assert counters["records_quarantined"] == counters["rows._dead_letters"] > 2
    assert "rows._late" not in counters
    assert all(letter.reason.startswith("quarantined:") for letter, *_ in ingest.rows["_dead_letters"])


class Sleeper(Source[Reading]):
    """A source whose second read takes as long as the test says."""

    bounded: ClassVar[bool] = True

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.name, self.out_of_orderness_us = "s", 0

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [self]

    async def read(self, position: int, limit: int) -> Batch:
        if position:
            self._clock.advance(self._seconds)
        return Batch([Reading("s", 1.0)], [position], [position], position + 1, ended=position == 1)

    async def close(self) -> None:
        """Nothing to release."""


@pytest.mark.parametrize(("seconds", "warned"), [(9.9, 0), (12.0, 1)])
def test_a_read_that_holds_up_the_others_is_said(
    seconds: float, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock, counters = FakeClock(), Counters({})
    flow = Flow("fleet")
    flow.source("readings", Sleeper(clock, seconds), out=Reading).sink("levels", Table("levels"))
    plan = make_plan(flow.graph(), "edge")
    intake = Intake(plan, "d1", 10, 10, clock)
    fragment = Fragment(plan.graph, plan.edge)
    intake.restore({})

    async def story() -> None:
        while not intake.ended:
            await intake.read(fragment, counters, 10)

    asyncio.run(story())
    assert counters.totals.get("reads_slow", 0) == warned
    said = "slow_read: source readings, split s: read took 12 s, and the other splits waited; "
    assert [record.getMessage().startswith(said) for record in caplog.records] == [True] * warned
    assert all("an empty Batch" in record.getMessage() for record in caplog.records)


def test_a_slow_read_of_a_source_that_comes_with_geartrain_blames_no_author(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path = FakeClock(), tmp_path / "readings.jsonl"
    path.write_text('{"time": 1, "sensor": "s", "level": 1.0}\n')
    read = ReplaySplit.read

    async def read_slowly(split: ReplaySplit, position: int, limit: int) -> Batch:
        clock.advance(12)
        return await read(split, position, limit)

    monkeypatch.setattr(ReplaySplit, "read", read_slowly)
    flow = Flow("fleet")
    flow.source("readings", JsonLines(path=str(path)), out=Reading).sink("levels", Table("levels"))
    plan = make_plan(flow.graph(), "edge")
    intake, counters = Intake(plan, "d1", 10, 10, clock), Counters({})
    intake.restore({})
    asyncio.run(intake.read(Fragment(plan.graph, plan.edge), counters, 10))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("slow_read: source readings")
    assert "a large file" in warning
    assert "Batch" not in warning
