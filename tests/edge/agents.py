"""Agents over a real spool and a broker in memory, with settings that make tests quick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain.adapters.system import SystemClock
from geartrain.planning import Plan
from geartrain.ports import (
    Net,
    Rewrite,
    SpoolCommit,
    SpooledBatch,
    SpoolImage,
    SpoolStore,
    SpoolTip,
    StateSize,
)
from geartrain.testing import SeededRandomness
from geartrain_edge.agent.agent import Agent
from geartrain_edge.settings import AgentSettings, UplinkSettings
from geartrain_edge.spool.disk_floor import Room
from geartrain_edge.spool.spool import SqliteSpool
from tests.waiting import WAIT_S

QUICK = UplinkSettings(window=8, resend_ms=40, resend_ms_max=160, backoff_ms=2, backoff_ms_max=20, trim_ms=1)
SETTINGS = AgentSettings("d1", records_max=10, read_max=4, uplink=QUICK)


class KilledError(BaseException):
    """The process is gone."""


class MortalSpool:
    """A spool whose process dies before or right after its n-th durable write."""

    def __init__(self, path: Path, writes: int | None = None, *, after: bool = False) -> None:
        self._spool: SpoolStore = SqliteSpool(path)
        self._writes, self._after = writes, after
        self.done = 0
        self.on_write: Callable[[], object] = lambda: None
        """Called before each."""

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        return await self._spool.open(device, flow, fresh_epoch)

    async def commit(self, change: SpoolCommit) -> None:
        await self._write(lambda: self._spool.commit(change))

    async def trim(self, through_seq: int) -> None:
        await self._write(lambda: self._spool.trim(through_seq))

    async def _write(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.done += 1
        self.on_write()
        dies = self._writes is not None and self.done >= self._writes
        if dies and not self._after:
            raise KilledError
        await write()
        if dies:
            raise KilledError

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        tip: list[SpoolTip] = []

        async def renew() -> None:
            tip.append(await self._spool.renew(epoch, rewrite, change))

        await self._write(renew)
        return tip[0]

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        return await self._spool.read(after_seq, limit)

    async def cells(self, step: str, keys: Sequence[bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        return await self._spool.cells(step, keys, limit)

    def kept(self) -> Mapping[str, StateSize]:
        return self._spool.kept()

    async def close(self) -> None:
        await self._spool.close()


def agent_of(
    plan: Plan,
    store: SpoolStore | Path,
    net: Net,
    settings: AgentSettings = SETTINGS,
    seed: int = 1,
    room: Room | None = None,
) -> Agent:
    """An agent over a store, or over the spool in a file."""
    opened = SqliteSpool(store) if isinstance(store, Path) else store
    return Agent(settings, plan, opened, net, SystemClock(), SeededRandomness(seed), room=room)


def run(work: Coroutine[Any, Any, Any], limit_s: float = WAIT_S) -> Any:
    """Run to the end; a test that hangs fails."""

    async def limited() -> Any:
        async with asyncio.timeout(limit_s):
            return await work

    return asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to come true; `run` bounds the wait."""
    while not condition():  # noqa: ASYNC110 - what is waited for is inside the code under test
        await asyncio.sleep(0.002)
