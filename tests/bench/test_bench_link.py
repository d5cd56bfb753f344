"""Bytes over the link: one record of stock prices and of sensor telemetry, in batches of 1,000 and of 10.

A size is exact and needs no rounds; JSON lines and JSON with zlib stand beside it. The batch is decoded
again.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from geartrain import Record
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.wire.body import decode_rows, encode_rows
from geartrain.wire.codec import encode_envelope, encode_header
from geartrain.wire.envelope import BatchKind, Envelope, Header
from tests.bench.harness import Work


class Price(Record):
    symbol: str
    price: float


class Reading(Record):
    sensor: str
    celsius: float
    ok: bool


def _prices(count: int) -> list[Any]:
    return [Price(f"S{i % 5}", round(100 + 20 * math.sin(i / 50) + i % 7 / 8, 2)) for i in range(count)]


def _telemetry(count: int) -> list[Any]:
    return [Reading(f"room-{i % 20}", round(20 + math.sin(i / 100), 1), i % 97 != 0) for i in range(count)]


def _payload(kind: Any, values: Sequence[Any], times: list[int]) -> int:
    """Bytes of one publish, the envelope and header included; the rows must come back as they were."""
    codec = RowCodec(kind)
    rows = ColumnBatch(codec.to_columns(values), times, ["d1/s"] * len(values), list(range(len(values))))
    encoded = encode_rows(codec.schema, rows)
    header = Header(
        BatchKind.DATA,
        "bench",
        "d1",
        b"e" * 8,
        7,
        "s",
        codec.schema.schema_id,
        len(values),
        encoded.first_number,
        {"s": times[-1]},
        {},
        encoded.flags,
    )
    back = decode_rows(codec.schema, header, encoded.body)
    assert codec.from_columns(back.fields) == list(values)
    assert (back.times, back.numbers) == (times, rows.numbers)
    return len(encode_envelope(Envelope(encode_header(header), encoded.body, b"d" * 16, 1)))


@pytest.mark.parametrize("batch", [10, 1_000])
@pytest.mark.parametrize(("name", "kind"), [("prices", Price), ("telemetry", Reading)])
def test_link_bytes_of_a_record(name: str, kind: Any, batch: int) -> None:
    values = _prices(batch) if kind is Price else _telemetry(batch)
    times = [1_700_000_000_000_000 + 1_000_000 * i for i in range(batch)]
    lines = b"".join(msgspec.json.encode((t, v)) + b"\n" for t, v in zip(times, values, strict=True))
    rows = Work(
        f"link {name} x {batch}",
        "bytes/record",
        {
            "json": lambda: len(lines) / batch,
            "json + zlib": lambda: len(zlib.compress(lines)) / batch,
            "geartrain": lambda: _payload(kind, values, times) / batch,
        },
        against="json",
        versions=("protobuf",),
    ).run(rounds=1)
    assert rows[2]["median"] < rows[0]["median"]
