"""The two transactional stores in memory: what was committed survives a crash, what was not vanishes.

`SpoolBook` and `LedgerBook` are what the disk of a node keeps; `SimSpoolStore` and `SimLedgerStore` are one
process's way to them. Guarantees of each transaction: all of it or nothing, in the order of the calls; a kill
may strike before it, or after it and before its caller hears. They refuse what the SQLite forms refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from geartrain.errors import GeartrainError, LedgerError, SpoolError
from geartrain.ports import (
    AckCursor,
    ClosedEpoch,
    Entry,
    EntryKind,
    LedgerChange,
    QuarantinedBatch,
    Rewrite,
    SplitProgress,
    SpoolCommit,
    SpooledBatch,
    SpoolImage,
    SpoolTip,
    StoredSchema,
    StoredSegment,
)
from geartrain.wire.envelope import DIGEST_BYTES
from geartrain_simulation.faults import Faults
from geartrain_simulation.world import Process

T = TypeVar("T")

DIGESTS_KEPT = 1_024


class Transactions:
    """The calls of one process to one store: each takes its time; they are carried out in the order made."""

    def __init__(self, process: Process, what: str, faults: Faults, error: type[GeartrainError]) -> None:
        self._process, self._what, self._faults, self._error = process, what, faults, error
        self._random = process.random(what)
        self._turn = asyncio.Lock()
        self.is_open = False

    async def run(self, name: str, effect: Callable[[], T], detail: str = "") -> T:
        """Carry out `effect` as one transaction; raises the store's error when the store is not open."""
        self._process.point(f"{self._what}.{name}", detail)
        async with self._turn:
            if not self.is_open and name != "open":
                raise self._error(f"the {self._what} is not open")
            try:
                await self._process.pause(self._random, self._faults)
            except asyncio.CancelledError:
                if self._random.random() < 0.5:
                    effect()  # what was handed over is not taken back because nobody waits for it any more
                raise
            result = effect()
        self._process.point(f"{self._what}.{name} done")
        return result


class SpoolBook:
    """What one (device, flow) has committed. `on_commit` is told of each commit and `on_renew` of the batches
    of each new epoch once they are durable, `on_trim` of (epoch, through_seq) before a trim.
    """

    def __init__(self) -> None:
        self.device = self.flow = ""
        self.epoch = b""
        self.digest = self.acked_digest = bytes(DIGEST_BYTES)
        self.last_seq = self.acked_seq = 0
        self.batches: dict[int, SpooledBatch] = {}
        self.positions: dict[tuple[str, str], SplitProgress] = {}
        self.state: dict[tuple[str, bytes], bytes] = {}
        self.counters: dict[str, int] = {}
        self.owner: Process | None = None
        self.on_trim: Callable[[bytes, int], None] = lambda epoch, through_seq: None
        self.on_commit: Callable[[SpoolCommit], None] = lambda change: None
        self.on_renew: Callable[[Sequence[SpooledBatch]], None] = lambda batches: None

    def image(self) -> SpoolImage:
        """What a store gives when it is opened."""
        spooled_bytes = sum(batch.size for batch in self.batches.values())
        marks = (self.epoch, self.last_seq, self.acked_seq, self.digest, spooled_bytes)
        kept = (dict(self.positions), dict(self.state), dict(self.counters))
        return SpoolImage(*marks, *kept, self.acked_digest)

    def apply(self, change: SpoolCommit) -> None:
        """Write a commit; raises `SpoolError` when its batches do not follow on the last."""
        for seq, batch in enumerate(change.batches, self.last_seq + 1):
            if batch.seq != seq:
                raise SpoolError(f"batch {batch.seq} does not follow on {seq - 1}")
        for batch in change.batches:
            self.batches[batch.seq] = batch
            self.last_seq, self.digest = batch.seq, batch.digest
        for gap in change.gaps:
            if not 1 <= gap.first_seq <= gap.seq <= self.last_seq:
                raise SpoolError(f"a gap from {gap.first_seq} to {gap.seq} leaves what is held")
            replaced = [seq for seq in self.batches if gap.first_seq <= seq <= gap.seq]
            for seq in replaced:
                del self.batches[seq]
            if replaced:
                self.batches[gap.seq] = gap
        self._write_rest(change)
        self.on_commit(change)

    def _write_rest(self, change: SpoolCommit) -> None:
        self.positions.update(change.positions)
        self.counters.update(change.counters)
        for at, value in change.state.items():
            if value is None:
                self.state.pop(at, None)
            else:
                self.state[at] = value

    def trim(self, through_seq: int) -> None:
        """Forget batches up to `through_seq`; raises `SpoolError` when it has no such batch."""
        if through_seq > self.last_seq:
            raise SpoolError(f"cannot trim {through_seq}, the last batch is {self.last_seq}")
        self.on_trim(self.epoch, through_seq)
        if through_seq > self.acked_seq:
            self.acked_seq = through_seq
            self.acked_digest = self.batches[through_seq].digest if through_seq in self.batches else b""
        self.batches = {seq: batch for seq, batch in self.batches.items() if seq > through_seq}

    def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """Begin a new epoch with what `rewrite` makes of each batch; raises `SpoolError` when that is not
        numbered from 1.
        """
        held = [batch for _, batch in sorted(self.batches.items())]
        made = [batch for batch in map(rewrite, [None, *held]) if batch is not None]
        if [batch.seq for batch in made] != list(range(1, len(made) + 1)):
            raise SpoolError("the batches of a new epoch are not numbered from 1")
        self.epoch, self.batches = epoch, {batch.seq: batch for batch in made}
        self.last_seq, self.acked_seq = len(made), 0
        self.digest, self.acked_digest = made[-1].digest, bytes(DIGEST_BYTES)
        self._write_rest(change)
        self.on_renew(made)
        return SpoolTip(self.last_seq, self.digest, sum(batch.size for batch in made))


