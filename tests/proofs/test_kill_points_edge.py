"""Every effect of an agent is the last one once, where it says hello, drops rows, or begins a new epoch.

The spool is a real one and is killed before and after each of its transactions, the network before and after
each publish. Beside the enumeration over the simulated world.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from geartrain.ports import (
    Connection,
    Incoming,
    Rewrite,
    SpoolCommit,
    SpooledBatch,
    SpoolImage,
    SpoolTip,
    StateSize,
)
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import SETTINGS, KilledError, agent_of, run, until
from tests.edge.flows import Row, expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest
from tests.edge.test_policies import balance, stored

R = TypeVar("R")

PLAN = plan_of(items(40))
WHOLE = expected(PLAN)
FEW = replace(SETTINGS, records_max=8)
POINTS_MAX = 400


@dataclass
class Doom:
    """Counts effects, and is the end from the `number`-th on: whatever the dead process still tries fails."""

    number: int | None
    count: int = 0

    @property
    def struck(self) -> bool:
        """Whether it came to that."""
        return self.number is not None and self.count >= self.number

    def point(self) -> None:
        """Right before or right after an effect."""
        self.count += 1
        if self.struck:
            raise KilledError


class DoomedSpool:
    """`SpoolStore`."""

    def __init__(self, path: Path, doom: Doom) -> None:
        self._spool, self._doom = SqliteSpool(path), doom

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        return await self._around(self._spool.open(device, flow, fresh_epoch))

    async def commit(self, change: SpoolCommit) -> None:
        await self._around(self._spool.commit(change))

    async def cells(self, step: str, keys: Sequence[bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        return await self._spool.cells(step, keys, limit)

    def kept(self) -> Mapping[str, StateSize]:
        return self._spool.kept()

    async def trim(self, through_seq: int) -> None:
        await self._around(self._spool.trim(through_seq))

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        return await self._around(self._spool.renew(epoch, rewrite, change))

    async def _around(self, effect: Coroutine[Any, Any, R]) -> R:
        try:
            self._doom.point()
        except KilledError:
            effect.close()
            raise
        done = await effect
        self._doom.point()
        return done

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        return await self._spool.read(after_seq, limit)

    async def close(self) -> None:
        await self._spool.close()


class DoomedConnection:
    """`Connection`."""

    def __init__(self, connection: Connection, doom: Doom) -> None:
        self._connection, self._doom = connection, doom
        self.subscribe = connection.subscribe

    async def publish(self, topic: str, payload: bytes) -> None:
        self._doom.point()
        await self._connection.publish(topic, payload)
        self._doom.point()

    def incoming(self) -> AsyncIterator[Incoming]:
        return self._connection.incoming()


class DoomedNet:
    """`Net`."""

    def __init__(self, net: MemoryNet, doom: Doom) -> None:
        self._net, self._doom = net, doom

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[DoomedConnection]:
        async with self._net.connect(client_id) as connection:
            yield DoomedConnection(connection, self._doom)


@dataclass(frozen=True)
class Scene:
    """How a run begins, and what must hold when it has ended. begin: given the spool's path, makes ingest."""

    settings: AgentSettings
    begin: Callable[[Path], NaiveIngest]
    check: Callable[[NaiveIngest, Path], None]
    deaf_publishes: int = 0
    """So many publishes are lost at first, so that the spool fills."""


def enumerate_kills(tmp_path: Path, scene: Scene) -> int:
    """Kill at the first point, the second, and so on, until a run has fewer; returns how many there were."""
    for number in range(1, POINTS_MAX):
        path = tmp_path / f"{number}" / "spool.sqlite"
        path.parent.mkdir()
        ingest = scene.begin(path)
        first = Doom(number)
        try:
            assert run(_life(path, ingest, scene, first, 1), 30)
        except KilledError:
            assert run(_life(path, ingest, scene, Doom(None), 2), 30)
        scene.check(ingest, path)
        shutil.rmtree(path.parent)
        if not first.struck:
            return number - 1
    raise AssertionError(f"more than {POINTS_MAX} points")


