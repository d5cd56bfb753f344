"""Rows survive the wire bit for bit, whatever their types, and in the encoding that is worth it."""

from __future__ import annotations

import random
import struct
import zlib
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings

from geartrain.errors import WireError
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.body import decode_rows, encode_rows
from geartrain.wire.codec import decode_envelope, encode_envelope
from geartrain.wire.columns import decode_column, encode_column
from geartrain.wire.envelope import DEFLATED, Envelope
from geartrain.wire.limits import LIMITS, Limits
from tests.wire.batches import INT64_MAX, INT64_MIN, batches, bits, header_of, same


def rows_of(*fields: list[Any], first: int = 0) -> ColumnBatch:
    count = len(fields[0])
    return ColumnBatch(
        list(fields), list(range(count)), ["device-1/quotes"] * count, list(range(first, first + count))
    )


def there_and_back(schema: Schema, rows: ColumnBatch) -> ColumnBatch:
    encoded = encode_rows(schema, rows)
    header = header_of(schema, len(rows), encoded.first_number, encoded.flags)
    return decode_rows(schema, header, encoded.body)


def one(kind: FieldType, optional: bool = False) -> Schema:
    return Schema("One", (Field("value", kind, optional),))


@given(batches())
@settings(deadline=None, max_examples=200)
def test_rows_come_back_bit_for_bit(drawn: tuple[Schema, ColumnBatch]) -> None:
    schema, rows = drawn
    assert same(there_and_back(schema, rows), rows)


@pytest.mark.parametrize("kind", FieldType)
@pytest.mark.parametrize("optional", [False, True])
def test_batch_without_rows(kind: FieldType, optional: bool) -> None:
    assert there_and_back(one(kind, optional), rows_of([])) == rows_of([])


@pytest.mark.parametrize("kind", FieldType)
@pytest.mark.parametrize("count", [1, 7, 8, 9, LIMITS.rows_max])
def test_column_of_nulls(kind: FieldType, count: int) -> None:
    rows = rows_of([None] * count)
    assert there_and_back(one(kind, True), rows) == rows


def test_largest_batch() -> None:
    dice = random.Random(7)
    count = LIMITS.rows_max
    schema = Schema(
        "Wide", (Field("a", FieldType.INT64), Field("b", FieldType.FLOAT64), Field("c", FieldType.STR, True))
    )
    rows = rows_of(
        [dice.getrandbits(63) for _ in range(count)],
        [dice.random() for _ in range(count)],
        [dice.choice([None, "ok", f"fault {dice.random()}"]) for _ in range(count)],
        first=INT64_MAX - count + 1,
    )
    assert same(there_and_back(schema, rows), rows)
    with pytest.raises(WireError, match="10001 rows do not fit one batch"):
        encode_rows(one(FieldType.BOOL), rows_of([True] * (count + 1)))


NANS = [struct.unpack("<Q", struct.pack("<d", n))[0] for n in (float("nan"), float("-nan"))]
SPECIAL_BITS = [*NANS, 0x7FF0000000000001, 0xFFF8000000001234, 0x7FF0000000000000, 1 << 63, 0, 1]


@pytest.mark.parametrize("pattern", SPECIAL_BITS)
@pytest.mark.parametrize("others", [[], [1.25], [0.0], [-0.0], [float("inf")]])
def test_float_keeps_its_bits(pattern: int, others: list[float]) -> None:
    special = struct.unpack("<d", struct.pack("<Q", pattern))[0]
    column = [special, *others, special]
    back = there_and_back(one(FieldType.FLOAT64), rows_of(column)).fields[0]
    assert list(map(bits, back)) == list(map(bits, column))


@pytest.mark.parametrize(
    "column",
    [
        [INT64_MIN, INT64_MAX],
        [INT64_MAX, INT64_MIN],
        [INT64_MIN, 0, INT64_MAX],
        [INT64_MAX] * 3,
        [INT64_MAX - 2, INT64_MAX - 1, INT64_MAX],
        [INT64_MIN + 2, INT64_MIN + 1, INT64_MIN],
        [-1, INT64_MAX - 1],
    ],
)
def test_both_ends_of_int64(column: list[int]) -> None:
    rows = ColumnBatch([column], column, ["s"] * len(column), column)
    assert there_and_back(one(FieldType.INT64), rows) == rows


