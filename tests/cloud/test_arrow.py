"""Rows as Arrow, and segments: everything comes back as it was, to the last bit."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.errors import LedgerError, SchemaError
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain_cloud.log.arrow import SYSTEM_FIELDS, arrow_schema, from_table, to_table
from geartrain_cloud.log.part import SYSTEM_NAMES, SegmentPart
from geartrain_cloud.log.segment import decode_segment, encode_segment, open_segment
from tests.wire.batches import batches, same

ALL = Schema(
    "All", tuple(Field(f"f_{kind.value}", kind, optional) for optional in (True,) for kind in FieldType)
)


def one_row(value: float) -> ColumnBatch:
    return ColumnBatch([[value]], [1], ["s"], [0])


@settings(deadline=None)
@given(batches())
def test_rows_come_back_from_a_table_bit_for_bit(drawn: tuple[Schema, ColumnBatch]) -> None:
    schema, rows = drawn
    count = len(rows)
    table = to_table(schema, rows, ["d"] * count, [7] * count, [False] * count, [True] * count)
    assert table.schema == arrow_schema(schema)
    assert same(from_table(schema, table), rows)
    assert table.column("_overtaken").to_pylist() == [True] * count


@settings(deadline=None)
@given(batches(), st.data())
def test_parts_of_a_segment_come_back_each_in_its_place(
    drawn: tuple[Schema, ColumnBatch], data: st.DataObject
) -> None:
    schema, rows = drawn
    flags = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    empty = ColumnBatch([[] for _ in schema.fields], [], [], [])
    parts = [
        SegmentPart("device-1", 3, rows),
        SegmentPart("device-2", 9, empty),
        SegmentPart("device-2", 10, rows, late=True, overtaken=tuple(flags)),
    ]
    found, table = decode_segment(encode_segment(schema, parts))
    assert found == schema
    count = len(rows)
    first, second = table.slice(0, count), table.slice(count)
    assert same(from_table(schema, first), rows)
    assert same(from_table(schema, second), rows)
    assert second.column("_overtaken").to_pylist() == flags
    assert first.column("_device").to_pylist() == ["device-1"] * count
    assert second.column("_seq").to_pylist() == [10] * count
    assert second.column("_late").to_pylist() == [True] * count


@pytest.mark.parametrize(
    "bits", [0x7FF8000000000000, 0x7FF8000000000ABC, 0xFFF8000000000001, 0x8000000000000000]
)
def test_bits_of_a_nan_and_the_sign_of_zero_are_kept(bits: int) -> None:
    schema = Schema("float", (Field("value", FieldType.FLOAT64),), scalar=True)
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    _, table = decode_segment(encode_segment(schema, [SegmentPart("d", 1, one_row(value))]))
    column = table.column("value").combine_chunks()
    values = column.buffers()[1]
    assert values is not None
    assert struct.unpack("<Q", values.to_pybytes()[:8])[0] == bits
    assert column.null_count == 0
    assert struct.pack("<d", from_table(schema, table).fields[0][0]) == struct.pack("<Q", bits)


def test_columns_are_the_fields_and_then_those_of_the_log() -> None:
    schema = arrow_schema(ALL)
    assert schema.names == [field.name for field in ALL.fields] + list(SYSTEM_NAMES)
    assert schema.field("f_datetime").type == pa.timestamp("us", tz="UTC")
    assert [field.type for field in SYSTEM_FIELDS[:4]] == [pa.int64(), pa.string(), pa.int64(), pa.binary()]
    assert not schema.field("_event_time").nullable
    assert schema.field("f_int64").nullable


def test_value_that_does_not_fit_is_an_error_of_ours() -> None:
    schema = Schema("int", (Field("value", FieldType.INT64),))
    with pytest.raises(SchemaError, match="rows do not fit the schema int"):
        to_table(schema, ColumnBatch([["text"]], [1], ["s"], [0]), ["d"], [1], [False], [False])
    with pytest.raises(LedgerError, match="a segment cannot be made"):
        encode_segment(schema, [SegmentPart("d", 1, ColumnBatch([["text"]], [1], ["s"], [0]))])


def test_damaged_or_missing_segment_is_named(tmp_path: Path) -> None:
    path = tmp_path / "1.arrow"
    with pytest.raises(LedgerError, match=r"1\.arrow.*cannot be read"):
        open_segment(path)
    schema = Schema("float", (Field("value", FieldType.FLOAT64),), scalar=True)
    whole = encode_segment(schema, [SegmentPart("d", 1, one_row(1.0))])
    for damaged in (b"", whole[:-20], b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(LedgerError, match=r"1\.arrow.*damaged"):
            open_segment(path)
    with pytest.raises(LedgerError, match="damaged"):
        decode_segment(pa_file_without_schema())


def pa_file_without_schema() -> bytes:
    out = pa.BufferOutputStream()
    table = pa.table({"x": [1]})
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    data: bytes = out.getvalue().to_pybytes()
    return data
