"""The ledger on a simulated disk: what ingest's one transaction wrote is there after every crash.

`SimLedgerStore` is one process's way to the `LedgerBook` of a log. Guarantees of each transaction: all of it
or nothing, in the order of the calls. A kill may strike in the middle of its write, or after it and before
its caller hears of it. It refuses what the SQLite form refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from geartrain.errors import LedgerError
from geartrain.errors.reason import Reason
from geartrain_cloud.ports import (
    AckCursor,
    ClosedEpoch,
    Entry,
    EntryKind,
    HeldSegment,
    LedgerChange,
    QueryProgress,
    ReplacedFile,
    StoredSchema,
    StoredSegment,
)
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.journal import Journal, Transactions
from geartrain_simulation.machine.world import Process
from geartrain_simulation.stores.ledger_book import LedgerBook

T = TypeVar("T")

_MOVES = frozenset(
    {EntryKind.ASSIGNED, EntryKind.RETIRED, EntryKind.EXCLUDED, EntryKind.LACKS, EntryKind.READMITTED}
)
_encode = msgspec.msgpack.Encoder().encode


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
        """The newest entry of every (flow, partition)."""
        return await self._read(
            "last_entries", lambda: [es[-1] for _, es in sorted(self._book.entries.items())]
        )

    async def devices(self) -> list[tuple[str, str, str]]:
        """(flow, source, device) of every member: its newest ASSIGNED or RETIRED entry is ASSIGNED."""

        def members() -> list[tuple[str, str, str]]:
            return sorted(place for place, kind in self._moves().items() if kind is not EntryKind.RETIRED)

        return await self._read("devices", members)

    def _moves(self) -> dict[tuple[str, str, str], EntryKind]:
        """The newest move of each (flow, source, device)."""
        entries = [e for e in self._book.all_entries() if e.kind in _MOVES]
        return {(e.flow, e.source, e.device): e.kind for e in entries}

    async def excluded(self) -> list[tuple[str, str, str]]:
        """(flow, source, device) of every member whose newest entry of that source is EXCLUDED or LACKS."""

        def out() -> list[tuple[str, str, str]]:
            lost = (EntryKind.EXCLUDED, EntryKind.LACKS)
            return sorted(place for place, kind in self._moves().items() if kind in lost)

        return await self._read("excluded", out)

    async def revisions(self) -> dict[tuple[str, int], int]:
        """By (flow, partition), the number of the newest REVISION entry, where it has one."""

        def newest() -> dict[tuple[str, int], int]:
            crossed = [e for e in self._book.all_entries() if e.kind is EntryKind.REVISION]
            return {(e.flow, e.partition): e.seq for e in sorted(crossed, key=lambda e: e.seq)}

        return await self._read("revisions", newest)

    async def crossings(self) -> dict[tuple[str, str], tuple[int, Reason]]:
        """By (device, flow), the number and reason of the newest CROSSING entry, where it has one."""

        def newest() -> dict[tuple[str, str], tuple[int, Reason]]:
            crossed = [e for e in self._book.all_entries() if e.kind is EntryKind.CROSSING]
            return {(e.device, e.flow): (e.seq, e.reason) for e in sorted(crossed, key=lambda e: e.seq)}

        return await self._read("crossings", newest)

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
