"""Puts what was refused into the log after all, because a person says so.

Beside ingest, on a stopped log. Guarantees: rows enter the log at most once. They have a fencing term of
their own, and one ledger transaction writes them and marks them as resubmitted. Only what was acked, or
refused at a source, is taken, so that no spool can bring it a second time. No clock moves, and a row below
the clock is marked as overtaken. Everything else is refused with a sentence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.system import SystemClock
from geartrain.errors import LedgerError, SchemaError, WireError
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.record import Record
from geartrain.schema import ColumnBatch, FieldType, RowCodec, Schema
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain.wire.envelope import BatchKind
from geartrain_cloud.errors import AbsentError
from geartrain_cloud.ingest.counters import ROWS_PREFIX, Counter, Counters
from geartrain_cloud.ingest.flow import TIMELESS_CHANNELS
from geartrain_cloud.ingest.group import Group, Partition
from geartrain_cloud.log.browse import LoggedLetter, all_cursors, letters, quarantined
from geartrain_cloud.log.disk import OsDisk
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.opening import ledger_of, stopped_log
from geartrain_cloud.log.part import SegmentPart, partition_of, segment_digest
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.rows import read_schema, read_schemas
from geartrain_cloud.ports import Entry, LedgerChange, StoredSegment, position_key

Commit = Callable[[SqliteLedger, int, LedgerChange], Awaitable[None]]

_PYTHON: dict[FieldType, Any] = {
    FieldType.BOOL: bool,
    FieldType.INT64: int,
    FieldType.FLOAT64: float,
    FieldType.STR: str,
    FieldType.BYTES: bytes,
    FieldType.DATETIME: datetime,
}


@dataclass(frozen=True, slots=True)
class Resubmitted:
    """The entry that the rows have become; overtaken: how many of them lie below the clock."""

    flow: str
    channel: str
    partition: int
    position: int
    rows: int
    overtaken: int


def resubmit_batch(folder: Path, number: int) -> Resubmitted:
    """Log the rows of the quarantined batch `number`; raises `LedgerError`, which says why not."""
    with stopped_log(folder):
        held = quarantined(folder, number)[0]
        batch, what = held.batch, f"batch {number} of the quarantine"
        if held.resubmitted:
            raise LedgerError(f"{what} was resubmitted before, under term {held.resubmitted}")
        if not batch.acked:
            raise LedgerError(
                f"{what} was never acked: its device sends it again, or its rows may be in the log already, "
                "so it cannot be resubmitted"
            )
        try:
            envelope = decode_envelope(batch.payload)
            header = decode_header(envelope.header)
            if header.kind is not BatchKind.DATA or not header.channel:
                raise LedgerError(f"{what} holds no rows")
            schemas = {one.schema_id: one for one in _schemas(folder, batch.flow, header.channel, what)}
            if header.schema_id not in schemas:
                raise LedgerError(
                    f"{what} has schema {header.schema_id}, but channel {header.channel} has "
                    f"{' or '.join(schemas)}: its rows do not fit"
                )
            schema = schemas[header.schema_id]
            rows = decode_rows(schema, header, envelope.body)
        except WireError as error:
            raise LedgerError(f"{what} cannot be decoded: {error}") from None
        return asyncio.run(
            _append(
                folder,
                header.channel,
                _place(folder, batch.flow, header.channel, batch.device, what),
                schema,
                SegmentPart(batch.device, batch.seq, rows),
                batch.epoch,
                lambda ledger, term, change: ledger.resubmit_batch(term, change, number),
            )
        )


def resubmit_letter(folder: Path, name: str) -> Resubmitted:
    """Log the record of the dead letter `name`; raises `LedgerError`, which says why not.

    Only what a source refused can be taken, since only there is the raw form the record of the channel.
    """
    with stopped_log(folder):
        found = find_letter(folder, name)
        what, step = f"dead letter {name}", found.letter.step
        if found.resubmitted:
            raise LedgerError(f"{what} was resubmitted before")
        sources = {s for c in all_cursors(folder) if c.flow == found.flow for s, _ in c.positions}
        if step not in sources:
            raise LedgerError(
                f"{what} was refused by step {step}, whose input it is: only what a source refused can be "
                "resubmitted"
            )
        schema, rows = _rows_of_letter(_schemas(folder, found.flow, step, what), found, what)
        letters_key = position_key(found.partition)
        entry = LogReader(folder).entries(found.flow, letters_key, found.number - 1, found.number)[0]
        place = (found.flow, found.partition, found.number, found.row)
        return asyncio.run(
            _append(
                folder,
                step,
                _place(folder, found.flow, step, found.device, what),
                schema,
                SegmentPart(found.device, entry.seq, rows),
                entry.epoch,
                lambda ledger, term, change: ledger.resubmit_letter(term, change, place),
            )
        )


def find_letter(folder: Path, name: str) -> LoggedLetter:
    """The dead letter of this name; raises `LedgerError` where there is none."""
    for found in letters(folder, name.partition(":")[0]):
        if found.id == name:
            return found
    raise AbsentError(f"there is no dead letter {name} in the log: see gear deadletters ls")


def _schemas(folder: Path, flow: str, channel: str, what: str) -> list[Schema]:
    """The schemas of a channel, the oldest first."""
    with ledger_of(folder) as ledger:
        stored = [one for one in read_schemas(ledger) if (one.flow, one.channel) == (flow, channel)]
    if not stored:
        raise LedgerError(f"{what} belongs to channel {channel}, whose schema no device has announced yet")
    return [Schema.from_json(one.text) for one in stored]


def _rows_of_letter(schemas: Sequence[Schema], found: LoggedLetter, what: str) -> tuple[Schema, ColumnBatch]:
    """The row of a letter, of the first type that it has exactly; raises `LedgerError`."""
    for schema in schemas:
        try:
            return schema, _letter_rows(schema, found, what)
        except LedgerError:
            if schema is schemas[-1]:
                raise
    raise LedgerError(f"{what} is of no type")


def _place(folder: Path, flow: str, channel: str, device: str, what: str) -> tuple[Partition, int]:
    """The partition that a device's rows go to, and how far the readers of the channel are."""
    reader, index = LogReader(folder), partition_of(device, LogReader(folder).partitions())
    key = position_key(index)
    number = reader.positions(flow).get(key, 0)
    with ledger_of(folder) as ledger:
        stored = read_schema(ledger, flow, channel)
    if not number or stored is None:
        raise LedgerError(f"{what} belongs to channel {channel}, which the flow {flow} does not have")
    newest = reader.entries(flow, key, number - 1, number)[0]
    clock = newest.clock(stored.sources.split())
    if clock >= END_OF_TIME:
        raise LedgerError(f"{what} comes too late: flow {flow} has ended, and its results are final")
    return Partition(flow, index, {}, number, newest.clocks), clock


