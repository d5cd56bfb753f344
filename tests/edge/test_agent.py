"""The agent end to end: nothing lost, nothing doubled, through a bad network and every restart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from geartrain import Context, Flow, Table
from geartrain.errors import ConfigError, SourceError, SpoolError, StepError
from geartrain.planning import make_plan
from geartrain.ports import SpoolCommit
from geartrain.records.event_time import END_OF_TIME, SECOND_US
from geartrain.source import Batch, Reject, Source, Split
from geartrain.testing import TestingSource
from geartrain.wire.limits import Limits
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.flows import Reading, Running, expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest, Troubles


def test_a_bounded_run_sends_all_and_finishes(tmp_path: Path) -> None:
    plan = plan_of(items(100))
    ingest = NaiveIngest(plan)
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest))
    assert agent.status().state == "starting"
    assert run(agent.run())
    assert ingest.sorted_rows() == expected(plan)
    assert set(ingest.watermarks.values()) == {END_OF_TIME}
    assert max(ingest.counts) <= SETTINGS.records_max
    status = agent.status()
    assert (status.state, status.finished, status.ended, status.connected) == ("finished", True, True, False)
    assert (status.records_read, status.spool_bytes) == (100, 0)
    assert status.acked_seq == status.spooled_seq == ingest.seq == len(ingest.counts)
    assert status.rejected == len(ingest.rows["_dead_letters"]) > 0
    assert status.late == len(ingest.rows["_late"]) > 0
    assert status.epoch == ingest.epoch.hex()


@pytest.mark.parametrize("cut", ["edge", "cloud"])
def test_every_cut_sends_its_own_channels(tmp_path: Path, cut: str) -> None:
    plan = plan_of(items(60), cut)
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest)).run())
    assert ingest.sorted_rows() == expected(plan)


@pytest.mark.parametrize("seed", range(12))
def test_a_bad_network_changes_nothing(tmp_path: Path, seed: int) -> None:
    plan = plan_of(items(120, seed))
    ingest = NaiveIngest(plan)
    troubles = Troubles(
        lose=0.1 + seed / 60, double=0.2, delay=0.15, cut=0.03 if seed % 2 else 0.0, seed=seed
    )
    net = MemoryNet(ingest, troubles)
    agent = agent_of(plan, tmp_path / "spool.sqlite", net)
    assert run(agent.run())
    assert ingest.sorted_rows() == expected(plan)
    assert ingest.doubles > 0
    assert ingest.gaps > 0
    assert agent.status().counters["batches_sent_again"] > 0


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_every_write_is_invisible(tmp_path: Path, after: bool) -> None:
    plan = plan_of(items(70))
    counting = MortalSpool(tmp_path / "whole.sqlite")
    assert run(agent_of(plan, counting, MemoryNet(NaiveIngest(plan))).run())
    assert counting.done > 10
    for writes in range(1, counting.done + 1):
        path, ingest = tmp_path / f"{writes}.sqlite", NaiveIngest(plan)

        async def live(store: MortalSpool, receiver: NaiveIngest, seed: int) -> None:
            agent = agent_of(plan, store, MemoryNet(receiver), seed=seed)
            task = asyncio.create_task(agent.run())
            await asyncio.wait([task])
            if not isinstance(task.exception(), KilledError):
                assert task.result()

        run(live(MortalSpool(path, writes, after=after), ingest, 1))
        run(live(MortalSpool(path), ingest, 2))
        assert ingest.sorted_rows() == expected(plan)
        assert ingest.watermarks["totals"] == END_OF_TIME


def test_a_finished_agent_started_again_has_nothing_to_do(tmp_path: Path) -> None:
    plan = plan_of(items(30))
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest)).run())
    came = (ingest.seq, ingest.doubles)  # on a slow machine the timer has sent some again
    again = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest))
    assert run(again.run())
    assert (ingest.seq, ingest.doubles, again.status().records_read) == (*came, 30)


def test_stop_ends_cleanly_and_the_next_life_goes_on(tmp_path: Path) -> None:
    plan = plan_of(items(1_000))  # far more than it reads before it hears of the stop
    ingest = NaiveIngest(plan)

    async def stopped() -> bool:
        agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest))
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().spooled_seq > 6)
        agent.stop()
        finished = await task
        assert agent.status().state == "stopped"
        assert 0 < agent.status().records_read < 1_000
        return finished

    assert run(stopped()) is False
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest), seed=2).run())
    assert ingest.sorted_rows() == expected(plan)


def test_a_full_spool_blocks_the_sources_until_acks_come(tmp_path: Path) -> None:
    plan = plan_of(items(300))
    ingest = NaiveIngest(plan)
    ingest.silent = True
    settings = replace(SETTINGS, spool_bytes_max=6_000)

    async def story() -> int:
        agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest), settings)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().state == "blocked")
        blocked = agent.status()
        await asyncio.sleep(0.1)
        assert agent.status().spooled_seq == blocked.spooled_seq
        assert agent.status().records_read == blocked.records_read < 300
        ingest.silent = False
        assert await task
        assert agent.status().counters["blocked"] >= 1
        return blocked.spool_bytes

    held = run(story())
    assert 6_000 <= held < 12_000  # the cap, and at most one commit above it
    assert ingest.sorted_rows() == expected(plan)


def test_stop_ends_an_agent_that_is_blocked(tmp_path: Path) -> None:
    plan = plan_of(items(300))
    ingest = NaiveIngest(plan)
    ingest.silent = True

    async def story() -> bool:
        settings = replace(SETTINGS, spool_bytes_max=3_000)
        agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest), settings)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().state == "blocked")
        agent.stop()
        return await task

    assert run(story()) is False


def test_a_spool_of_another_cut_is_refused(tmp_path: Path) -> None:
    given = items(40)
    path = tmp_path / "spool.sqlite"
    plan = plan_of(given, "cloud")
    with pytest.raises(KilledError):
        run(agent_of(plan, MortalSpool(path, 6), MemoryNet(NaiveIngest(plan))).run())
    other = replace(plan_of(given), whole=None)  # the former cut cannot be planned, to run until state comes
    agent = agent_of(other, path, MemoryNet(NaiveIngest(other)))
    with pytest.raises(
        SpoolError, match=r"another cut of flow fleet \(.*totals comes to it\), .*new state folder"
    ):
        run(agent.run())
    assert (agent.status().state, agent.status().finished) == ("failed", False)
    assert "another cut" in agent.status().reason


class Scripted(Source[Reading]):
    """Splits that play a list of polls, then have nothing; an exception in it is raised."""

    bounded: ClassVar[bool] = False
    in_order: ClassVar[bool] = True

    def __init__(self, *polls: Batch | Exception, names: Sequence[str] = ("x",), slow: bool = False) -> None:
        self._polls, self._names, self.slow, self.closed = list(polls), names, slow, 0

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        return [_ScriptedSplit(self, name) for name in self._names]

    def next(self, position: int) -> Batch:
        found = self._polls.pop(0) if self._polls else Batch([], [], [], position)
        if isinstance(found, Exception):
            raise found
        return found


class _ScriptedSplit:
    out_of_orderness_us = 0

    def __init__(self, source: Scripted, name: str) -> None:
        self._source, self.name = source, name

    async def read(self, position: int, limit: int) -> Batch:
        if self._source.slow:
            await asyncio.sleep(3_600)
        return self._source.next(position)

    async def close(self) -> None:
        self._source.closed += 1


def test_a_live_source_commits_at_once_when_idle_and_runs_until_stopped(tmp_path: Path) -> None:
    polls = [Batch([Reading("s1", 1.0)], [SECOND_US * n], [n], n + 1) for n in range(3)]
    source = Scripted(*polls)
    plan = plan_of([], source=source)
    ingest = NaiveIngest(plan)

    async def story() -> bool:
        agent = agent_of(
            plan, tmp_path / "spool.sqlite", MemoryNet(ingest), replace(SETTINGS, interval_ms=60_000)
        )
        task = asyncio.create_task(agent.run())
        await until(lambda: len(ingest.rows["readings"]) == 3)
        assert agent.status().watermarks["readings"] == 2 * SECOND_US
        agent.stop()
        return await task

    assert run(story()) is False
    assert source.closed == 1


def test_stop_does_not_wait_long_for_a_source_that_is_long_at_a_read(tmp_path: Path) -> None:
    source = Scripted(slow=True)
    plan = plan_of([], source=source)

    async def story() -> bool:
        settings = replace(SETTINGS, stop_ms=50)
        agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(NaiveIngest(plan)), settings)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().state == "running")
        agent.stop()
        finished = await task
        assert agent.status().state == "stopped"
        return finished

    assert run(story()) is False
    assert source.closed == 1


@pytest.mark.parametrize("error", [SourceError("the sensor is gone"), ZeroDivisionError("a defect")])
def test_an_error_of_a_source_stops_the_agent_and_closes_all(tmp_path: Path, error: Exception) -> None:
    source = Scripted(Batch([Reading("s1", 1.0)], [SECOND_US], [0], 1), error)
    plan = plan_of([], source=source)
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(NaiveIngest(plan)))
    with pytest.raises(SourceError, match=str(error)):
        run(agent.run())
    assert agent.status().state == "failed"
    assert str(error) in agent.status().reason
    assert source.closed == 1
    again = agent_of(plan_of([], source=Scripted()), tmp_path / "spool.sqlite", MemoryNet(NaiveIngest(plan)))

    async def opens() -> None:
        task = asyncio.create_task(again.run())
        await until(lambda: again.status().state == "running")
        again.stop()
        await task

    run(opens())
    assert again.status().state == "stopped"


def test_an_error_of_the_spool_stops_the_agent(tmp_path: Path) -> None:
    class Broken(MortalSpool):
        async def commit(self, change: SpoolCommit) -> None:
            if change.positions:
                raise SpoolError("the disk is full")
            await super().commit(change)

    plan = plan_of(items(50))
    with pytest.raises(SpoolError, match="the disk is full"):
        run(agent_of(plan, Broken(tmp_path / "spool.sqlite"), MemoryNet(NaiveIngest(plan))).run())


def test_two_splits_of_one_name_are_refused(tmp_path: Path) -> None:
    plan = plan_of([], source=Scripted(names=("x", "x")))
    with pytest.raises(SourceError, match="two splits are named 'x'"):
        run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(NaiveIngest(plan))).run())


def test_more_splits_than_a_header_holds_are_refused(tmp_path: Path) -> None:
    plan = plan_of([], source=Scripted(names=tuple(f"x{n}" for n in range(5))))
    settings = replace(SETTINGS, limits=Limits(names_max=4))
    with pytest.raises(ConfigError, match="more than 4 splits or channels"):
        run(agent_of(plan, tmp_path / "s.sqlite", MemoryNet(NaiveIngest(plan)), settings).run())


def test_a_task_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    class Refusing(Running):
        def on_start(self, ctx: Context[Any, Any]) -> None:
            raise ValueError("no model file")

    flow = Flow("fleet")
    source: Source[Reading] = TestingSource(items=items(5))
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    readings.key_by("sensor").process("totals", Refusing()).sink("sums", Table("sums"))
    plan = make_plan(flow.graph(), "edge")
    with pytest.raises(StepError, match=r"step 'totals': Refusing\.on_start raised ValueError: no model"):
        run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(NaiveIngest(plan))).run())


def test_a_device_without_splits_says_nothing_of_their_source_and_finishes(tmp_path: Path) -> None:
    """Another device may have the source: its end is not this one's to tell."""
    plan = plan_of([], source=Scripted(names=()))
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest)).run())
    assert ingest.counts == [0]
    assert ingest.last_header is not None
    assert ingest.last_header.watermarks == ingest.last_header.source_watermarks == {}


def test_a_split_without_records_still_ends_the_channels_clocks(tmp_path: Path) -> None:
    plan = plan_of([])
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest)).run())
    assert ingest.counts == [0, 0]
    assert set(ingest.watermarks.values()) == {END_OF_TIME}


def test_the_reason_of_a_reject_is_bounded(tmp_path: Path) -> None:
    given: list[Any] = [Reject(0, "x" * 1_000_000, b"raw", None)]
    plan = plan_of(given)
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest)).run())
    ((letter, *_),) = ingest.rows["_dead_letters"]
    assert letter.reason == "x" * 2_000


def test_the_newest_positions_travel_with_the_last_batch(tmp_path: Path) -> None:
    plan = plan_of(items(50))
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest)).run())
    assert ingest.last_header is not None
    at = ingest.last_header.positions["readings", "d1"]
    assert (at.position, at.ended) == (50, True)

    async def kept() -> Any:
        spool = SqliteSpool(tmp_path / "spool.sqlite")
        image = await spool.open("d1", "fleet", b"unused!!")
        await spool.close()
        return image

    assert run(kept()).positions == ingest.last_header.positions