async def _life(path: Path, ingest: NaiveIngest, scene: Scene, doom: Doom, seed: int) -> bool:
    net = MemoryNet(ingest, swallow=lambda header: len(net.published) <= scene.deaf_publishes)
    agent = agent_of(PLAN, DoomedSpool(path, doom), DoomedNet(net, doom), scene.settings, seed)
    return await agent.run()


def filled(path: Path, settings: AgentSettings) -> bytes:
    """Have an agent that nobody hears fill a spool; returns its epoch."""
    net = MemoryNet(NaiveIngest(PLAN), swallow=lambda header: True)
    agent = agent_of(PLAN, path, net, settings)

    async def story() -> bytes:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended)
        agent.stop()
        await task
        return bytes.fromhex(agent.status().epoch)

    epoch: bytes = run(story())
    return epoch


def policy_settings(policy: Policy) -> AgentSettings:
    return replace(FEW, policy=policy, spool_bytes_max=1_500, downsample_keep=3)


def test_where_a_fresh_spool_asks_where_its_device_stands(tmp_path: Path) -> None:
    """Another epoch was open: the hello is offered an ordinal, and the keyed state is made again."""

    def begin(path: Path) -> NaiveIngest:
        ingest = NaiveIngest(PLAN)

        async def former() -> None:
            agent = agent_of(PLAN, path.with_name("lost.sqlite"), MemoryNet(ingest), FEW, 9)
            task = asyncio.create_task(agent.run())
            await until(lambda: ingest.seq > 3)
            agent.stop()
            await task

        run(former())
        return ingest

    def check(ingest: NaiveIngest, path: Path) -> None:
        assert (ingest.ordinal, len(ingest.closed)) == (2, 1)
        for channel, rows in WHOLE.items():
            came: list[Row] = ingest.sorted_rows()[channel]
            assert [row for at, row in enumerate(came) if row not in came[:at]] == rows
            assert (
                len(came) - len(rows) <= 2 * FEW.records_max
            )  # of the commit that the lost spool had sent in part

    assert enumerate_kills(tmp_path, Scene(FEW, begin, check)) > 40


@pytest.mark.parametrize("policy", [Policy.DROP_NEWEST, Policy.DROP_OLDEST, Policy.DOWNSAMPLE])
def test_where_a_full_spool_drops(tmp_path: Path, policy: Policy) -> None:
    dropped: list[int] = []

    def check(ingest: NaiveIngest, path: Path) -> None:
        assert (ingest.ordinal, ingest.closed) == (1, [])
        dropped.append(balance(ingest, stored(path), WHOLE))

    scene = Scene(policy_settings(policy), lambda path: NaiveIngest(PLAN), check, deaf_publishes=9)
    assert enumerate_kills(tmp_path, scene) > 30
    assert sum(dropped) > 0


@pytest.mark.parametrize("policy", list(Policy))
def test_where_a_copied_spool_begins_a_new_epoch(tmp_path: Path, policy: Policy) -> None:
    settings, original = policy_settings(policy), tmp_path / "original.sqlite"
    if policy is Policy.BLOCK:
        settings = replace(settings, spool_bytes_max=1 << 20)
    epoch = filled(original, settings)

    def begin(path: Path) -> NaiveIngest:
        shutil.copy(original, path)
        ingest = NaiveIngest(PLAN)
        ingest.epoch, ingest.ordinal = epoch, 1
        ingest.seq, ingest.digest = 10_000, b"another history."
        return ingest

    def check(ingest: NaiveIngest, path: Path) -> None:
        assert (ingest.ordinal, ingest.closed) == (2, [epoch])
        assert stored(path)["epochs_minted"] == 1
        dropped = balance(ingest, stored(path), WHOLE)
        assert (dropped == 0) == (policy is Policy.BLOCK)

    assert enumerate_kills(tmp_path, Scene(settings, begin, check)) > 20
