"""What one commit of ingest writes into the ledger's tables, and what it makes the ledger forget.

Under `geartrain_cloud.log.ledger`, within its transaction. Guarantees: a channel has one schema, whichever
ingest announces it, but for those that its flow names. What is remembered of each epoch is bounded.
"""

from __future__ import annotations

import sqlite3

from geartrain.errors import LedgerError
from geartrain_cloud.log.rows import (
    put_closed_epochs,
    put_digests,
    put_quarantined,
    put_schemas,
    put_sealed,
    read_schema,
)
from geartrain_cloud.log.tables import (
    CLOSED_KEPT,
    DIGESTS_KEPT,
    INSERT_ENTRY,
    INSERT_SEGMENT,
    REPLACE_CURSOR,
    cursor_row,
    entry_row,
    segment_row,
)
from geartrain_cloud.ports import Entry, HeldSegment, LedgerChange, StoredSchema


def write_change(connection: sqlite3.Connection, change: LedgerChange) -> None:
    """Write all of a change but its counters, within the transaction at hand; raises `LedgerError`."""
    put_sealed(connection, INSERT_ENTRY, [entry_row(entry) for entry in change.entries])
    put_sealed(connection, REPLACE_CURSOR, [cursor_row(cursor) for cursor in change.cursors])
    for schema in change.schemas:
        _check_schema(connection, schema)
    put_schemas(connection, change.schemas)
    put_quarantined(connection, change.quarantined)
    connection.executemany(INSERT_SEGMENT, [segment_row(held) for held in _held(change)])
    put_digests(connection, change.digests)
    newest = {(d.device, d.flow, d.epoch): d.seq for d in change.digests}
    connection.executemany(
        "DELETE FROM digests WHERE device = ? AND flow = ? AND epoch = ? AND seq <= ?",
        [(*place, seq - DIGESTS_KEPT) for place, seq in newest.items() if seq > DIGESTS_KEPT],
    )
    put_closed_epochs(connection, change.closed_epochs)
    connection.executemany(
        "DELETE FROM closed_epochs WHERE device = ? AND flow = ? AND ordinal <= ?",
        [(c.device, c.flow, c.ordinal - CLOSED_KEPT) for c in change.closed_epochs],
    )
    # A batch of a closed epoch is refused before its digest is asked for.
    connection.executemany(
        "DELETE FROM digests WHERE device = ? AND flow = ? AND epoch = ?",
        [(c.device, c.flow, c.epoch) for c in change.closed_epochs],
    )


def _check_schema(connection: sqlite3.Connection, schema: StoredSchema) -> None:
    """Raise `LedgerError` where another ingest has given the channel its schema since ours began."""
    first = None if schema.told else read_schema(connection, schema.flow, schema.channel)
    if first is not None and first.schema_id != schema.schema_id:
        raise LedgerError(
            f"the schema of {schema.flow}/{schema.channel} is {first.schema_id}, by another ingest, and one "
            f"of our devices announces {schema.schema_id}: start this ingest again, and run one version of "
            "the flow"
        )


def _held(change: LedgerChange) -> list[HeldSegment]:
    """The new segments, and where the entries lie that name them."""
    found: dict[str, list[Entry]] = {}
    for entry in change.entries:
        found.setdefault(entry.segment, []).append(entry)
    held = []
    for segment in change.segments:
        entries = found[segment.name]
        first, last = entries[0], entries[-1]
        place = (first.flow, first.channel, first.partition, first.number, last.number)
        held.append(HeldSegment(segment, *place, sum(entry.count for entry in entries)))
    return held