def encoding_of(kind: FieldType, column: list[Any], optional: bool = False) -> tuple[int, float]:
    """(encoding, bytes a value) of a column, which also has to come back."""
    data = encode_column(kind, optional, column, LIMITS)
    back = decode_column(kind, optional, data, len(column), LIMITS)
    assert list(map(bits, back)) == list(map(bits, column))
    return pb.Column.FromString(data).encoding, len(data) / len(column)


def test_each_column_takes_its_smallest_encoding() -> None:
    dice = random.Random(3)
    day = 86_400_000_000
    walk = [round(20 + step / 100, 2) for step in accumulate(dice.randrange(-9, 10) for _ in range(1_000))]
    texts = [f"sensor-{dice.randrange(7)}" for _ in range(1_000)]
    cases: list[tuple[FieldType, list[Any], int, float]] = [
        (FieldType.INT64, [5] * 1_000, pb.Column.CONSTANT, 0.1),
        (FieldType.INT64, [n * day for n in range(14_000, 15_000)], pb.Column.DELTA, 1.1),
        (FieldType.INT64, [dice.randrange(50) for _ in range(1_000)], pb.Column.PLAIN, 1.1),
        (FieldType.FLOAT64, [1.5] * 1_000, pb.Column.CONSTANT, 0.1),
        (FieldType.FLOAT64, walk, pb.Column.DECIMAL_DELTA, 1.1),
        (FieldType.FLOAT64, [dice.randrange(100) / 10 for _ in range(1_000)], pb.Column.DECIMAL, 2.1),
        (FieldType.FLOAT64, [dice.random() for _ in range(1_000)], pb.Column.PLAIN, 8.1),
        (FieldType.BOOL, [dice.random() < 0.5 for _ in range(1_000)], pb.Column.PLAIN, 0.2),
        (FieldType.BOOL, [True] * 1_000, pb.Column.CONSTANT, 0.1),
        (FieldType.STR, ["AAPL"] * 1_000, pb.Column.CONSTANT, 0.1),
        (FieldType.STR, texts, pb.Column.DICTIONARY, 1.2),
        (FieldType.STR, [f"{n % 500:010}" for n in range(1_000)], pb.Column.DICTIONARY, 8.1),
        (FieldType.STR, [f"{n:04}" for n in range(1_000)], pb.Column.PLAIN, 6.1),
        (FieldType.BYTES, [b"\0" * (n % 3) for n in range(1_000)], pb.Column.DICTIONARY, 1.1),
    ]
    for kind, column, encoding, bytes_max in cases:
        chosen, size = encoding_of(kind, column)
        assert (chosen, size <= bytes_max) == (encoding, True), (kind, column[:3], chosen, size)


def test_decimals_only_where_every_bit_comes_back() -> None:
    cents = [n / 100 for n in range(100, 200)]
    assert encoding_of(FieldType.FLOAT64, cents)[0] == pb.Column.DECIMAL_DELTA
    for stranger in (-0.0, float("nan"), float("inf"), 1e300, 1.005e-9, 0.1 + 0.2):
        assert encoding_of(FieldType.FLOAT64, [*cents, stranger])[0] == pb.Column.PLAIN
    assert encoding_of(FieldType.FLOAT64, [*cents, 0.0])[0] == pb.Column.DECIMAL_DELTA


def test_nulls_take_a_bit_and_no_value() -> None:
    column = [None if n % 2 else 1.0 for n in range(1_000)]
    encoding, size = encoding_of(FieldType.FLOAT64, column, optional=True)
    assert encoding == pb.Column.CONSTANT
    assert size < 0.15


def test_telemetry_is_small() -> None:
    dice = random.Random(1)
    schema = Schema("Telemetry", (Field("sensor", FieldType.STR), Field("celsius", FieldType.FLOAT64)))
    count = 1_000
    celsius = [round(20 + step, 2) for step in accumulate(dice.gauss(0, 0.1) for _ in range(count))]
    rows = ColumnBatch(
        [[f"s{n % 7}" for n in range(count)], celsius],
        [1_700_000_000_000_000 + n * 1_000_000 + dice.randrange(50) * 1_000 for n in range(count)],
        ["device-1/telemetry"] * count,
        list(range(5_000, 5_000 + count)),
    )
    encoded = encode_rows(schema, rows)
    plain = zlib.decompress(encoded.body)
    assert encoded.flags == DEFLATED
    assert encoded.first_number == 5_000
    assert len(plain) / count < 11.5
    assert len(encoded.body) / count < 3.4


