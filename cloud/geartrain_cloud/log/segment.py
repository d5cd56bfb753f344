"""A segment: rows of one channel in an immutable Arrow IPC file, made by one group commit.

Ingest writes it once, and the readers of the log map it. Guarantees: the file alone says what is in it, since
its metadata holds the channel's schema. The rows of the parts follow one another, so an entry's
`[first_row, first_row + count)` is its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path

import pyarrow as pa

from geartrain.errors import LedgerError, SchemaError
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.log.arrow import to_table
from geartrain_cloud.log.part import SegmentPart, UnlikeError, segment_digest

SCHEMA_KEY = b"geartrain.schema"
"""Metadata of the Arrow schema: `Schema.to_json()` of the channel."""


def schema_of(table: pa.Table) -> Schema | None:
    """The schema of rows of a segment, as the segment says it; None where a table is of none."""
    said = (table.schema.metadata or {}).get(SCHEMA_KEY)
    return None if said is None else _schema(said)


@lru_cache(maxsize=256)
def _schema(text: bytes) -> Schema:
    return Schema.from_json(text.decode())


def encode_segment(schema: Schema, parts: Sequence[SegmentPart]) -> bytes:
    """The bytes of a segment that holds the parts' rows in order; raises `LedgerError`."""
    try:
        table = to_table(
            schema,
            _joined(len(schema.fields), [part.rows for part in parts]),
            list(chain.from_iterable(repeat(part.device, len(part.rows)) for part in parts)),
            list(chain.from_iterable(repeat(part.seq, len(part.rows)) for part in parts)),
            list(chain.from_iterable(repeat(part.late, len(part.rows)) for part in parts)),
            list(chain.from_iterable(_overtaken(part) for part in parts)),
        )
    except SchemaError as error:
        raise LedgerError(f"a segment cannot be made: {error}") from None
    table = table.replace_schema_metadata({SCHEMA_KEY: schema.to_json().encode()})
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def decode_segment(data: bytes) -> tuple[Schema, pa.Table]:
    """The schema and rows of a segment's bytes; raises `LedgerError`."""
    return _read(pa.BufferReader(data), "a segment")


def merge_segments(segments: Sequence[bytes]) -> bytes:
    """One segment of several of one channel: their rows follow one another. Raises `LedgerError`, which is
    `UnlikeError` where their rows are not of one type.
    """
    tables = [decode_segment(data)[1] for data in segments]
    for at, table in enumerate(tables):
        if not table.schema.equals(tables[0].schema, check_metadata=True):
            raise UnlikeError(at)
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, tables[0].schema) as writer:
        writer.write_table(pa.concat_tables(tables).combine_chunks())
    return out.getvalue().to_pybytes()


def take_segment(data: bytes, ranges: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of a segment with some rows of another, which nothing of the others is left in.

    ranges: pairs of a first row and a count, whose rows follow one another. Raises `LedgerError`.
    """
    table = decode_segment(data)[1]
    rows = list(chain.from_iterable(range(first, first + count) for first, count in ranges))
    if any(row >= table.num_rows for row in rows):
        raise LedgerError("a segment is shorter than the ledger says: restore the file from a copy")
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table.take(pa.array(rows, pa.int64())).combine_chunks())
    return out.getvalue().to_pybytes()


def open_segment(path: Path, digest: bytes | None = None) -> tuple[Schema, pa.Table]:
    """The schema and rows of the segment file `path`, mapped rather than copied.

    digest: what the ledger says of its bytes; a file with another, or that cannot be read, raises
    `LedgerError`.
    """
    try:
        source = pa.memory_map(str(path), "r")
        if digest is not None and segment_digest(memoryview(source.read_buffer())) != digest:
            raise LedgerError(
                f"segment {path} is damaged (its bytes are not those that were written): restore the file "
                "from a copy"
            )
        return _read(source, f"segment {path}")
    except OSError as error:
        raise LedgerError(
            f"segment {path}, which the ledger names, cannot be read ({error}): restore the file"
        ) from None


def _read(source: pa.NativeFile, what: str) -> tuple[Schema, pa.Table]:
    try:
        table = pa.ipc.open_file(source).read_all()
        metadata = table.schema.metadata or {}
        return Schema.from_json(metadata[SCHEMA_KEY].decode()), table
    except (pa.ArrowInvalid, KeyError, UnicodeDecodeError, SchemaError) as error:
        raise LedgerError(f"{what} is damaged ({error}): restore the file from a copy") from None


def _overtaken(part: SegmentPart) -> Sequence[bool]:
    return part.overtaken if part.overtaken is not None else [False] * len(part.rows)


def _joined(width: int, batches: Sequence[ColumnBatch]) -> ColumnBatch:
    if len(batches) == 1:
        return batches[0]
    paths: list[bytes] | None = None
    if any(batch.paths is not None for batch in batches):
        paths = [p for b in batches for p in (b.paths if b.paths is not None else repeat(b"", len(b)))]
    return ColumnBatch(
        [list(chain.from_iterable(batch.fields[i] for batch in batches)) for i in range(width)],
        list(chain.from_iterable(batch.times for batch in batches)),
        list(chain.from_iterable(batch.names for batch in batches)),
        list(chain.from_iterable(batch.numbers for batch in batches)),
        paths,
    )
