"""The ledger on a simulated disk: what ingest's one transaction wrote is there after every crash.

`LedgerBook` is what the disk of a log holds, as readers see it; `SimLedgerStore` is one process's way to it.
Guarantees of each transaction: all of it or nothing, in the order of the calls; a kill may strike in the
midst of its write, and after it before its caller hears. It refuses what the SQLite form refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import msgspec

from geartrain.errors import ConfigError, FencedError, LedgerError
from geartrain.ports import (
    AckCursor,
    ClosedEpoch,
    Entry,
    EntryKind,
    HeldSegment,
    LedgerChange,
    QuarantinedBatch,
    QueryProgress,
    ReplacedFile,
    StoredSchema,
    StoredSegment,
)
from geartrain_simulation.faults import Faults
from geartrain_simulation.journal import Journal, Tail, Transactions
from geartrain_simulation.platter import Platter
from geartrain_simulation.world import Process

T = TypeVar("T")

DIGESTS_KEPT = 1_024

_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "take": msgspec.msgpack.Decoder(tuple[int, list[int] | None]),
    "commit": msgspec.msgpack.Decoder(tuple[int, LedgerChange]),
    "retire": msgspec.msgpack.Decoder(tuple[int, list[str], int, StoredSegment | None, dict[str, int]]),
    "forget": msgspec.msgpack.Decoder(list[str]),
}
_encode = msgspec.msgpack.Encoder().encode


class LedgerBook:
    """What one log's ledger has committed. `on_commit` is told of each change once it is durable."""

    def __init__(self, platter: Platter | None = None) -> None:
        """`platter`: the disk that it lies on."""
        self.platter = platter if platter is not None else Platter(Random(0))
        self.tail = Tail()
        self.told = 0
        """Transactions that the hook has heard of."""
        self.is_loading = False
        """Whether what the hook hears of was done before a crash."""
        self.queries: list[QueryProgress] = []
        self.on_commit: Callable[[LedgerChange], None] = lambda change: None
        self._begin()

    def _begin(self) -> None:
        self.term = 0
        self.terms: dict[int, int] = {}
        self.taken: dict[int, tuple[int, ...]] = {}
        self.replaced: dict[str, ReplacedFile] = {}
        self.entries: dict[tuple[str, str, int], list[Entry]] = {}
        self.cursors: dict[tuple[str, str], AckCursor] = {}
        self.closed: dict[tuple[str, str, bytes], ClosedEpoch] = {}
        self.schemas: dict[tuple[str, str, str], StoredSchema] = {}
        self.quarantined: list[QuarantinedBatch] = []
        self.digests: dict[tuple[str, str, bytes], dict[int, bytes]] = {}
        self.counters: dict[str, int] = {}
        """The sums over all ingests of the log."""
        self._counters: dict[int, dict[str, int]] = {}
        self.segments: dict[str, StoredSegment] = {}
        self._done = 0

    def load(self, records: Sequence[bytes]) -> None:
        """Hold what the disk holds; the hook hears of what was made durable before its caller heard."""
        self._begin()
        self.is_loading = True
        for record in records:
            name, _, body = record.partition(b":")
            self.do(name.decode(), _DECODERS[name.decode()].decode(body))
        self.told, self.is_loading = self._done, False

    def do(self, name: str, what: Any) -> Any:
        """Carry out a transaction that is on the disk."""
        hook, self._done = self._done >= self.told, self._done + 1
        self.told = max(self.told, self._done)
        if name == "take":
            return self._take(*what)
        if name == "retire":
            return self._retire(*what)
        if name == "forget":
            for one in what:
                self.replaced.pop(one, None)
            return None
        self._apply(*what)
        if hook:
            self.on_commit(what[1])
        return None

    def all_entries(self) -> list[Entry]:
        """Every entry, by place and number."""
        return [entry for place in sorted(self.entries) for entry in self.entries[place]]

    def check_partitions(self, partitions: int) -> None:
        """Raise `ConfigError` for another number of partitions than before."""
        if self.terms and len(self.terms) != partitions:
            raise ConfigError(f"the ledger has {len(self.terms)} partitions, not {partitions}")

    def _take(self, partitions: int, owned: Sequence[int] | None) -> int:
        self.term += 1
        self.terms = {**dict.fromkeys(range(partitions), 0), **self.terms}
        self.taken[self.term] = tuple(range(partitions)) if owned is None else tuple(owned)
        self.terms.update(dict.fromkeys(self.taken[self.term], self.term))
        return self.term

    def check(self, term: int) -> None:
        """Raise `FencedError` when a later term has a partition of this one."""
        if term not in self.taken or any(self.terms[p] != term for p in self.taken[term]):
            raise FencedError(f"another ingest has taken the ledger (its term is {self.term}, ours {term})")

    def held(self, term: int) -> list[HeldSegment]:
        """The segments that entries of the partitions of `term` name, the oldest first."""
        found: dict[str, list[Entry]] = {}
        for entry in self.all_entries():
            if entry.segment and entry.partition in self.taken[term]:
                found.setdefault(entry.segment, []).append(entry)
        held = [
            HeldSegment(
                self.segments[name],
                *(es[0].flow, es[0].channel, es[0].partition, es[0].number, es[-1].number),
                sum(e.count for e in es),
            )
            for name, es in found.items()
        ]
        return sorted(held, key=lambda h: (h.segment.made_us, h.segment.name))

    def holds(self, term: int, names: Sequence[str]) -> bool:
        """Whether entries of the partitions of `term` name all these segments."""
        return {one.segment.name for one in self.held(term)} >= set(names)

    def _retire(
        self,
        term: int,
        names: Sequence[str],
        now_us: int,
        merged: StoredSegment | None,
        counters: Mapping[str, int],
    ) -> None:
        """Have the entries of segments name `merged`, or nothing."""
        held, rows = {one.segment.name: one for one in self.held(term)}, 0
        for name in names:
            one = held[name]
            place = (one.flow, one.channel, one.partition)
            for at, entry in enumerate(self.entries[place]):
                if entry.segment != name:
                    continue
                self.entries[place][at] = (
                    replace(entry, kind=EntryKind.REMOVED, segment="", first_row=0)
                    if merged is None
                    else replace(entry, segment=merged.name, first_row=entry.first_row + rows)
                )
            rows += one.rows
            size = self.segments.pop(name).size
            self.replaced[name] = ReplacedFile(name, *place, one.last, size, now_us)
        if merged is not None:
            self.segments[merged.name] = merged
        self._count(term, counters)

    def check_change(self, term: int, change: LedgerChange) -> None:
        """Raise `LedgerError` for an old term or a number that is taken or left out."""
        self.check(term)
        following: dict[tuple[str, str, int], int] = {}
        for entry in change.entries:
            place = (entry.flow, entry.channel, entry.partition)
            number = following.get(place, len(self.entries.get(place, ()))) + 1
            if entry.number != number:
                raise LedgerError(f"entry {entry.number} of {place} does not follow on {number - 1}")
            following[place] = number

    def totals(self, term: int) -> dict[str, int]:
        """The counters of the ingest with this term."""
        return self._counters.setdefault(min(self.taken[term], default=0), {})

    def _count(self, term: int, counters: Mapping[str, int]) -> None:
        self.totals(term).update(counters)
        for name in counters:
            self.counters[name] = sum(one.get(name, 0) for one in self._counters.values())

    def _apply(self, term: int, change: LedgerChange) -> None:
        for entry in change.entries:
            self.entries.setdefault((entry.flow, entry.channel, entry.partition), []).append(entry)
        self.cursors.update({(cursor.device, cursor.flow): cursor for cursor in change.cursors})
        for schema in change.schemas:
            self.schemas.setdefault((schema.flow, schema.channel, schema.schema_id), schema)
        self.quarantined += change.quarantined
        self.segments.update({segment.name: segment for segment in change.segments})
        self._count(term, change.counters)
        for one in change.digests:
            kept = self.digests.setdefault((one.device, one.flow, one.epoch), {})
            kept[one.seq] = one.digest
            for seq in [seq for seq in kept if seq <= one.seq - DIGESTS_KEPT]:
                del kept[seq]
        for closed in change.closed_epochs:
            key = (closed.device, closed.flow, closed.epoch)
            self.closed[key] = closed
            self.digests.pop(key, None)


