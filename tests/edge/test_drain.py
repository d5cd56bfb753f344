"""Draining: nothing more is read, all that was is sent, and no source is said to have ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.records.event_time import END_OF_TIME
from geartrain_edge.settings import Policy
from tests.edge.agents import SETTINGS, agent_of, run, until
from tests.edge.flows import expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest

ROWS = 2_000


def test_what_was_read_arrives_and_the_next_agent_goes_on_behind_it(tmp_path: Path) -> None:
    plan, spool = plan_of(items(ROWS)), tmp_path / "spool.sqlite"
    ingest = NaiveIngest(plan)
    first = agent_of(plan, spool, MemoryNet(ingest))

    async def drained() -> None:
        task = asyncio.create_task(first.run())
        await until(lambda: first.status().records_read > 100)
        ingest.silent = True
        first.drain()
        await until(lambda: first.status().state == "draining")
        read = first.status().records_read
        await asyncio.sleep(0.1)
        assert not task.done()  # not before all is acked
        assert first.status().records_read == read < ROWS
        ingest.speak()
        assert not await task

    run(drained())
    status = first.status()
    assert (status.state, status.finished, status.ended) == ("drained", False, False)
    assert status.acked_seq == status.spooled_seq == ingest.seq
    assert max(ingest.watermarks.values()) < END_OF_TIME
    letters = len(ingest.rows["_dead_letters"])
    assert 0 < letters < len(expected(plan)["_dead_letters"])

    second = agent_of(plan, spool, MemoryNet(ingest))
    assert run(second.run())
    assert ingest.sorted_rows() == expected(plan)
    assert min(ingest.watermarks.values()) == END_OF_TIME


def test_an_agent_that_drains_from_its_start_reads_nothing(tmp_path: Path) -> None:
    plan, spool = plan_of(items(ROWS)), tmp_path / "spool.sqlite"
    ingest = NaiveIngest(plan)
    first = agent_of(plan, spool, MemoryNet(ingest))

    async def stopped() -> None:
        task = asyncio.create_task(first.run())
        await until(lambda: first.status().records_read > 100)
        ingest.silent = True
        await until(lambda: first.status().spooled_seq > first.status().acked_seq + 2)
        first.stop()
        await task

    run(stopped())
    read = first.status().records_read
    ingest.speak()
    for _ in range(2):  # asked again, as by a parent that has started anew
        again = agent_of(plan, spool, MemoryNet(ingest))
        again.drain()
        assert not run(again.run())
        assert (again.status().state, again.status().records_read) == ("drained", read)
        assert again.status().acked_seq == again.status().spooled_seq == ingest.seq


def test_a_source_that_has_ended_is_finished_and_not_drained(tmp_path: Path) -> None:
    plan = plan_of(items(50))
    ingest = NaiveIngest(plan)
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest))

    async def story() -> None:
        ingest.silent = True
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().state == "draining")
        agent.drain()
        ingest.speak()
        assert await task

    run(story())
    assert agent.status().state == "finished"
    assert ingest.sorted_rows() == expected(plan)


@pytest.mark.parametrize("policy", [Policy.BLOCK, Policy.DROP_NEWEST])
def test_a_full_spool_drains(tmp_path: Path, policy: Policy) -> None:
    plan = plan_of(items(ROWS))
    ingest = NaiveIngest(plan)
    settings = replace(SETTINGS, spool_bytes_max=8_000, policy=policy)
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest), settings)

    async def story() -> None:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().records_read > 0)
        ingest.silent = True
        await until(lambda: agent.status().spool_bytes > 7_000)
        agent.drain()
        await until(lambda: agent.status().state == "draining")
        ingest.speak()
        await task

    run(story())
    assert agent.status().state in ("drained", "finished")
    assert agent.status().acked_seq == agent.status().spooled_seq == ingest.seq
