"""The rows of the ledger's smaller tables: how they are written, and read back with their checksums.

Beside `geartrain_cloud.log.tables`, which has the entries, the cursors and the layout. Guarantees: what is
returned is what was written. A damaged row raises `LedgerError`. The one exception is a batch's digest: if it
is damaged, it counts as no longer remembered.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from geartrain.errors import LedgerError
from geartrain_cloud.log.checksums import Row, is_whole, sealed, whole
from geartrain_cloud.ports import (
    BatchDigest,
    ClosedEpoch,
    QuarantinedBatch,
    QueryProgress,
    ReplacedFile,
    StoredSchema,
)

_ROWS_AT_ONCE = (64, 8, 1)

COLUMNS: Mapping[str, str] = {
    "fencing": "partition, term",
    "closed_epochs": "device, flow, epoch, ordinal, seq, digest",
    "digests": "device, flow, epoch, seq, digest",
    "schemas": "flow, channel, schema_id, text, sources",
    "quarantine": "device, flow, epoch, seq, count, reason, payload, acked, resubmitted",
    "resubmitted_letters": "flow, partition, number, row",
    "segments": "name, flow, channel, partition, first, last, rows, size, digest, made_us",
    "replaced": "name, flow, channel, partition, last, size, since_us",
    "queries": "name, flow, key, position",
    "counters": "name, scope, total",
}
"""What a checksum covers, in its order, by table; a `number` that SQLite gives is not among it."""


def select(table: str, rest: str = "") -> str:
    """The statement that reads whole rows of a table, with their checksums."""
    return f"SELECT {COLUMNS[table]}, checksum FROM {table} {rest}"  # noqa: S608 - of the names above


def insert(table: str, how: str = "INSERT") -> str:
    """The statement that writes the rows which `sealed` makes; how: such as `INSERT OR REPLACE`."""
    marks = ", ".join("?" * (COLUMNS[table].count(",") + 2))
    return f"{how} INTO {table} ({COLUMNS[table]}, checksum) VALUES ({marks})"


def put(ledger: sqlite3.Connection, table: str, rows: Iterable[Row], how: str = "INSERT") -> None:
    """Write rows, each with its checksum."""
    put_sealed(ledger, insert(table, how), list(map(sealed, rows)))


def put_sealed(ledger: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Write rows that have their checksums by `statement`, which ends in the marks of one row.

    Several at once: Python hands the interpreter to other threads at each call of SQLite, and a busy one may
    keep it for milliseconds.
    """
    head, word, marks = statement.partition(" VALUES ")
    at = 0
    for size in _ROWS_AT_ONCE:
        several = head + word + ", ".join([marks] * size)
        while len(rows) - at >= size:
            ledger.execute(several, list(chain.from_iterable(rows[at : at + size])))
            at += size


def read_terms(ledger: sqlite3.Connection) -> dict[int, int]:
    """The fencing term of each partition."""
    rows = ledger.execute(select("fencing", "ORDER BY partition")).fetchall()
    terms: dict[int, int] = dict(whole(row, f"the fencing term of partition {row[0]}") for row in rows)
    if list(terms) != list(range(len(terms))):
        raise LedgerError(
            f"there are fencing terms of the partitions {list(terms)} only: restore the ledger from a copy"
        )
    return terms


def put_terms(ledger: sqlite3.Connection, terms: Mapping[int, int]) -> None:
    """Set the fencing terms of partitions."""
    put(ledger, "fencing", terms.items(), "INSERT OR REPLACE")


def read_closed_epochs(ledger: sqlite3.Connection) -> list[ClosedEpoch]:
    """The epochs that a later one has replaced, by device, flow and ordinal."""
    rows = ledger.execute(select("closed_epochs", "ORDER BY device, flow, ordinal"))
    return [ClosedEpoch(*whole(row, f"a closed epoch of {row[0]}/{row[1]}")) for row in rows]


def put_closed_epochs(ledger: sqlite3.Connection, closed: Iterable[ClosedEpoch]) -> None:
    """Remember closed epochs; what is known of one stands."""
    rows = [(c.device, c.flow, c.epoch, c.ordinal, c.seq, c.digest) for c in closed]
    put(ledger, "closed_epochs", rows, "INSERT OR IGNORE")


def read_digest(ledger: sqlite3.Connection, device: str, flow: str, epoch: bytes, seq: int) -> bytes | None:
    """The running digest of a batch, None where it is no longer remembered, or its row is damaged."""
    place = (device, flow, epoch, seq)
    query = select("digests", "WHERE device = ? AND flow = ? AND epoch = ? AND seq = ?")
    row = ledger.execute(query, place).fetchone()
    # A damaged page can lead to another row; and nothing is lost by not knowing a digest.
    return None if row is None or not is_whole(row) or row[:4] != place else bytes(row[4])


