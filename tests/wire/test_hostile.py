"""Whatever arrives, decoding it raises only `WireError`, in bounded time and memory."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from geartrain.errors import WireError
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.body import decode_rows, encode_rows
from geartrain.wire.codec import decode_control, decode_envelope, decode_gap, decode_header, decode_schemas
from geartrain.wire.columns import encode_column
from geartrain.wire.envelope import DEFLATED
from geartrain.wire.limits import LIMITS, Limits
from tests.waiting import WAIT_S
from tests.wire import golden_batches as golden
from tests.wire.batches import batches, header_of

INTS = Schema("Ints", (Field("value", FieldType.INT64),))


def decode_body(body: bytes, flags: int = 0, count: int = 3) -> ColumnBatch:
    return decode_rows(golden.QUOTE, replace(golden.FEW_HEADER, flags=flags, count=count), body)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "header": decode_header,
    "envelope": decode_envelope,
    "control": decode_control,
    "schemas": decode_schemas,
    "gap": lambda body: decode_gap(golden.GAP_HEADER, body),
    "body": decode_body,
    "deflated body": lambda body: decode_body(body, DEFLATED),
}


def survives(decode: Callable[[bytes], Any], data: bytes) -> bool:
    """Whether `data` was decoded; False when it was refused. Any other error is the test's failure."""
    try:
        decode(data)
    except WireError:
        return False
    return True


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=300))
@settings(deadline=None, max_examples=150)
def test_arbitrary_bytes(name: str, data: bytes) -> None:
    assert survives(DECODERS[name], data) in (True, False)


def flips(data: bytes) -> Iterator[bytes]:
    """`data` with each of its bits flipped in turn, and cut short at each byte."""
    for index in range(len(data)):
        yield data[:index]
        for bit in range(8):
            yield data[:index] + bytes([data[index] ^ (1 << bit)]) + data[index + 1 :]


VALID: list[tuple[str, Callable[[bytes], Any]]] = [
    ("few_header", decode_header),
    ("many_header", decode_header),
    ("dropped_header", decode_header),
    ("gap_header", decode_header),
    ("hello_header", decode_header),
    ("gap_body", lambda body: decode_gap(golden.GAP_HEADER, body)),
    ("envelope", decode_envelope),
    ("ack", decode_control),
    ("nack", decode_control),
    ("need_schema", decode_control),
    ("welcome", decode_control),
    ("offer", decode_control),
    ("welcome", decode_control),
    ("ordinal_header", decode_header),
    ("schemas", decode_schemas),
    ("few_body", decode_body),
    ("many_body", lambda body: decode_rows(golden.QUOTE, golden.MANY_HEADER, body)),
]


@pytest.mark.parametrize(("name", "decode"), VALID, ids=[name for name, _ in VALID])
def test_every_bit_flipped_and_every_cut(name: str, decode: Callable[[bytes], Any]) -> None:
    data = (golden.FOLDER / f"{name}.bin").read_bytes()
    survived = [survives(decode, flipped) for flipped in flips(data)]
    assert survives(decode, data)
    assert survived.count(False) > len(data)