def _letter_rows(schema: Schema, found: LoggedLetter, what: str) -> ColumnBatch:
    fields = [
        (
            f.name,
            (_PYTHON[f.type] | None) if f.optional else _PYTHON[f.type],
            *((None,) if f.optional else ()),
        )
        for f in schema.fields
    ]
    kind = (
        _PYTHON[schema.fields[0].type]
        if schema.scalar
        else msgspec.defstruct(schema.name, fields, bases=(Record,), frozen=True, forbid_unknown_fields=True)
    )
    try:
        value = msgspec.json.decode(found.letter.raw, type=kind)
        values, wrong = RowCodec(kind).conform([value])
        columns = RowCodec(kind).to_columns(values)
    except (msgspec.MsgspecError, SchemaError, ValueError, TypeError) as error:
        raise LedgerError(f"{what} has no raw form of a {schema.name} in JSON ({error})") from None
    # JSON writes NaN as null, and a source that had no time wrote 0: neither says what the record was.
    lost = any(
        f.logical or (f.type is FieldType.FLOAT64 and c[0] is None)
        for f, c in zip(schema.fields, columns, strict=True)
    )
    if wrong or lost or not found.event_time:
        raise LedgerError(f"{what} cannot be made a {schema.name} again exactly from its raw form")
    name, number, path = found.origin
    return ColumnBatch(columns, [found.event_time], [name], [number], [path] if path else None)


async def _append(
    folder: Path,
    channel: str,
    place: tuple[Partition, int],
    schema: Schema,
    part: SegmentPart,
    epoch: bytes,
    commit: Commit,
) -> Resubmitted:
    from geartrain_cloud.log.segment import encode_segment  # pyarrow: control starts without it

    partition, clock = place
    ledger, disk = SqliteLedger(folder), OsDisk(folder)
    try:
        term = await ledger.open_as_is()
        group, counters = Group(term), Counters(await ledger.counters())
        overtaken = 0
        if channel not in TIMELESS_CHANNELS:
            flags = tuple(time < clock for time in part.rows.times)
            overtaken = sum(flags)
            part = replace(part, overtaken=flags)
        group.append_rows(partition, channel, schema, part, epoch)
        for name in (
            Counter.RECORDS_LOGGED,
            Counter.RECORDS_RESUBMITTED,
            f"{ROWS_PREFIX}{partition.flow}/{channel}",
        ):
            counters.add(name, len(part.rows))
        counters.add(Counter.RECORDS_OVERTAKEN, overtaken)
        sealed = group.seal({}, counters.take_changed())
        segments = []
        for draft in sealed.segments:
            data = encode_segment(draft.schema, draft.parts)
            await disk.write(draft.name, data)
            await disk.fsync(draft.name)
            segments.append(
                StoredSegment(draft.name, len(data), segment_digest(data), SystemClock().now_us())
            )
        await commit(ledger, term, replace(sealed.change, segments=segments))
        entry: Entry = sealed.change.entries[0]
        return Resubmitted(entry.flow, channel, entry.partition, entry.number, entry.count, overtaken)
    finally:
        await ledger.close()
        disk.close()