def put_digests(ledger: sqlite3.Connection, digests: Iterable[BatchDigest]) -> None:
    """Remember the digests of batches."""
    rows = [(d.device, d.flow, d.epoch, d.seq, d.digest) for d in digests]
    put(ledger, "digests", rows, "INSERT OR REPLACE")


def read_schemas(ledger: sqlite3.Connection) -> list[StoredSchema]:
    """Every schema announced so far, in the order they were stored."""
    rows = ledger.execute(select("schemas", "ORDER BY number"))
    return [StoredSchema(*whole(row, f"a schema of {row[0]}/{row[1]}")) for row in rows]


def read_schema(ledger: sqlite3.Connection, flow: str, channel: str) -> StoredSchema | None:
    """The schema of a channel: the first that was announced."""
    query = select("schemas", "WHERE flow = ? AND channel = ? ORDER BY number LIMIT 1")
    row = ledger.execute(query, (flow, channel)).fetchone()
    if row is None:
        return None
    stored = StoredSchema(*whole(row, f"the schema of {flow}/{channel}"))
    if (stored.flow, stored.channel) != (flow, channel):
        raise LedgerError(
            f"in the place of the schema of {flow}/{channel} stands that of {stored.flow}/{stored.channel}: "
            "the ledger is damaged, restore it from a copy"
        )
    return stored


def put_schemas(ledger: sqlite3.Connection, schemas: Iterable[StoredSchema]) -> None:
    """Store schemas; one that is known stands."""
    rows = [(x.flow, x.channel, x.schema_id, x.text, x.sources) for x in schemas]
    put(ledger, "schemas", rows, "INSERT OR IGNORE")


def put_quarantined(ledger: sqlite3.Connection, batches: Iterable[QuarantinedBatch]) -> None:
    """Keep batches raw."""
    rows = [
        (q.device, q.flow, q.epoch, q.seq, q.count, q.reason, q.payload, int(q.acked), 0) for q in batches
    ]
    put(ledger, "quarantine", rows)


def read_quarantined(
    ledger: sqlite3.Connection, number: int | None
) -> list[tuple[int, QuarantinedBatch, int]]:
    """The quarantined batches, oldest first, or the one of a number: each with its number, and with the term
    under which it was resubmitted or 0.
    """
    query = select("quarantine", "WHERE ? IS NULL OR number = ? ORDER BY number")
    found = []
    for at, *row in ledger.execute(query.replace("SELECT ", "SELECT number, ", 1), (number, number)):
        *held, acked, done = whole(tuple(row), f"batch {at} of the quarantine")
        device, flow, epoch, seq, count, reason, payload = held
        batch = QuarantinedBatch(device, flow, epoch, seq, count, reason, payload, bool(acked))
        found.append((at, batch, done))
    return found


def read_resubmitted(ledger: sqlite3.Connection) -> set[tuple[str, int, int, int]]:
    """The dead letters that were put into the log, each by (flow, partition, entry, row)."""
    rows = ledger.execute(select("resubmitted_letters")).fetchall()
    return {whole(row, f"what was resubmitted of {row[0]}") for row in rows}


def mark_resubmitted(ledger: sqlite3.Connection, number: int, term: int) -> bool:
    """Note that a quarantined batch was put into the log under `term`; False where it was before."""
    row = ledger.execute(select("quarantine", "WHERE number = ?"), (number,)).fetchone()
    if row is None or whole(row, f"batch {number} of the quarantine")[-1]:
        return False
    now = sealed((*row[:-2], term))
    statement = "UPDATE quarantine SET resubmitted = ?, checksum = ? WHERE number = ?"
    ledger.execute(statement, (*now[-2:], number))
    return True


def read_replaced(ledger: sqlite3.Connection, rest: str) -> list[ReplacedFile]:
    """The replaced files that `rest` of the statement chooses."""
    rows = ledger.execute(select("replaced", rest))
    return [ReplacedFile(*whole(row, f"the row of the replaced file {row[0]}")) for row in rows]


def read_queries(ledger: sqlite3.Connection) -> list[QueryProgress]:
    """Every registered query by name, flow and key."""
    rows = ledger.execute(select("queries", "ORDER BY name, flow, key"))
    return [QueryProgress(*whole(row, f"what query {row[0]} has done of {row[1]}/{row[2]}")) for row in rows]


def read_totals(ledger: sqlite3.Connection) -> list[tuple[str, int, int]]:
    """Every counter as (name, scope, total)."""
    rows = ledger.execute(select("counters", "ORDER BY name, scope"))
    return [whole(row, f"the counter {row[0]}") for row in rows]


def put_totals(ledger: sqlite3.Connection, totals: Mapping[str, int], scope: int) -> None:
    """Set counters of a scope."""
    rows = [(name, scope, total) for name, total in totals.items()]
    put(ledger, "counters", rows, "INSERT OR REPLACE")