def test_numbers_travel_only_where_they_do_not_run() -> None:
    schema = one(FieldType.BOOL)
    running, gap = rows_of([True] * 4, first=9), rows_of([True] * 4)
    gap.numbers = [3, 4, 6, 7]
    assert encode_rows(schema, running).first_number == 9
    assert encode_rows(schema, gap).first_number == 0
    assert there_and_back(schema, gap) == gap


def test_few_rows_are_not_deflated_and_many_only_where_it_helps() -> None:
    schema = one(FieldType.STR)
    dice = random.Random(2)
    assert encode_rows(schema, rows_of(["a long text, many times" + str(n) for n in range(10)])).flags == 0
    assert (
        encode_rows(schema, rows_of(["a long text, many times" + str(n) for n in range(11)])).flags
        == DEFLATED
    )
    noise = ["".join(chr(dice.randrange(0x80, 0x10000 - 0x2800)) for _ in range(30)) for _ in range(11)]
    assert encode_rows(one(FieldType.BYTES), rows_of([dice.randbytes(50) for _ in noise])).flags == 0


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (FieldType.INT64, [INT64_MAX, INT64_MAX + 1]),
        (FieldType.INT64, [INT64_MAX + 1] * 2),
        (FieldType.INT64, [2**70, 2**70 + 1, 2**70 + 2]),
        (FieldType.INT64, [1, None]),
        (FieldType.INT64, [1.5, 2.5]),
        (FieldType.FLOAT64, [1.5, "x"]),
        (FieldType.FLOAT64, [None]),
        (FieldType.STR, ["a", "\ud800"]),
        (FieldType.STR, ["a", 5]),
        (FieldType.BYTES, [b"a", "b"]),
        (FieldType.BOOL, [True, None]),
    ],
)
def test_value_of_another_type_is_refused_by_name(kind: FieldType, column: list[Any]) -> None:
    with pytest.raises(WireError, match=f"field value: a value is not of type {kind.value}"):
        encode_rows(one(kind), rows_of(column))


def test_text_at_the_cap_travels_and_beyond_it_does_not() -> None:
    limits = Limits(text_bytes_max=100)
    for kind, unit in ((FieldType.STR, "é"), (FieldType.BYTES, b"ab")):
        assert len(encode_rows(one(kind), rows_of([unit * 50]), limits).body) > 100
        with pytest.raises(WireError, match="a text has 102 bytes; 100 are the most"):
            encode_rows(one(kind), rows_of([unit * 51, unit]), limits)


def test_rows_too_large_for_one_batch_are_refused_and_fewer_fit() -> None:
    schema = one(FieldType.BYTES)
    dice = random.Random(5)
    rows = rows_of([dice.randbytes(60_000) for _ in range(40)])
    with pytest.raises(WireError, match=r"40 rows have .* bytes as they travel"):
        encode_rows(schema, rows)
    few = encode_rows(schema, rows_of(rows.fields[0][:15]))
    largest_header = bytes(LIMITS.header_bytes_max)
    payload = encode_envelope(Envelope(largest_header, few.body, bytes(16), INT64_MAX))
    assert len(payload) <= LIMITS.payload_bytes_max


def test_largest_body_and_largest_header_fit_one_publish() -> None:
    largest = Envelope(
        bytes(LIMITS.header_bytes_max), bytes(LIMITS.sent_body_bytes_max), bytes(16), INT64_MAX
    )
    assert decode_envelope(encode_envelope(largest)) == largest


def test_one_text_in_many_rows_counts_in_each() -> None:
    schema = one(FieldType.STR)
    with pytest.raises(WireError, match="texts have 20000000 bytes"):
        encode_rows(schema, rows_of(["x" * 200_000] * 100))
    assert there_and_back(schema, rows_of(["x" * 200_000] * 40)) == rows_of(["x" * 200_000] * 40)


def test_schema_of_another_batch_is_refused() -> None:
    encoded = encode_rows(one(FieldType.INT64), rows_of([1, 2]))
    header = header_of(one(FieldType.INT64), 2, encoded.first_number, encoded.flags)
    with pytest.raises(WireError, match="is of schema"):
        decode_rows(one(FieldType.FLOAT64), header, encoded.body)
