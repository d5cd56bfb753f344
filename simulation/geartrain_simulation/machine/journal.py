"""Transactions on a simulated disk: each is one checksummed record at the end of a file, synced, or nothing.

The simulated stores use it in place of SQLite's write-ahead log. Guarantees: a transaction that returned
is durable; one that a crash cut off is there afterwards as a whole or not at all. What is found at the
opening is made durable before anything rests on it. A record with torn bytes ends the file: what follows
it is dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from geartrain.errors import DiskError, GeartrainError
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.world import Process

T = TypeVar("T")

_HEAD = struct.Struct("<I8s")
"""Length of a record and the beginning of its blake2b, little-endian; its bytes follow."""


def framed(record: bytes) -> bytes:
    """A record as it stands in the file."""
    return _HEAD.pack(len(record), _checksum(record)) + record


def records_in(data: bytes) -> list[bytes]:
    """The records at the beginning of `data` that are whole."""
    records, at = [], 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        record = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(record) < length or not length or _checksum(record) != checksum:
            break
        records.append(record)
        at += _HEAD.size + length
    return records


def _checksum(record: bytes) -> bytes:
    return hashlib.blake2b(record, digest_size=8).digest()


@dataclass(slots=True)
class Tail:
    """Where the next record of a file begins: what follows there was never finished."""

    at: int = 0


class Journal:
    """One store's file, as one process writes it."""

    def __init__(
        self, process: Process, what: str, platter: Platter, tail: Tail, faults: Faults | None = None
    ) -> None:
        """`what`: the store's name; its points of the trace begin with it."""
        self._process, self._what, self._platter, self._own = process, what, platter, faults
        self._random = process.random(f"{what}/journal")
        self._name, self._tail = f"{what}.journal", tail

    def recover(self) -> list[bytes]:
        """The records, made durable by a copy: a synced one of what only the page cache may hold."""
        old = self._platter.read(self._name) if self._platter.matching(self._name) else b""
        records = records_in(old)
        data = b"".join(map(framed, records))
        fresh = f"new {self._name}"
        self._write(lambda: self._platter.put(fresh, data))
        self._sync(fresh)
        self._platter.rename(fresh, self._name)
        self._sync(self._name)
        self._tail.at = len(data)
        return records

    def append(self, record: bytes) -> None:
        """Write a record and make it durable; raises `DiskError`, and then it may be there or not."""
        data = framed(record)
        half = len(data) // 2
        self._write(lambda: self._platter.put_at(self._name, self._tail.at, data[:half]))
        self._process.point(f"{self._what}.write half")
        self._write(lambda: self._platter.put_at(self._name, self._tail.at + half, data[half:]))
        self._process.point(f"{self._what}.write done")
        self._sync(self._name)
        self._process.point(f"{self._what}.fsync done")
        self._tail.at += len(data)

    def _write(self, effect: Callable[[], None]) -> None:
        reason = self._faults.refuses_write(self._random)
        if reason:
            self._process.point("disk.error", f"{self._what} {reason}")
            raise DiskError(f"{self._name}: {reason}")
        effect()

    def _sync(self, name: str) -> None:
        if self._faults.refuses_sync(self._random):
            self._platter.fail_sync(name)
            self._process.point("disk.error", f"{self._what} fsync")
            raise DiskError(f"{name}: fsync reports an error")
        self._platter.sync(name)

    @property
    def _faults(self) -> Faults:
        return self._own if self._own is not None else self._process.node.faults


class Transactions:
    """The calls of one process to one store: each takes its time; they are carried out in the order made."""

    def __init__(
        self, process: Process, what: str, faults: Faults | None, error: type[GeartrainError]
    ) -> None:
        self._process, self._what, self._own, self._error = process, what, faults, error
        self._random = process.random(what)
        self._turn = asyncio.Lock()
        self.is_open = False

    async def run(self, name: str, effect: Callable[[], T], detail: str = "", *, syncs: bool = False) -> T:
        """Carry out `effect` as one transaction; raises the store's error when the store is not open."""
        faults = self._own if self._own is not None else self._process.node.faults
        self._process.point(f"{self._what}.{name}", detail)
        async with self._turn:
            if not self.is_open and name != "open":
                raise self._error(f"the {self._what} is not open")
            try:
                await self._process.pause(self._random, faults)
                if syncs and (pause_s := faults.sync_pause_s(self._random)):
                    await asyncio.sleep(pause_s)
            except asyncio.CancelledError:
                if self._random.random() < 0.5:
                    # What was handed over is not taken back; that it fails, nobody waits any more to hear.
                    with suppress(self._error):
                        self._carry_out(effect)
                raise
            result = self._carry_out(effect)
        self._process.point(f"{self._what}.{name} done")
        return result

    def _carry_out(self, effect: Callable[[], T]) -> T:
        try:
            return effect()
        except DiskError as error:
            raise self._error(f"the {self._what} cannot be written: {error}") from None
