"""A process's access to its node's medium: the `Disk` on which ingest keeps its log.

Guarantees: every call of a dead process is refused. A call takes time, and may fail as the node's faults
say. A kill strikes before an effect, in the middle of a write, or after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from geartrain.errors import DiskError
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.trace import short_digest
from geartrain_simulation.machine.world import Process

T = TypeVar("T")


class SimDisk:
    """`geartrain.ports.Disk` of one process."""

    def __init__(self, process: Process, platter: Platter, faults: Faults | None = None) -> None:
        self._process, self._platter, self._own = process, platter, faults
        self._random = process.random("disk")

    @property
    def _faults(self) -> Faults:
        return self._own if self._own is not None else self._process.node.faults

    async def write(self, name: str, data: bytes) -> None:
        """Create or replace; a kill between the halves leaves the first."""

        def put() -> None:
            self._refuse(self._faults.refuses_write(self._random), name)
            self._platter.put(name, data[: len(data) // 2])
            self._process.point("disk.write half", name)
            self._platter.put(name, data)

        await self._do("disk.write", name, put, f"{len(data)} {short_digest(data)}")

    async def fsync(self, name: str) -> None:
        """Make durable."""

        def sync() -> None:
            if self._faults.refuses_sync(self._random):
                self._platter.fail_sync(name)
                self._refuse("fsync reports an error", name)
            self._platter.sync(name)

        if pause_s := self._faults.sync_pause_s(self._random):
            await asyncio.sleep(pause_s)
        await self._do("disk.fsync", name, sync)

    async def rename(self, old: str, new: str) -> None:
        """Rename; durable after `fsync(new)`."""
        await self._do("disk.rename", new, lambda: self._platter.rename(old, new), f"from {old}")

    async def read(self, name: str) -> bytes:
        """The whole content."""
        return await self._do("disk.read", name, lambda: self._platter.read(name))

    async def remove(self, name: str) -> None:
        """Delete where it exists."""
        await self._do("disk.remove", name, lambda: self._platter.remove(name))

    async def list(self, prefix: str = "") -> list[str]:
        """Names that start with `prefix`, sorted."""
        return await self._do("disk.list", prefix, lambda: self._platter.matching(prefix))

    async def _do(self, what: str, name: str, effect: Callable[[], T], detail: str = "") -> T:
        self._process.point(what, f"{name} {detail}")
        try:
            await self._process.pause(self._random, self._faults)
        except asyncio.CancelledError:
            if self._random.random() < 0.5:
                # What was handed over is not taken back because nobody waits for it any more; nor does
                # anybody hear that it failed, so that the cancellation stays one.
                with suppress(DiskError):
                    effect()
            raise
        if self._random.random() < self._faults.disk_error:
            self._process.point("disk.error", what)
            raise DiskError(f"{name}: the disk reports an error")
        result = effect()
        self._process.point(f"{what} done", name)
        return result

    def _refuse(self, reason: str, name: str) -> None:
        if reason:
            self._process.point("disk.error", reason)
            raise DiskError(f"{name}: {reason}")
