"""The way down from the outbox to a device's sink: each row once, whatever network and processes do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from geartrain_edge.agent.agent import Agent
from geartrain_edge.sinks.line_files import FolderFiles
from geartrain_edge.spool.spool import SqliteSpool
from tests.down.broker import MemoryBroker
from tests.down.world import Valve, World, plan_of
from tests.edge.agents import KilledError, MortalSpool, run
from tests.edge.network import NaiveIngest, Troubles

ROUGH = Troubles(lose=0.15, double=0.15, delay=0.15, cut=0.01)


def filled(folder: Path, *, timed: bool = False, actuator: Valve | None = None, count: int = 12) -> World:
    """A world whose outbox holds `count` micro-batches of two commands and the end."""
    world = World(folder, plan_of(timed=timed, actuator=actuator))
    for number in range(count):
        rows = [("d1", 2 * number), ("d1", 2 * number + 1)]
        world.write(rows, (2 * number + 2) * 1_000_000)
    world.end()
    return world


async def to_the_end(world: World, broker: MemoryBroker, agent: Agent) -> None:
    """Run sender and agent until the agent has finished."""
    store, sender = world.sender(broker)
    await store.open()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(sender.run_alone())
        try:
            assert await agent.run()
        finally:
            sender.stop()
            await sending
            await store.close()


def broker_for(world: World, troubles: Troubles | None = None) -> MemoryBroker:
    return MemoryBroker({"d1": NaiveIngest(world.plan)}, troubles)


@pytest.mark.parametrize("seed", range(12))
def test_each_row_is_in_the_file_once_and_in_order_over_a_rough_network(tmp_path: Path, seed: int) -> None:
    world = filled(tmp_path)
    broker = broker_for(world, Troubles(ROUGH.lose, ROUGH.double, ROUGH.delay, ROUGH.cut, seed))
    run(to_the_end(world, broker, world.agent(SqliteSpool(tmp_path / "spool.sqlite"), broker)), 60)
    assert world.numbers() == list(range(24))
    assert len({line["_id"] for line in world.lines()}) == 24


def test_state_and_timers_below_a_down_channel_follow_its_watermark(tmp_path: Path) -> None:
    world = filled(tmp_path, timed=True, count=3)
    broker = broker_for(world)
    run(to_the_end(world, broker, world.agent(SqliteSpool(tmp_path / "spool.sqlite"), broker)))
    # Sums of 0 to 5, and after each second that has passed its sum once more, by the timer.
    assert world.numbers() == [0, 0, 1, -1, 3, -3, 6, -6, 10, -10, 15, -15]


async def until_killed(work: Coroutine[Any, Any, None]) -> bool:
    """Whether it came to its end, and was not killed before."""
    try:
        await work
    except KilledError:
        return False
    except BaseExceptionGroup as group:
        if group.subgroup(KilledError) is None:
            raise
        return False
    return True


class MortalFiles(FolderFiles):
    """Files whose process dies before or right after the n-th append."""

    def __init__(self, folder: Path, appends: int, *, after: bool) -> None:
        super().__init__(folder)
        self._left, self._after = appends, after

    async def append(self, path: str, at: int, data: bytes) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise KilledError
        await super().append(path, at, data)
        if self._left == 0:
            raise KilledError


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_an_agent_that_dies_at_any_write_of_its_spool_loses_and_doubles_nothing(
    tmp_path: Path, after: bool, timed: bool
) -> None:
    want: list[int] | None = None
    for writes in range(60):
        world = filled(tmp_path / str(writes), timed=timed, count=3)
        spool = tmp_path / str(writes) / "spool.sqlite"
        died = _with_a_death(world, MortalSpool(spool, writes or None, after=after), None, spool)
        if want is None:
            want = world.numbers()
            assert len(want) == (12 if timed else 6)
        assert world.numbers() == want, writes
        if writes and not died:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("after", [False, True])
def test_an_agent_that_dies_at_any_write_of_a_sinks_file_writes_each_row_once(
    tmp_path: Path, after: bool
) -> None:
    for appends in range(1, 30):
        world = filled(tmp_path / str(appends), count=4)
        spool = tmp_path / str(appends) / "spool.sqlite"
        files = MortalFiles(world.state, appends, after=after)
        died = _with_a_death(world, SqliteSpool(spool), files, spool)
        assert world.numbers() == list(range(8)), appends
        if not died:
            return
    raise AssertionError("it never came to its end")


def _with_a_death(world: World, store: Any, files: Any, spool: Path) -> bool:
    """Run an agent that may die, and then one that does not; whether the first died."""
    broker = broker_for(world)
    agent = world.agent(store, broker, files)
    if run(until_killed(to_the_end(world, broker, agent))):
        return False
    run(to_the_end(world, broker, world.agent(SqliteSpool(spool), broker)))
    return True