@given(batches(), st.data())
@settings(deadline=None, max_examples=200)
def test_damaged_rows(drawn: tuple[Schema, ColumnBatch], data: st.DataObject) -> None:
    schema, rows = drawn
    encoded = encode_rows(schema, rows)
    body = bytearray(encoded.body)
    for _ in range(data.draw(st.integers(1, 4)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    count = data.draw(st.sampled_from([len(rows), len(rows) + 1, 0, 1, LIMITS.rows_max]))
    flags = data.draw(st.sampled_from([encoded.flags, 0, 1]))
    header = header_of(schema, count, encoded.first_number, flags)
    assert survives(lambda damaged: decode_rows(schema, header, damaged), bytes(body)) in (True, False)


def test_more_rows_than_the_cap_are_refused_before_the_body_is_touched() -> None:
    with pytest.raises(WireError, match="10001 rows; 10000 are the most"):
        decode_body(b"", DEFLATED, LIMITS.rows_max + 1)


def test_zip_bomb_is_refused_at_the_cap() -> None:
    bomb = zlib.compress(bytes(1 << 26), 1)
    assert len(bomb) < LIMITS.payload_bytes_max
    start = time.monotonic()
    with pytest.raises(WireError, match="inflates to more than 8388608 bytes"):
        decode_body(bomb, DEFLATED)
    assert time.monotonic() - start < 5


def test_deflated_body_at_the_cap_is_inflated() -> None:
    schema = Schema("One", (Field("value", FieldType.STR),))
    texts = [f"the text of row {n}" for n in range(100)]
    encoded = encode_rows(schema, ColumnBatch([texts], [1] * 100, ["s"] * 100, list(range(100))))
    size = len(zlib.decompress(encoded.body))
    header = header_of(schema, 100, 0, encoded.flags)
    assert decode_rows(schema, header, encoded.body, Limits(body_bytes_max=size)).fields == [texts]
    with pytest.raises(WireError, match="inflates to more than"):
        decode_rows(schema, header, encoded.body, Limits(body_bytes_max=size - 1))


@pytest.mark.parametrize("tail", [b"\0", b"x" * 100, zlib.compress(b"more")])
def test_bytes_after_a_deflated_body_are_refused(tail: bytes) -> None:
    body = (golden.FOLDER / "many_body.bin").read_bytes()
    with pytest.raises(WireError, match="cut short or goes on after its end"):
        decode_rows(golden.QUOTE, golden.MANY_HEADER, body + tail)


def test_body_cut_short_is_refused() -> None:
    body = (golden.FOLDER / "many_body.bin").read_bytes()
    with pytest.raises(WireError, match="cut short"):
        decode_rows(golden.QUOTE, golden.MANY_HEADER, body[:-1])


def column(**parts: Any) -> bytes:
    return bytes(pb.Column(**parts).SerializeToString())


TIMES = encode_column(FieldType.INT64, False, [1, 2, 3], LIMITS)
NAMES = encode_column(FieldType.STR, False, ["s"] * 3, LIMITS)

WRONG_COLUMNS: list[tuple[FieldType, dict[str, Any], str]] = [
    (FieldType.INT64, {"encoding": 1, "ints": [1, 2]}, "2 values for 3 rows"),
    (FieldType.INT64, {"encoding": 1, "ints": [1] * 4}, "4 values for 3 rows"),
    (FieldType.INT64, {"encoding": 2, "ints": [1] * 3}, "3 values for 1 rows"),
    (FieldType.INT64, {"encoding": 3, "ints": [1] * 3}, "3 values for 2 rows"),
    (FieldType.INT64, {"encoding": 3, "base": 2**63 - 1, "unit": 1, "ints": [1, -1]}, "leaves 64 bits"),
    (FieldType.INT64, {"encoding": 3, "unit": 2**64 - 1, "ints": [2**62] * 2}, "leaves 64 bits"),
    (FieldType.INT64, {"encoding": 0, "ints": [1] * 3}, "encoding 0 is not one of int64 columns"),
    (FieldType.INT64, {"encoding": 4, "indexes": [0] * 3}, "encoding 4 is not one of int64 columns"),
    (FieldType.INT64, {"encoding": 99}, "encoding 99 is not one of int64 columns"),
    (FieldType.INT64, {"encoding": 1, "nulls": b"\1", "ints": [1, 2]}, "not optional"),
    (FieldType.INT64, {"encoding": 1, "ints": [2**63 - 1] * 40}, "bytes; 164 are the most"),
    (FieldType.FLOAT64, {"encoding": 1, "ints": [1] * 3}, "0 values for 3 rows"),
    (FieldType.FLOAT64, {"encoding": 5, "digits": 10, "ints": [1] * 3}, "10 decimal digits"),
    (FieldType.FLOAT64, {"encoding": 6, "digits": 2**32 - 1, "ints": [1] * 2}, "decimal digits"),
    (FieldType.BOOL, {"encoding": 1, "bits": b""}, "0 bytes for 3 rows"),
    (FieldType.BOOL, {"encoding": 1, "bits": b"\1\1"}, "2 bytes for 3 rows"),
    (FieldType.BOOL, {"encoding": 1, "bits": b"\x08"}, "bits beyond its rows"),
    (FieldType.BOOL, {"encoding": 2, "bits": b"\2"}, "bits beyond its rows"),
    (FieldType.STR, {"encoding": 4, "texts": ["a"], "indexes": [0, 0, 1]}, "index beyond its dictionary"),
    (
        FieldType.STR,
        {"encoding": 4, "texts": ["a"], "byte_indexes": b"\0\0\1"},
        "index beyond its dictionary",
    ),
    (FieldType.STR, {"encoding": 4, "texts": ["a"], "byte_indexes": b"\0\0"}, "2 indexes for 3 rows"),
    (FieldType.STR, {"encoding": 4, "texts": ["a"], "indexes": [0] * 2}, "2 values for 3 rows"),
    (FieldType.STR, {"encoding": 4, "texts": ["a"] * 4, "indexes": [0] * 3}, "4 texts or indexes for 3 rows"),
    (FieldType.STR, {"encoding": 1, "blobs": [b"a"] * 3}, "0 values for 3 rows"),
    (FieldType.STR, {"encoding": 2}, "0 values for 1 rows"),
    (
        FieldType.BYTES,
        {"encoding": 1, "blobs": [b"x" * (LIMITS.text_bytes_max + 1)] * 3},
        "a text has 262145",
    ),
]


@pytest.mark.parametrize(("kind", "parts", "said"), WRONG_COLUMNS)
def test_column_that_does_not_fit_is_refused(kind: FieldType, parts: dict[str, Any], said: str) -> None:
    schema = Schema("One", (Field("value", kind),))
    body = pb.Rows(fields=[column(**parts)], times=TIMES, names=NAMES).SerializeToString()
    with pytest.raises(WireError, match=said):
        decode_rows(schema, header_of(schema, 3, 0, 0), body)


def test_text_that_is_not_unicode_is_refused() -> None:
    schema = Schema("One", (Field("value", FieldType.STR),))
    body = pb.Rows(fields=[b"\x08\1" + b"\x32\1\xff" * 3], times=TIMES, names=NAMES).SerializeToString()
    with pytest.raises(WireError, match="cannot be parsed"):
        decode_rows(schema, header_of(schema, 3, 0, 0), body)


@pytest.mark.parametrize(
    ("nulls", "said"), [(b"\1\0", "2 bytes for 3 rows"), (b"\x10", "bits beyond its rows")]
)
def test_null_bitmap_that_does_not_fit_is_refused(nulls: bytes, said: str) -> None:
    schema = Schema("One", (Field("value", FieldType.INT64, True),))
    body = pb.Rows(fields=[column(encoding=1, nulls=nulls, ints=[1] * 3)], times=TIMES, names=NAMES)
    with pytest.raises(WireError, match=said):
        decode_rows(schema, header_of(schema, 3, 0, 0), body.SerializeToString())


@pytest.mark.parametrize("count", [0, 2])
def test_columns_are_counted(count: int) -> None:
    body = pb.Rows(fields=[TIMES] * count, times=TIMES, names=NAMES).SerializeToString()
    with pytest.raises(WireError, match=f"{count} columns for 1 fields"):
        decode_rows(INTS, header_of(INTS, 3, 0, 0), body)


def test_missing_times_or_names_are_refused() -> None:
    for parts in ({"names": NAMES}, {"times": TIMES}):
        body = pb.Rows(fields=[TIMES], **parts).SerializeToString()
        with pytest.raises(WireError, match="encoding 0"):
            decode_rows(INTS, header_of(INTS, 3, 0, 0), body)


def test_running_numbers_stay_in_64_bits() -> None:
    body = pb.Rows(fields=[TIMES], times=TIMES, names=NAMES).SerializeToString()
    assert decode_rows(INTS, header_of(INTS, 3, 2**63 - 3, 0), body).numbers[-1] == 2**63 - 1
    with pytest.raises(WireError, match="leave 64 bits"):
        decode_rows(INTS, header_of(INTS, 3, 2**63 - 2, 0), body)


def test_dictionary_does_not_grow_beyond_the_cap() -> None:
    schema = Schema("One", (Field("value", FieldType.STR),))
    rows = 10_000
    times = encode_column(FieldType.INT64, False, [0] * rows, LIMITS)
    names = encode_column(FieldType.STR, False, ["s"] * rows, LIMITS)
    for parts in (
        {"encoding": 2, "texts": ["x" * 200_000]},
        {"encoding": 4, "texts": ["x" * 200_000], "byte_indexes": bytes(rows)},
        {"encoding": 4, "texts": ["x" * 200_000], "indexes": [0] * rows},
    ):
        body = pb.Rows(fields=[column(**parts)], times=times, names=names).SerializeToString()
        with pytest.raises(WireError, match="texts have 2000000000 bytes"):
            decode_rows(schema, header_of(schema, rows, 0, 0), body)


PEAK_MEMORY = """
import resource, sys, zlib
from geartrain.errors import WireError
from geartrain.schema import Field, FieldType, Schema
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_header
from tests.wire.batches import header_of

def field(number, data):
    size, length = len(data), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data

N = (8 << 20) - 100
schema = Schema("S", (Field("a", FieldType.STR), Field("b", FieldType.INT64)))
plain, texts = b"\\x08\\1", b"\\x32\\0" * (N // 2 - 9)
bodies = lambda: (
    bytes(1 << 25),
    b"\\x0a\\0" * (N // 2),
    field(1, plain + texts) + field(1, b""),
    field(1, b"\\x08\\4\\x32\\0" + field(8, bytes(N))) + field(1, b""),
    field(1, plain + field(3, bytes(N))) + field(1, b""),
    field(1, b"") + field(1, plain + field(3, bytes(N))),
    b"\\x0b" * N,
    b"\\x78\\0" * (N // 2),
)
headers = [b"\\x08\\1\\x10\\1" + unit * (1 << 14) for unit in (b"\\x62\\0", b"\\x6a\\0", b"\\x62\\2\\x0a\\0")]
packed = [zlib.compress(body, 1) for body in bodies()]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refused = 0
for body in packed:
    try:
        decode_rows(schema, header_of(schema, 10, 0, 1), body)
    except WireError:
        refused += 1
for header in headers:
    try:
        decode_header(header)
    except WireError:
        refused += 1
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(refused, len(packed) + len(headers), grown * (1 if sys.platform == "darwin" else 1024) >> 20)
"""


def test_memory_is_bounded_whatever_a_small_publish_inflates_to() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK_MEMORY], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, all_of_them, grown_mb = map(int, done.stdout.split())
    assert refused == all_of_them == 11
    assert grown_mb < 256
