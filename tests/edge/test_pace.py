"""How much one commit gathers, and who has a turn while it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.adapters.system import SystemClock
from geartrain.planning import make_plan
from geartrain.ports import SpooledBatch
from geartrain.runtime.fragment import Fragment
from geartrain.source import Batch, Source, Split
from geartrain_edge.agent.batch_size import COMMIT_BYTES_MAX, BatchSize
from geartrain_edge.sources.intake import Intake
from geartrain_edge.spool.backlog import Counters
from tests.edge.agents import SETTINGS, agent_of, run
from tests.edge.network import MemoryNet, NaiveIngest


def _batches(size: int) -> list[SpooledBatch]:
    return [SpooledBatch(1, b"", bytes(size), b"", 1, ())]


def test_commits_grow_by_doubling_up_to_what_the_settings_allow() -> None:
    pace, seen = BatchSize(10_000), []
    for _ in range(6):
        seen.append(pace.records)
        pace.committed(pace.records, _batches(pace.records))
    assert seen == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]
    assert BatchSize(10).records == 10


def test_large_records_make_small_commits_and_small_ones_large_commits_again() -> None:
    pace = BatchSize(10_000)
    pace.committed(1_000, _batches(10 * COMMIT_BYTES_MAX))
    assert 90 <= pace.records <= 100
    pace.committed(0, _batches(10 * COMMIT_BYTES_MAX))
    assert 90 <= pace.records <= 100
    pace.committed(1, _batches(2 * COMMIT_BYTES_MAX))
    assert pace.records == 1
    pace.committed(1, [])
    assert pace.records == 2


class Three(Source[int]):
    """Three splits without an end."""

    def open(self, device: str, step: str, out: type[Any]) -> Sequence[Split]:
        return [_Endless(f"{device}/{step}/{number}") for number in range(3)]


class _Endless:
    out_of_orderness_us = 0

    def __init__(self, name: str) -> None:
        self.name = name

    async def read(self, position: int, limit: int) -> Batch:
        numbers = range(position, position + limit)
        return Batch(list(numbers), list(numbers), numbers, position + limit)

    async def close(self) -> None:
        """Nothing to release."""


def test_a_split_that_a_commit_had_no_room_for_is_read_first_in_the_next() -> None:
    flow = Flow("turns")
    flow.source("numbers", Three(), out=int).sink("out", Table("out"))
    plan = make_plan(flow.graph(), "edge")
    intake = Intake(plan, "d", 10, 100, SystemClock())
    intake.restore({})
    fragment, counters = Fragment(plan.graph, plan.edge), Counters({})
    for _ in range(6):
        assert asyncio.run(intake.read(fragment, counters, 15)) == 15
    positions = [at.position for at in intake.moved().values()]
    assert sum(positions) == 90
    assert max(positions) - min(positions) <= 10


READS = 50


class Noted(Source[int]):
    """One split whose reads never wait, and which notes the turns that another task had had at each."""

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    turns: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def open(self, device: str, step: str, out: type[Any]) -> Sequence[Split]:
        return [_Noted(f"{device}/{step}", self.turns, self.seen)]


class _Noted(_Endless):
    def __init__(self, name: str, turns: list[int], seen: list[int]) -> None:
        super().__init__(name)
        self._turns, self._seen = turns, seen

    async def read(self, position: int, limit: int) -> Batch:
        self._seen.append(self._turns[0])
        return replace(await super().read(position, limit), ended=len(self._seen) >= READS)


def test_all_else_has_its_turn_between_two_reads_of_one_commit(tmp_path: Path) -> None:
    flow, turns, seen = Flow("fleet"), [0], list[int]()
    flow.source("numbers", Noted(turns=turns, seen=seen), out=int).sink("out", Table("out"))
    plan = make_plan(flow.graph(), "edge")
    settings = replace(SETTINGS, records_max=1_000, read_max=10, interval_ms=60_000)
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(NaiveIngest(plan)), settings)

    async def beside() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def story() -> None:
        other = asyncio.create_task(beside())
        assert await agent.run()
        other.cancel()

    run(story())
    assert len(seen) == READS
    assert len(set(seen)) == READS
    assert agent.status().batches_spooled <= 3


def test_a_read_gives_fewer_rows_where_the_flow_is_slow_and_more_where_it_is_not() -> None:
    now, slow = 0.0, 0.02

    class Told(SystemClock):
        def monotonic_s(self) -> float:
            return now

    def takes_its_time(number: int) -> int:
        nonlocal now
        now += slow
        return number

    flow = Flow("slow")
    flow.source("numbers", Three(), out=int).map(takes_its_time).sink("out", Table("out"))
    plan = make_plan(flow.graph(), "edge")
    intake = Intake(plan, "d", 1_000, 100, Told())
    intake.restore({})
    fragment, counters = Fragment(plan.graph, plan.edge), Counters({})

    def reads() -> list[int]:
        return [asyncio.run(intake.read(fragment, counters, 1_000)) for _ in range(3)]

    assert reads() == [1_000, 75, 75]  # 25 rows of each split take half a second
    slow = 5.0
    assert reads()[1:] == [3, 3]
    slow = 0.0
    assert reads() == [1 + 2 + 4, 8 + 16 + 32, 64 + 128 + 256]
