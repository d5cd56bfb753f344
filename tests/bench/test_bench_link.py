"""Bytes over the link: one record of stock prices and of sensor telemetry, in batches of 1,000 and of 10.

A size is exact and needs no rounds; JSON lines and JSON with zlib stand beside it. The batch is decoded
again.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
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


def _walk(rng: random.Random, start: float, step: float, digits: int) -> Iterator[float]:
    value = start
    while True:
        value += rng.gauss(0, step)
        yield round(value, digits)


def _prices(count: int) -> list[Any]:
    rng = random.Random(1)
    walks = [_walk(rng, 100, 0.5, 2) for _ in range(5)]
    return [Price(f"S{i % 5}", next(walks[i % 5])) for i in range(count)]


def _telemetry(count: int) -> list[Any]:
    rng = random.Random(2)
    walks = [_walk(rng, 20, 0.1, 1) for _ in range(20)]
    return [Reading(f"room-{i % 20}", next(walks[i % 20]), rng.random() > 0.01) for i in range(count)]


def _times(count: int) -> list[int]:
    """About one a second, with a jitter of milliseconds, as devices have it."""
    rng = random.Random(3)
    return [1_700_000_000_000_000 + 1_000_000 * i + rng.randrange(20) * 1_000 for i in range(count)]


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
    times = _times(batch)
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
