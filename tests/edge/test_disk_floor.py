"""The floor of a disk: below it a spool grows no more, its policy strikes, and all goes on by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.records.event_time import END_OF_TIME
from geartrain_edge.agent.status import DISK_IS_LOW
from geartrain_edge.settings import Policy
from geartrain_edge.spool.disk_floor import DiskFloor, free_bytes
from tests.edge.agents import SETTINGS, agent_of, run, until
from tests.edge.flows import expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest

PLAN = plan_of(items(250))
CAP = 1 << 20


class Shared:
    """A disk that others fill and free."""

    def __init__(self, path: Path, free: int) -> None:
        self.free = free
        self.floor = DiskFloor(path, 1_000, lambda folder: self.free)

    def now(self, bytes_max: int) -> int:
        return self.floor.now(bytes_max)


def test_below_the_floor_a_spool_may_fill_the_file_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "spool.sqlite"
    file.write_bytes(bytes(8_000))
    disk = Shared(file, 1_000)
    assert disk.now(CAP) == CAP
    disk.free = 999
    assert (disk.now(CAP), disk.now(5_000)) == (7_000, 5_000)
    assert DiskFloor(tmp_path / "no" / "spool.sqlite", 2**62).now(CAP) == CAP
    assert 0 < free_bytes(tmp_path) < 2**62
    assert DiskFloor(file, 2**62).now(CAP) == 7_000


@pytest.mark.parametrize("policy", [Policy.BLOCK, Policy.DROP_NEWEST, Policy.DROP_OLDEST])
def test_a_disk_that_others_have_filled_stops_no_agent_for_good(tmp_path: Path, policy: Policy) -> None:
    path = tmp_path / "spool.sqlite"
    disk, ingest = Shared(path, 0), NaiveIngest(PLAN)
    settings = replace(SETTINGS, policy=policy, spool_bytes_max=CAP)
    is_free = False
    net = MemoryNet(ingest, swallow=lambda header: not is_free)
    agent = agent_of(PLAN, path, net, settings, room=disk)

    async def story() -> None:
        nonlocal is_free
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().alarm == DISK_IS_LOW)
        if policy is Policy.BLOCK:
            await until(lambda: agent.status().state == "blocked")
        else:
            await until(
                lambda: any(name.startswith(("dropped.", "shed.")) for name in agent.status().counters)
            )
        assert path.stat().st_size < 200_000
        disk.free = 10_000
        if policy is Policy.BLOCK:  # by itself: nobody acks anything yet
            await until(lambda: agent.status().alarm == "")
        is_free = True
        assert await task

    run(story(), 60)
    status = agent.status()
    assert status.counters["disk_low"] == 1
    for channel, rows in expected(PLAN).items():
        assert len(ingest.rows[channel]) + ingest.dropped[channel] == len(rows)
        if policy is Policy.BLOCK:
            assert ingest.dropped[channel] == 0
    assert set(ingest.watermarks.values()) == {END_OF_TIME}


def test_a_spool_that_is_empty_again_goes_on_below_the_floor(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", NaiveIngest(PLAN)
    agent = agent_of(
        PLAN, path, MemoryNet(ingest), replace(SETTINGS, spool_bytes_max=CAP), room=Shared(path, 0)
    )
    assert run(agent.run(), 60), "what acks free within the file is room enough"
    assert {channel: len(rows) for channel, rows in expected(PLAN).items()} == {
        channel: len(ingest.rows[channel]) for channel in expected(PLAN)
    }
