"""How many bytes a record takes on its way: our envelope against what else is used on such links.

A Geartrain figure is one whole publish: header with watermark and positions, envelope, digest, and rows with
event time and origin; the others are the rows with their times alone. What is sent is decoded and compared.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from operator import truediv
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import geartrain_examples
from geartrain import Record
from geartrain.ports import SplitProgress
from geartrain.records.event_time import SECOND_US, parse_time
from geartrain.schema import ColumnBatch, FieldType, RowCodec, Schema
from geartrain.wire.body import decode_rows, encode_rows
from geartrain.wire.codec import encode_envelope, encode_header
from geartrain.wire.envelope import BatchKind, Envelope, Header
from geartrain_examples.stocks.data import write_sample
from geartrain_examples.traffic.files import START, microseconds
from tests.bench.harness import Work

EXAMPLES = Path(geartrain_examples.__file__).parent


class Price(Record):
    """A quote."""

    symbol: str
    price: float


class Passed(Record):
    """A vehicle at a checkpoint."""

    detector: str
    edge: str
    lane: int
    vehicle: str
    speed_mps: float


class Level(Record):
    """A value of a series of the Numenta Anomaly Benchmark."""

    series: str
    value: float


class Reading(Record):
    """Telemetry of a room."""

    sensor: str
    celsius: float


Rows = list[tuple[int, Any]]


def _gzipped(path: str) -> Iterator[dict[str, str]]:
    with gzip.open(EXAMPLES / path, "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def traffic(folder: Path) -> Rows:
    """The sample of the traffic demo."""
    start = parse_time(START)
    return [
        (
            start + microseconds(row["time_s"]),
            Passed(row["detector"], row["edge"], int(row["lane"]), row["vehicle"], float(row["speed_mps"])),
        )
        for row in _gzipped("traffic/data/passes.csv.gz")
    ]


def stocks(folder: Path) -> Rows:
    """The sample of the stocks demo, by day."""
    write_sample(folder / "prices.csv")
    with (folder / "prices.csv").open(encoding="utf-8") as file:
        found = [
            (parse_time(row["date"]), Price(row["symbol"], float(row["price"])))
            for row in csv.DictReader(file)
        ]
    return sorted(found, key=lambda row: (row[0], row[1].symbol))


def nab(folder: Path) -> Rows:
    """The sample of the sensors example, by time."""
    found = [
        (parse_time(row["time"]), Level(row["series"], float(row["value"])))
        for row in _gzipped("sensors/data/nab.csv.gz")
    ]
    return sorted(found, key=lambda row: (row[0], row[1].series))


def telemetry(folder: Path) -> Rows:
    """20 keys, a walk each with one digit, one record a second, to the second."""
    rng, levels = random.Random(2), [20.0] * 20
    rows: Rows = []
    for number in range(2_000):
        levels[number % 20] = round(levels[number % 20] + rng.gauss(0, 0.1), 1)
        time = (1_700_000_000 + number) * SECOND_US
        rows.append((time, Reading(f"room-{number % 20}", levels[number % 20])))
    return rows


def _lines(rows: Rows) -> bytes:
    return b"".join(msgspec.json.encode({"time": t, **msgspec.structs.asdict(v)}) + b"\n" for t, v in rows)


def _ours(kind: Any, rows: Rows) -> int:
    """Bytes of one publish; the rows must come back as they were."""
    codec, count = RowCodec(kind), len(rows)
    values, times = [value for _, value in rows], [time for time, _ in rows]
    columns = ColumnBatch(codec.to_columns(values), times, ["d1/s"] * count, list(range(count)))
    encoded = encode_rows(codec.schema, columns)
    header = Header(
        BatchKind.DATA,
        "bench",
        "d1",
        b"e" * 8,
        7,
        "s",
        codec.schema.schema_id,
        count,
        encoded.first_number,
        dict.fromkeys(("s", "_dead_letters", "_late"), times[-1]),
        {("s", "d1/s"): SplitProgress(count, times[-1])},
        encoded.flags,
    )
    back = decode_rows(codec.schema, header, encoded.body)
    assert codec.from_columns(back.fields) == values
    assert (back.times, back.numbers) == (times, columns.numbers)
    return len(encode_envelope(Envelope(encode_header(header), encoded.body, b"d" * 16, 1)))


_PROTOBUF = {
    FieldType.STR: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    FieldType.FLOAT64: descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    FieldType.INT64: descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
}


def _protobuf(schema: Schema, rows: Rows) -> int:
    """Bytes of the rows as a repeated protobuf message, one a row, as one would write it."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{schema.schema_id}.proto", package="bench")
    row = file.message_type.add(name="Row")
    time = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
    for number, (name, kind) in enumerate(
        [("time_us", time), *((f.name, _PROTOBUF[f.type]) for f in schema.fields)]
    ):
        row.field.add(name=name, number=number + 1, type=kind, label=1)
    batch = file.message_type.add(name="Batch")
    batch.field.add(name="rows", number=1, type=11, label=3, type_name=".bench.Row")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Batch"))()
    for at, value in rows:
        made.rows.add(time_us=at, **msgspec.structs.asdict(value))
    return len(made.SerializeToString())


def _arrow(rows: Rows) -> int:
    """Bytes of the rows as an Arrow IPC stream with zstd, strings as dictionaries."""
    table = pa.Table.from_pylist([{"time": t, **msgspec.structs.asdict(v)} for t, v in rows])
    for index, column in enumerate(table.columns):
        if pa.types.is_string(column.type):
            table = table.set_column(index, table.column_names[index], column.dictionary_encode())
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table.combine_chunks())
    return len(sink.getvalue())


@pytest.mark.parametrize("batch", [10, 1_000])
@pytest.mark.parametrize(
    ("name", "kind", "load"),
    [
        ("traffic", Passed, traffic),
        ("stocks", Price, stocks),
        ("NAB", Level, nab),
        ("telemetry", Reading, telemetry),
    ],
)
def test_bytes_of_a_record(name: str, kind: Any, load: Any, batch: int, tmp_path: Path) -> None:
    rows: Sequence[tuple[int, Any]] = load(tmp_path)[:batch]
    assert len(rows) == batch
    given = list(rows)
    lines = _lines(given)
    sizes = {
        "json": len(lines),
        "json + zlib": len(zlib.compress(lines)),
        "protobuf rows": _protobuf(RowCodec(kind).schema, given),
        "arrow ipc + zstd": _arrow(given),
        "geartrain": _ours(kind, given),
    }
    best = min((found for found in sizes if found != "geartrain"), key=sizes.__getitem__)
    Work(
        f"link: {name} x {batch}",
        "bytes/record",
        {found: partial(truediv, size, batch) for found, size in sizes.items()},
        ("json", best),
        versions=("protobuf", "pyarrow"),
        goals={"geartrain": {best: 1.1}} if batch == 1_000 else {"geartrain": {}},
    ).run(rounds=1)
    assert sizes["geartrain"] < sizes["json"]
