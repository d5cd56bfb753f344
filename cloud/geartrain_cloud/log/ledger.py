"""The ledger in SQLite: the manifest of the log, and the memory of every device's place in it.

Under ingest, which commits to it after the segments are durable and before it sends any ack. Guarantees: a
commit is one durable transaction (write-ahead log, synchronous=FULL) or nothing. A commit with an old fencing
term changes nothing. Ingests of other partitions write between its commits, never within one. All SQL runs
on one worker thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from geartrain.adapters.sqlite import transaction, translated
from geartrain.errors import LedgerError
from geartrain.errors.reason import Reason
from geartrain_cloud.log.committing import write_change
from geartrain_cloud.log.housekeeping import forget_rows, merge_rows
from geartrain_cloud.log.opening import check_term, partitions_of, take_ledger
from geartrain_cloud.log.rows import (
    mark_resubmitted,
    put,
    put_totals,
    read_closed_epochs,
    read_digest,
    read_queries,
    read_replaced,
    read_schemas,
    read_totals,
)
from geartrain_cloud.log.tables import (
    AT_PLACE,
    LEDGER_FILE,
    SELECT_CROSSINGS,
    SELECT_CURSORS,
    SELECT_ENTRIES,
    SELECT_EXCLUDED,
    SELECT_MEMBERS,
    SELECT_PLACES,
    SELECT_REVISIONS,
    SELECT_SEGMENTS,
    entry_at,
    read_cursor,
    read_reason,
    read_segment,
)
from geartrain_cloud.ports import (
    AckCursor,
    ClosedEpoch,
    Entry,
    HeldSegment,
    LedgerChange,
    QueryProgress,
    ReplacedFile,
    StoredSchema,
    StoredSegment,
)

T = TypeVar("T")


class SqliteLedger:
    """`LedgerStore` in the file `ledger.sqlite` of the log's folder, mode 0600."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the log's; made by `open` where it is missing."""
        self.path = folder / LEDGER_FILE
        self._worker = ThreadPoolExecutor(1, "ledger")
        self._connection: sqlite3.Connection | None = None
        self._owned: tuple[int, ...] = ()

    async def open(self, partitions: int = 1, owned: Sequence[int] | None = None) -> int:
        """Open or create, take the partitions `owned` (None: all) under one fencing term, and return it.

        Raises `ConfigError` for another number of partitions than the ledger was made with.
        """
        chosen = tuple(range(partitions)) if owned is None else tuple(owned)
        return await self._run(lambda: self._open(partitions, chosen))

    async def open_as_is(self) -> int:
        """`open` an existing ledger with all its partitions, however many they are."""

        def opened() -> int:
            count = partitions_of(self.path)
            return self._open(count, tuple(range(count)))

        return await self._run(opened)

    async def check(self, term: int) -> None:
        """Raise `FencedError` when `term` is no longer the newest of a partition that was taken with it."""
        await self._run(lambda: check_term(self._opened(), self.path, self._owned, term))

    async def remove_rows(
        self, term: int, names: Sequence[str], now_us: int, counters: Mapping[str, int]
    ) -> None:
        """Make every entry in these segments one without rows, and their files replaced ones."""

        def remove(ledger: sqlite3.Connection) -> None:
            for name in names:
                forget_rows(ledger, name, now_us)
            self._write_counters(ledger, counters)

        await self._run(lambda: self._transact(term, remove))

    async def merge(
        self, term: int, merged: StoredSegment, names: Sequence[str], now_us: int, counters: Mapping[str, int]
    ) -> bool:
        """Let the entries in these segments, in this order, name the durable `merged`.

        The old files become replaced ones. If one of them is no longer named, nothing changes and the answer
        is False.
        """

        def put(ledger: sqlite3.Connection) -> bool:
            if not merge_rows(ledger, merged, names, now_us):
                return False
            self._write_counters(ledger, counters)
            return True

        return await self._run(lambda: self._transact(term, put))

    async def forget_files(self, term: int, names: Sequence[str]) -> None:
        """Forget replaced files, which have been deleted."""

        def forget(ledger: sqlite3.Connection) -> None:
            ledger.executemany("DELETE FROM replaced WHERE name = ?", [(name,) for name in names])

        await self._run(lambda: self._transact(term, forget))

    async def commit(self, term: int, change: LedgerChange) -> None:
        """Write in one durable transaction; raises `FencedError` when `term` is no longer the newest of a
        partition that was taken with it.
        """
        await self._run(lambda: self._commit(term, change))

    async def resubmit_batch(self, term: int, change: LedgerChange, number: int) -> None:
        """`commit`, and mark the quarantined batch `number` as resubmitted under `term`."""
        await self._run(
            lambda: self._commit(term, change, lambda ledger: mark_resubmitted(ledger, number, term))
        )

    async def resubmit_letter(
        self, term: int, change: LedgerChange, place: tuple[str, int, int, int]
    ) -> None:
        """`commit`, and mark the dead letter at (flow, partition, entry, row) as resubmitted."""

        def mark(ledger: sqlite3.Connection) -> bool:
            put(ledger, "resubmitted_letters", [place])
            return True

        await self._run(lambda: self._commit(term, change, mark))

    async def cursors(self) -> list[AckCursor]:
        """Every device's cursor."""
        rows = await self._rows(SELECT_CURSORS + "ORDER BY flow, device")
        return [read_cursor(row) for row in rows]

    async def closed_epochs(self) -> list[ClosedEpoch]:
        """The epochs that a later one has replaced, by device, flow and ordinal: the last 1,000 of each."""
        return await self._run(lambda: read_closed_epochs(self._opened()))

    async def schemas(self) -> list[StoredSchema]:
        """Every schema announced so far, in the order they were stored."""
        return await self._run(lambda: read_schemas(self._opened()))

    async def last_entries(self) -> list[Entry]:
        """The newest entry of every (flow, partition)."""
        query = SELECT_ENTRIES + AT_PLACE + "ORDER BY number DESC LIMIT 1"
        places = await self._rows(SELECT_PLACES)
        return [entry_at((await self._rows(query, place))[0], *place) for place in places]

    async def devices(self) -> list[tuple[str, str, str]]:
        """(flow, source, device) of every member: its newest ASSIGNED or RETIRED entry is ASSIGNED."""
        return await self._rows(SELECT_MEMBERS)

    async def excluded(self) -> list[tuple[str, str, str]]:
        """(flow, source, device) of every member whose newest entry of that source is EXCLUDED or LACKS."""
        return await self._rows(SELECT_EXCLUDED)

    async def revisions(self) -> dict[tuple[str, int], int]:
        """By (flow, partition), the number of the newest REVISION entry, where it has one."""
        return {(flow, index): number for flow, index, number in await self._rows(SELECT_REVISIONS)}

    async def crossings(self) -> dict[tuple[str, str], tuple[int, Reason]]:
        """By (device, flow), the number and reason of the newest CROSSING entry, where it has one."""
        rows = await self._rows(SELECT_CROSSINGS)
        return {(device, flow): (number, read_reason(text)) for device, flow, number, text in rows}

    async def segments(self) -> set[str]:
        """Every file name that an entry names."""
        return {
            name for (name,) in await self._rows("SELECT DISTINCT segment FROM entries WHERE segment <> ''")
        }

    async def held_segments(self) -> list[HeldSegment]:
        """Every segment of the partitions taken, the oldest first, then by name."""
        rows = await self._rows(SELECT_SEGMENTS + self._of_owned() + "ORDER BY made_us, name")
        return [read_segment(row) for row in rows]

    async def replaced_files(self) -> list[ReplacedFile]:
        """Every replaced file of the partitions taken, by name."""
        return await self._run(lambda: read_replaced(self._opened(), self._of_owned() + "ORDER BY name"))

    async def queries(self) -> list[QueryProgress]:
        """Every registered query by name, flow and key."""
        return await self._run(lambda: read_queries(self._opened()))

    async def digest_at(self, device: str, flow: str, epoch: bytes, seq: int) -> bytes | None:
        """The running digest of an appended batch, or None where it is no longer remembered."""
        return await self._run(lambda: read_digest(self._opened(), device, flow, epoch, seq))

    async def counters(self) -> Mapping[str, int]:
        """Totals by name, of the partitions taken."""
        totals = await self._run(lambda: read_totals(self._opened()))
        return {name: total for name, scope, total in totals if scope == min(self._owned, default=0)}

    async def close(self) -> None:
        """Release the ledger; a second call does nothing."""
        if self._connection is not None:
            await self._run(self._connection.close)
            self._connection = None
        self._worker.shutdown(wait=False)

    async def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return await self._run(lambda: self._opened().execute(query, values).fetchall())

    async def _run(self, work: Callable[[], T]) -> T:
        with translated(LedgerError, f"the ledger {self.path}"):
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError(f"the ledger {self.path} is not open")
        return self._connection

    def _of_owned(self) -> str:
        return f"WHERE partition IN ({', '.join(str(int(p)) for p in self._owned)}) "

    def _open(self, partitions: int, owned: tuple[int, ...]) -> int:
        self._connection, term = take_ledger(self.path, partitions, owned)
        self._owned = owned
        return term

    def _commit(
        self, term: int, change: LedgerChange, mark: Callable[[sqlite3.Connection], bool] | None = None
    ) -> None:
        def write(connection: sqlite3.Connection) -> None:
            write_change(connection, change)
            self._write_counters(connection, change.counters)
            if mark is not None and not mark(connection):
                raise LedgerError("it was resubmitted before")

        self._transact(term, write)

    def _transact(self, term: int, write: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._opened()
        with transaction(connection):
            check_term(connection, self.path, self._owned, term)
            return write(connection)

    def _write_counters(self, connection: sqlite3.Connection, counters: Mapping[str, int]) -> None:
        put_totals(connection, counters, min(self._owned, default=0))
