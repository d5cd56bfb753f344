"""Schemas and rows of every kind for the tests of the wire, and an equality that sees every bit."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain.wire.envelope import BatchKind, Header

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

INTS = st.one_of(
    st.integers(INT64_MIN, INT64_MAX),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX]),
    st.integers(0, 300),
    st.integers(0, 10_000).map(lambda days: days * 86_400_000_000),
)
FLOATS = st.one_of(
    st.floats(),
    st.integers(-(2**40), 2**40).map(lambda cents: cents / 100),
    st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf")]),
    st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("<d", raw)[0]),  # NaNs with payloads
)
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["", "a", "b", "Ω", "\0", "\U0010ffff"]))
BLOBS = st.one_of(st.binary(max_size=12), st.sampled_from([b"", b"\0", b"\xff" * 300]))
VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.BOOL: st.booleans(),
    FieldType.INT64: INTS,
    FieldType.FLOAT64: FLOATS,
    FieldType.STR: TEXTS,
    FieldType.BYTES: BLOBS,
    FieldType.DATETIME: INTS,
}


@st.composite
def columns(draw: st.DrawFn, kind: FieldType, optional: bool, rows: int) -> list[Any]:
    """A column that is constant, of a few values, steady, or of any."""
    values = VALUES[kind]
    if draw(st.booleans()):
        values = st.sampled_from(draw(st.lists(values, min_size=1, max_size=3)))
    if optional:
        values = st.one_of(st.none(), values)
    return draw(st.lists(values, min_size=rows, max_size=rows))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Schema, ColumnBatch]:
    """A schema of up to four fields, and rows of it."""
    kinds = draw(st.lists(st.tuples(st.sampled_from(FieldType), st.booleans()), max_size=4))
    rows = draw(st.integers(0, 40))
    schema = Schema(
        "Drawn", tuple(Field(f"f{n}", kind, optional) for n, (kind, optional) in enumerate(kinds))
    )
    first = draw(st.integers(INT64_MIN, INT64_MAX - rows))
    batch = ColumnBatch(
        [draw(columns(kind, optional, rows)) for kind, optional in kinds],
        draw(columns(FieldType.INT64, False, rows)),
        draw(columns(FieldType.STR, False, rows)),
        draw(st.one_of(st.just(list(range(first, first + rows))), columns(FieldType.INT64, False, rows))),
        draw(st.one_of(st.none(), columns(FieldType.BYTES, False, rows))),
    )
    return schema, batch


def header_of(schema: Schema, count: int, first_number: int, flags: int) -> Header:
    """The header of a batch with these rows."""
    return Header(
        kind=BatchKind.DATA,
        flow="stocks",
        device="device-1",
        epoch=b"\1\2\3\4\5\6\7\x08",
        seq=2,
        channel="quotes",
        schema_id=schema.schema_id,
        count=count,
        first_number=first_number,
        flags=flags,
    )


def bits(value: Any) -> Any:
    """What tells values apart to the last bit: type and, of a float, its bytes."""
    return (type(value), struct.pack("<d", value) if isinstance(value, float) else value)


def same(left: ColumnBatch, right: ColumnBatch) -> bool:
    """Whether two batches are equal bit for bit; paths that are all empty equal no paths."""

    def form(rows: ColumnBatch) -> list[Any]:
        paths = rows.paths if rows.paths is not None and any(rows.paths) else None
        return [
            [list(map(bits, values)) for values in rows.fields],
            rows.times,
            rows.names,
            rows.numbers,
            paths,
        ]

    return form(left) == form(right)
