"""A disk whose un-synced writes are lost at power loss, torn or out of order: what ingest keeps its log on.

`Platter` is the medium and outlives processes; `SimDisk` is one process's way to it. Guarantees: a kill
leaves everything written so far (the page cache survives it); power loss leaves of the un-synced an arbitrary
choice. Model: a file's content is durable at its fsync; each change of a name (create, rename, remove) is
durable at the fsync of that name, and until then it survives power loss or not, each by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from geartrain.errors import DiskError
from geartrain_simulation.faults import Faults
from geartrain_simulation.trace import short_digest
from geartrain_simulation.world import Process

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _File:
    """content: what a reader sees; durable: what the medium surely holds."""

    content: bytes = b""
    durable: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A change of names: `added` now names `file`, `dropped` names nothing. Either may be empty."""

    added: str
    dropped: str
    file: _File | None

    @property
    def names(self) -> set[str]:
        return {self.added, self.dropped} - {""}

    def apply(self, names: dict[str, _File]) -> None:
        if self.dropped:
            names.pop(self.dropped, None)
        if self.added and self.file is not None:
            names[self.added] = self.file


class Platter:
    """The medium of one node."""

    def __init__(self, random: Random, *, torn: bool = True) -> None:
        self._random, self._torn = random, torn
        self._seen: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._pending: list[_Change] = []
        self.power_losses = 0

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the content of `name`."""
        file = self._seen.get(name)
        if file is None:
            file = self._seen[name] = _File()
            self._pending.append(_Change(name, "", file))
        file.content = data

    def sync(self, name: str) -> None:
        """Make content and name durable, with the earlier changes of names that they rest on."""
        file = self._found(name)
        file.durable = file.content
        names, kept, due = {name}, [], []
        for change in reversed(self._pending):
            if change.names & names:
                names |= change.names
                due.append(change)
            else:
                kept.append(change)
        for change in reversed(due):
            change.apply(self._durable)
        self._pending = kept[::-1]

    def rename(self, old: str, new: str) -> None:
        """Give the file `old` the name `new`."""
        change = _Change(new, old, self._found(old))
        change.apply(self._seen)
        self._pending.append(change)

    def remove(self, name: str) -> None:
        """Delete `name` where it exists."""
        if name in self._seen:
            change = _Change("", name, None)
            change.apply(self._seen)
            self._pending.append(change)

    def read(self, name: str) -> bytes:
        """The content as a reader sees it."""
        return self._found(name).content

    def matching(self, prefix: str = "") -> list[str]:
        """All names that start with `prefix`, sorted."""
        return sorted(name for name in self._seen if name.startswith(prefix))

    def durable(self, name: str) -> bytes | None:
        """What of `name` is sure to survive power loss: its content, or None if its name or a part is not."""
        file = self._durable.get(name)
        shaky = any(name in change.names for change in self._pending)
        return None if file is None or shaky or file.durable != file.content else file.durable

    def power_loss(self) -> None:
        """Lose what was not durable."""
        self.power_losses += 1
        names = dict(self._durable)
        for change in self._pending:
            if self._random.random() < 0.5:
                change.apply(names)
        for file in names.values():
            file.content = file.durable = self._remains(file)
        self._seen, self._durable, self._pending = dict(names), names, []

    def _remains(self, file: _File) -> bytes:
        if file.content == file.durable:
            return file.durable
        kind = self._random.choice(("old", "all", "torn"))
        if kind == "torn" and self._torn and file.content:
            return file.content[: self._random.randrange(len(file.content))]
        return file.content if kind == "all" else file.durable

    def _found(self, name: str) -> _File:
        try:
            return self._seen[name]
        except KeyError:
            raise DiskError(f"{name}: there is no such file") from None


class SimDisk:
    """`geartrain.ports.Disk` of one process."""

    def __init__(self, process: Process, platter: Platter, faults: Faults | None = None) -> None:
        self._process, self._platter = process, platter
        self._faults = faults if faults is not None else Faults()
        self._random = process.random("disk")

    async def write(self, name: str, data: bytes) -> None:
        """Create or replace; a kill between the halves leaves the first."""

        def put() -> None:
            self._platter.put(name, data[: len(data) // 2])
            self._process.point("disk.write half", name)
            self._platter.put(name, data)

        await self._do("disk.write", name, put, f"{len(data)} {short_digest(data)}")

    async def fsync(self, name: str) -> None:
        """Make durable."""
        await self._do("disk.fsync", name, lambda: self._platter.sync(name))

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
                effect()  # what was handed over is not taken back because nobody waits for it any more
            raise
        if self._random.random() < self._faults.disk_error:
            self._process.point("disk.error", what)
            raise DiskError(f"{name}: the disk reports an error")
        result = effect()
        self._process.point(f"{what} done", name)
        return result
