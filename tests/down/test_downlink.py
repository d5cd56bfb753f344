"""Many outboxes over one connection: apps come and go, and one that cannot be used stops no other."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.adapters.system import SystemClock
from geartrain.testing import SeededRandomness
from geartrain_cloud.downlink import downlink as downlink_module
from geartrain_cloud.downlink.downlink import Downlink
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_edge.spool.spool import SqliteSpool
from tests.down.broker import MemoryBroker
from tests.down.world import SETTINGS, World, plan_of
from tests.edge.agents import run
from tests.edge.network import NaiveIngest
from tests.waiting import WAIT_S


class Fleet:
    """Apps a.1, b.1 and so on, each with an outbox and an agent on a device of its own; and a downlink."""

    def __init__(self, folder: Path, *letters: str) -> None:
        self.worlds: dict[str, World] = {}
        for letter in letters:
            plan, name = plan_of(), f"{letter}.1"
            plan = msgspec.structs.replace(plan, graph=plan.graph.named(name))
            self.worlds[letter] = World(folder / letter, plan, (letter,), flow=name)
        ingests = {letter: NaiveIngest(world.plan) for letter, world in self.worlds.items()}
        self.broker = MemoryBroker(ingests)
        self.downlink = Downlink(
            self.broker,
            SystemClock(),
            SeededRandomness(1),
            lambda flow, path: SqliteOutbox(path, flow),
            SETTINGS,
        )

    def write(self, letter: str, *numbers: int) -> None:
        for number in numbers:
            self.worlds[letter].write([(letter, number)], (number + 1) * 1_000_000)

    def want(self, *letters: str) -> None:
        worlds = [self.worlds[letter] for letter in letters]
        self.downlink.follow({world.flow: world.outbox for world in worlds})

    def state(self, letter: str) -> str:
        return str(self.said(letter).get("state", "gone"))

    def said(self, letter: str) -> dict[str, Any]:
        return self.downlink.status().get(f"{letter}.1", {})

    def numbers(self, letter: str) -> list[int]:
        return self.worlds[letter].numbers()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            agents = [
                group.create_task(world.agent(SqliteSpool(world.folder / "spool.sqlite"), self.broker).run())
                for world in self.worlds.values()
            ]
            downlink = group.create_task(self.downlink.run())
            yield
            for agent in agents:
                agent.cancel()
            self.downlink.stop()
            await downlink
        assert self.downlink.status() == {}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - it comes over a broker
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downlink_module, "RETRY_S", 0.05)


def test_apps_come_and_go_over_one_connection_while_others_are_sent(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "a", "b")

    async def story() -> None:
        fleet.write("a", 1, 2)
        fleet.write("b", 3)
        fleet.want("a")
        async with fleet.running():
            await until(lambda: fleet.numbers("a") == [1, 2])
            assert fleet.numbers("b") == []
            fleet.want("a", "b")
            await until(lambda: fleet.numbers("b") == [3])
            fleet.want("b")
            await until(lambda: fleet.state("a") == "gone")
            fleet.write("a", 4)
            fleet.write("b", 5)
            await until(lambda: fleet.numbers("b") == [3, 5])
            assert fleet.numbers("a") == [1, 2]
            fleet.broker.die()
            fleet.want("a", "b")
            await until(lambda: fleet.numbers("a") == [1, 2, 4])
            # Two agents and one sender, however many apps it sends.
            await until(lambda: len(fleet.broker.live) == 3)
            await until(lambda: fleet.said("a")["waiting"] == {})
            assert fleet.said("a")["counters"]["batches_sent"] >= 3

    run(story(), WAIT_S)


def test_an_outbox_that_cannot_be_used_is_said_and_stops_no_other(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "a", "damaged", "missing", "taken")

    async def story() -> None:
        for letter in ("a", "damaged", "taken"):
            fleet.write(letter, 1)
        damaged, taken = fleet.worlds["damaged"].outbox, fleet.worlds["taken"].outbox
        whole = damaged.read_bytes()
        damaged.write_bytes(b"no database at all, but long enough to be looked at" * 40)
        lock = os.open(f"{taken}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        fleet.want("a", "damaged", "missing", "taken")
        async with fleet.running():
            await until(lambda: fleet.numbers("a") == [1])
            await until(lambda: fleet.state("missing") == "missing")
            await until(lambda: fleet.state("damaged") == fleet.state("taken") == "failed")
            assert "is damaged, or not a file of ours" in fleet.said("damaged")["why"]
            assert "one is enough, end that one" in fleet.said("taken")["why"]
            assert "Spark makes it" in fleet.said("missing")["why"]
            assert not fleet.worlds["missing"].outbox.parent.exists()  # that is Spark's to make
            fleet.write("a", 2)
            fleet.write("missing", 7)
            os.close(lock)
            damaged.write_bytes(whole)
            await until(lambda: [fleet.numbers(one) for one in fleet.worlds] == [[1, 2], [1], [7], [1]])
            assert {fleet.state(one) for one in fleet.worlds} == {"sending"}

    run(story(), WAIT_S)


def test_an_outbox_that_another_program_locks_holds_up_no_other(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "a", "locked")

    async def story() -> None:
        fleet.write("locked", 1)
        fleet.write("a", 1)
        fleet.want("a", "locked")
        with closing(sqlite3.connect(fleet.worlds["locked"].outbox, isolation_level=None)) as other:
            async with fleet.running():
                other.execute("BEGIN IMMEDIATE")
                for number in range(2, 6):
                    fleet.write("a", number)
                await until(lambda: fleet.numbers("a") == [1, 2, 3, 4, 5])
                await until(lambda: fleet.said("a")["waiting"] == {})
                other.execute("ROLLBACK")
                await until(lambda: fleet.numbers("locked") == [1])

    run(story(), WAIT_S)
    assert fleet.numbers("a") == [1, 2, 3, 4, 5]


def test_an_outbox_that_is_removed_and_made_anew_under_its_sender_is_sent(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "a")

    async def story() -> None:
        fleet.write("a", 1)
        fleet.want("a")
        async with fleet.running():
            await until(lambda: fleet.numbers("a") == [1])
            world = fleet.worlds["a"]
            for path in world.outbox.parent.glob("outbox.sqlite*"):
                path.unlink()
            await until(lambda: fleet.state("a") == "missing")
            world.written = 0
            fleet.write("a", 2)
            await until(lambda: fleet.numbers("a") == [1, 2])

    run(story(), WAIT_S)
    assert len({line["_id"] for line in fleet.worlds["a"].lines()}) == 2