class SimLedgerStore:
    """`geartrain.ports.LedgerStore` of one process."""

    def __init__(self, process: Process, book: LedgerBook, faults: Faults | None = None) -> None:
        self._book = book
        self._journal = Journal(process, "ledger", book.platter, book.tail, faults)
        self._transactions = Transactions(process, "ledger", faults, LedgerError)
        self._term = 0

    def _write(self, name: str, what: Any) -> Any:
        self._journal.append(name.encode() + b":" + _encode(what))
        return self._book.do(name, what)

    async def open(self, partitions: int = 1, owned: Sequence[int] | None = None) -> int:
        """Open or create, take the partitions `owned` under one fencing term, and return it."""

        def take() -> int:
            self._book.load(self._journal.recover())
            self._book.check_partitions(partitions)
            self._term = self._write("take", (partitions, owned))
            self._transactions.is_open = True
            return self._term

        return await self._transactions.run("open", take, syncs=True)

    async def check(self, term: int) -> None:
        """Raise `FencedError` when `term` is no longer the newest of a partition that was taken with it."""
        await self._read("check", lambda: self._book.check(term))

    async def remove_rows(
        self, term: int, names: Sequence[str], now_us: int, counters: Mapping[str, int]
    ) -> None:
        """Make every entry in these segments one without rows, and their files replaced ones."""

        await self._retire("remove_rows", term, names, now_us, None, counters)

    async def merge(
        self, term: int, merged: StoredSegment, names: Sequence[str], now_us: int, counters: Mapping[str, int]
    ) -> bool:
        """Let the entries in these segments name `merged`; False where one of them is no longer named."""
        return await self._retire("merge", term, names, now_us, merged, counters)

    async def _retire(
        self,
        what: str,
        term: int,
        names: Sequence[str],
        now_us: int,
        merged: StoredSegment | None,
        counters: Mapping[str, int],
    ) -> bool:
        def put() -> bool:
            self._book.check(term)
            if not self._book.holds(term, names):
                return False
            self._write("retire", (term, names, now_us, merged, counters))
            return True

        return await self._transactions.run(what, put, f"{term}: {len(names)} segments", syncs=True)

    async def forget_files(self, term: int, names: Sequence[str]) -> None:
        """Forget replaced files, which have been deleted."""

        def forget() -> None:
            self._book.check(term)
            self._write("forget", names)

        await self._transactions.run("forget_files", forget, f"{term}: {len(names)} files", syncs=True)

    async def commit(self, term: int, change: LedgerChange) -> None:
        """Write in one durable transaction; raises `LedgerError` when `term` is no longer the newest."""

        def put() -> None:
            self._book.check_change(term, change)
            self._write("commit", (term, change))

        detail = f"{term}: {len(change.entries)} entries, {len(change.cursors)} cursors"
        await self._transactions.run("commit", put, detail, syncs=True)

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

    async def held_segments(self) -> list[HeldSegment]:
        """Every segment of the partitions taken, the oldest first, then by name."""
        return await self._read("held_segments", lambda: self._book.held(self._term))

    async def replaced_files(self) -> list[ReplacedFile]:
        """Every replaced file of the partitions taken, by name."""

        def found() -> list[ReplacedFile]:
            ours, book = self._book.taken[self._term], self._book
            return [book.replaced[n] for n in sorted(book.replaced) if book.replaced[n].partition in ours]

        return await self._read("replaced_files", found)

    async def queries(self) -> list[QueryProgress]:
        """Every registered query."""
        return await self._read("queries", lambda: list(self._book.queries))

    async def digest_at(self, device: str, flow: str, epoch: bytes, seq: int) -> bytes | None:
        """The running digest of an appended batch that is still remembered, else None."""
        return await self._read(
            "digest_at", lambda: self._book.digests.get((device, flow, epoch), {}).get(seq)
        )

    async def counters(self) -> Mapping[str, int]:
        """Totals by name, of the partitions taken."""
        return await self._read("counters", lambda: dict(self._book.totals(self._term)))

    async def close(self) -> None:
        """Release the ledger; a second call does nothing."""
        self._transactions.is_open = False

    async def _read(self, name: str, effect: Callable[[], T]) -> T:
        return await self._transactions.run(name, effect)