class SimSpoolStore:
    """`geartrain.ports.SpoolStore` of one process."""

    def __init__(self, process: Process, book: SpoolBook, faults: Faults | None = None) -> None:
        self._process, self._book = process, book
        self._transactions = Transactions(process, "spool", faults or Faults(), SpoolError)

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        """Open or create; raises `SpoolError` for another device or flow, or while it is in use."""

        def take() -> SpoolImage:
            book = self._book
            if book.owner is not None and book.owner.alive and book.owner is not self._process:
                raise SpoolError(f"the spool is in use by {book.owner.name}")
            if book.epoch and (book.device, book.flow) != (device, flow):
                raise SpoolError(f"the spool belongs to device {book.device}, flow {book.flow}")
            if not book.epoch:
                book.device, book.flow, book.epoch = device, flow, fresh_epoch
            book.owner = self._process
            self._transactions.is_open = True
            return book.image()

        return await self._transactions.run("open", take, f"{device} {flow}")

    async def commit(self, change: SpoolCommit) -> None:
        """Write in one durable transaction."""
        detail = f"{len(change.batches)} batches after {self._book.last_seq}"
        await self._transactions.run("commit", lambda: self._book.apply(change), detail)

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        """Up to `limit` committed batches with seq > `after_seq`, in seq order."""

        def found() -> list[SpooledBatch]:
            return [batch for seq, batch in sorted(self._book.batches.items()) if seq > after_seq][:limit]

        return await self._transactions.run("read", found, f"{after_seq} {limit}")

    async def trim(self, through_seq: int) -> None:
        """Delete batches with seq <= `through_seq` and remember it as acked."""
        await self._transactions.run("trim", lambda: self._book.trim(through_seq), str(through_seq))

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """Begin a new epoch in one transaction."""
        return await self._transactions.run(
            "renew", lambda: self._book.renew(epoch, rewrite, change), epoch.hex()
        )

    async def close(self) -> None:
        """Release the store; a second call does nothing."""
        self._transactions.is_open = False
        if self._book.owner is self._process:
            self._book.owner = None


class LedgerBook:
    """What one log's ledger has committed. `on_commit` is told of each change once it is durable."""

    def __init__(self) -> None:
        self.term = 0
        self.entries: dict[tuple[str, str, int], list[Entry]] = {}
        self.cursors: dict[tuple[str, str], AckCursor] = {}
        self.closed: dict[tuple[str, str, bytes], ClosedEpoch] = {}
        self.schemas: dict[tuple[str, str, str], StoredSchema] = {}
        self.quarantined: list[QuarantinedBatch] = []
        self.digests: dict[tuple[str, str, bytes], dict[int, bytes]] = {}
        self.counters: dict[str, int] = {}
        self.segments: dict[str, StoredSegment] = {}
        self.on_commit: Callable[[LedgerChange], None] = lambda change: None

    def all_entries(self) -> list[Entry]:
        """Every entry, by place and number."""
        return [entry for place in sorted(self.entries) for entry in self.entries[place]]

    def apply(self, term: int, change: LedgerChange) -> None:
        """Write a change; raises `LedgerError` for an old term or a number that is taken or left out."""
        if term != self.term:
            raise LedgerError(f"another ingest has taken the ledger (its term is {self.term}, ours {term})")
        following: dict[tuple[str, str, int], int] = {}
        for entry in change.entries:
            place = (entry.flow, entry.channel, entry.partition)
            number = following.get(place, len(self.entries.get(place, ()))) + 1
            if entry.number != number:
                raise LedgerError(f"entry {entry.number} of {place} does not follow on {number - 1}")
            following[place] = number
        for entry in change.entries:
            self.entries.setdefault((entry.flow, entry.channel, entry.partition), []).append(entry)
        self.cursors.update({(cursor.device, cursor.flow): cursor for cursor in change.cursors})
        for schema in change.schemas:
            self.schemas.setdefault((schema.flow, schema.channel, schema.schema_id), schema)
        self.quarantined += change.quarantined
        self.segments.update({segment.name: segment for segment in change.segments})
        self.counters.update(change.counters)
        for one in change.digests:
            kept = self.digests.setdefault((one.device, one.flow, one.epoch), {})
            kept[one.seq] = one.digest
            for seq in [seq for seq in kept if seq <= one.seq - DIGESTS_KEPT]:
                del kept[seq]
        for closed in change.closed_epochs:
            key = (closed.device, closed.flow, closed.epoch)
            self.closed[key] = closed
            self.digests.pop(key, None)
        self.on_commit(change)


