"""Rows of a channel as the body of a batch and back.

The agent encodes what crosses the cut; ingest decodes it before it appends to the log. Guarantees: rows come
back equal bit for bit, origins included; decoding arbitrary bytes raises only `WireError`, within the caps.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from geartrain.errors import WireError
from geartrain.schema.columns import ColumnBatch
from geartrain.schema.fields import Field, FieldType, Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.columns import decode_column, encode_column
from geartrain.wire.envelope import DEFLATED, Header
from geartrain.wire.limits import LIMITS, Limits
from geartrain.wire.parsing import INT64_MAX, parse

DEFLATE_LEVEL = 3
DEFLATE_ROWS_MIN = 11
"""A body of fewer rows is not worth the time."""


_TIME = Field("event_time", FieldType.INT64)
_NAME = Field("origin_name", FieldType.STR)
_NUMBER = Field("origin_number", FieldType.INT64)
_PATH = Field("origin_path", FieldType.BYTES)


class EncodedRows(msgspec.Struct, frozen=True):
    """Encoded rows, and what the header has to say of them; the header also needs count and schema id."""

    body: bytes
    flags: int
    first_number: int


def encode_rows(schema: Schema, rows: ColumnBatch, limits: Limits = LIMITS) -> EncodedRows:
    """Rows as the body of one batch.

    Raises `WireError` when they do not fit one, where fewer may, and for a value that is not of its type.
    """
    if len(rows) > limits.rows_max:
        raise WireError(f"{len(rows)} rows do not fit one batch; {limits.rows_max} are the most")
    first = rows.numbers[0] if rows.numbers else 0
    running = first + len(rows) - 1 <= INT64_MAX and rows.numbers == list(range(first, first + len(rows)))
    paths = rows.paths if rows.paths is not None and any(rows.paths) else None
    body: bytes = pb.Rows(
        fields=[
            _encode_field(field, values, limits)
            for field, values in zip(schema.fields, rows.fields, strict=True)
        ],
        times=_encode_field(_TIME, rows.times, limits),
        names=_encode_field(_NAME, rows.names, limits),
        numbers=b"" if running else _encode_field(_NUMBER, rows.numbers, limits),
        paths=b"" if paths is None else _encode_field(_PATH, paths, limits),
    ).SerializeToString()
    if len(body) > limits.body_bytes_max:
        raise WireError(f"{len(rows)} rows have {len(body)} bytes; {limits.body_bytes_max} are the most")
    flags = 0
    if len(rows) >= DEFLATE_ROWS_MIN:
        deflated = zlib.compress(body, DEFLATE_LEVEL)
        if len(deflated) < len(body):
            body, flags = deflated, DEFLATED
    if len(body) > limits.sent_body_bytes_max:
        raise WireError(f"{len(rows)} rows have {len(body)} bytes as they travel, too much for one batch")
    return EncodedRows(body, flags, first if running else 0)


def _encode_field(field: Field, values: list[Any], limits: Limits) -> bytes:
    try:
        return encode_column(field.type, field.optional, values, limits)
    except WireError as error:
        raise WireError(f"field {field.name}: {error}") from None


def decode_rows(schema: Schema, header: Header, body: bytes, limits: Limits = LIMITS) -> ColumnBatch:
    """The rows in the body of a DATA batch; raises `WireError` unless header, body and schema agree."""
    rows = header.count
    if not 0 <= rows <= limits.rows_max:
        raise WireError(f"a batch has {rows} rows; {limits.rows_max} are the most")
    if header.schema_id != schema.schema_id:
        raise WireError(f"batch {header.seq} is of schema {header.schema_id!r}, not {schema.schema_id}")
    if header.flags & DEFLATED:
        body = _inflate(body, limits.body_bytes_max)
    raw = parse(pb.Rows, body, "a body", limits.body_bytes_max)
    if len(raw.fields) != len(schema.fields):
        raise WireError(f"a body has {len(raw.fields)} columns for {len(schema.fields)} fields")
    first = header.first_number
    if not raw.numbers and first + rows - 1 > INT64_MAX:
        raise WireError(f"batch {header.seq}: numbers from {first} on leave 64 bits")

    def decode(field: Field, data: bytes) -> list[Any]:
        return decode_column(field.type, field.optional, data, rows, limits)

    return ColumnBatch(
        list(map(decode, schema.fields, raw.fields)),
        decode(_TIME, raw.times),
        decode(_NAME, raw.names),
        decode(_NUMBER, raw.numbers) if raw.numbers else list(range(first, first + rows)),
        decode(_PATH, raw.paths) if raw.paths else None,
    )


def _inflate(body: bytes, bytes_max: int) -> bytes:
    """Inflate at most `bytes_max`; a byte more, or anything after the end, is a `WireError`."""
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise WireError(f"a body cannot be inflated: {error}") from None
    if len(inflated) > bytes_max:
        raise WireError(f"a body inflates to more than {bytes_max} bytes")
    if not inflater.eof or inflater.unused_data:
        raise WireError("a deflated body is cut short or goes on after its end")
    return inflated