class SimLedgerStore:
    """`geartrain.ports.LedgerStore` of one process."""

    def __init__(self, process: Process, book: LedgerBook, faults: Faults | None = None) -> None:
        self._book = book
        self._transactions = Transactions(process, "ledger", faults or Faults(), LedgerError)

    async def open(self) -> int:
        """Open or create, take the fencing term (one above the last) and return it."""

        def take() -> int:
            self._book.term += 1
            self._transactions.is_open = True
            return self._book.term

        return await self._transactions.run("open", take)

    async def commit(self, term: int, change: LedgerChange) -> None:
        """Write in one durable transaction; raises `LedgerError` when `term` is no longer the newest."""
        detail = f"{term}: {len(change.entries)} entries, {len(change.cursors)} cursors"
        await self._transactions.run("commit", lambda: self._book.apply(term, change), detail)

    async def cursors(self) -> list[AckCursor]:
        """Every device's cursor."""
        return await self._read(
            "cursors", lambda: [self._book.cursors[at] for at in sorted(self._book.cursors)]
        )

    async def closed_epochs(self) -> list[ClosedEpoch]:
        """The epochs that a later one has replaced, by device, flow and ordinal."""

        def closed() -> list[ClosedEpoch]:
            return sorted(self._book.closed.values(), key=lambda c: (c.device, c.flow, c.ordinal))

        return await self._read("closed_epochs", closed)

    async def schemas(self) -> list[StoredSchema]:
        """Every schema announced so far, in the order they were stored."""
        return await self._read("schemas", lambda: list(self._book.schemas.values()))

    async def last_entries(self) -> list[Entry]:
        """The newest entry of every (flow, channel, partition)."""
        return await self._read(
            "last_entries", lambda: [es[-1] for _, es in sorted(self._book.entries.items())]
        )

    async def devices(self) -> list[tuple[str, str, str]]:
        """(flow, channel, device) of every ASSIGNED entry."""

        def assigned() -> list[tuple[str, str, str]]:
            entries = self._book.all_entries()
            return sorted((e.flow, e.channel, e.device) for e in entries if e.kind is EntryKind.ASSIGNED)

        return await self._read("devices", assigned)

    async def excluded(self) -> list[tuple[str, str, str]]:
        """(flow, channel, device) of every device whose newest EXCLUDED or READMITTED entry is EXCLUDED."""

        def out() -> list[tuple[str, str, str]]:
            moves = (EntryKind.EXCLUDED, EntryKind.READMITTED)
            entries = [e for e in self._book.all_entries() if e.kind in moves]
            newest = {(e.flow, e.channel, e.device): e.kind for e in entries}
            return sorted(place for place, kind in newest.items() if kind is EntryKind.EXCLUDED)

        return await self._read("excluded", out)

    async def segments(self) -> set[str]:
        """Every file name that an entry names."""
        return await self._read(
            "segments", lambda: {e.segment for e in self._book.all_entries() if e.segment}
        )

    async def digest_at(self, device: str, flow: str, epoch: bytes, seq: int) -> bytes | None:
        """The running digest of an appended batch that is still remembered, else None."""
        return await self._read(
            "digest_at", lambda: self._book.digests.get((device, flow, epoch), {}).get(seq)
        )

    async def counters(self) -> Mapping[str, int]:
        """Totals by name."""
        return await self._read("counters", lambda: dict(self._book.counters))

    async def close(self) -> None:
        """Release the ledger; a second call does nothing."""
        self._transactions.is_open = False

    async def _read(self, name: str, effect: Callable[[], T]) -> T:
        return await self._transactions.run(name, effect)
