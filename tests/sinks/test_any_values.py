"""Values of every type through every store and into messages: what is read there is what the record had."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from random import Random
from typing import Annotated, Any

import deltalake
import psycopg
import pyarrow.dataset as ds
import pytest
from psycopg.rows import dict_row

from geartrain import Digits, Record, Table
from geartrain.schema.logical import DEPTH_MAX
from geartrain.sinks import DeltaTable, KafkaSink, ParquetTable, PostgresTable, Sink, WebhookSink
from geartrain_cloud.sinks.tables import rows
from tests.postgres_server import Postgres
from tests.sinks import hooked
from tests.sinks.test_kafka_sink import Cluster
from tests.sinks.test_stores import columns, tables_of

RECORDS, BATCHES = 120, 3
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


class Side(Enum):
    BUY = 1
    SELL = 2


class Inner(Record):
    name: str
    level: float
    at: datetime | None = None


class Every(Record):
    number: int
    text: str
    whole: int
    real: float
    good: bool
    raw: bytes
    at: datetime
    price: Annotated[Decimal, Digits(18, 9)]
    large: Annotated[Decimal, Digits(18, 0)]
    side: Side
    words: list[str]
    counts: dict[str, int]
    inner: Inner
    maybe_text: str | None
    maybe_whole: int | None
    maybe_real: float | None
    maybe_good: bool | None
    maybe_raw: bytes | None
    maybe_at: datetime | None
    maybe_price: Annotated[Decimal, Digits(18, 9)] | None
    maybe_inner: Inner | None


def a_text(rng: Random) -> str:
    """Any characters but NUL, which PostgreSQL has not, and halves of pairs."""
    parts = [
        "",
        "ä",
        "\u2028",
        "\U0001f6a6",
        "\ufeff",
        "'",
        '"',
        "\\",
        "\n",
        "\x7f",
        "\x1b[31m",
        "NULL",
        "\\N",
        " ",
        "e\u0301",
    ]
    drawn = [chr(rng.choice([rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(2)]
    return "".join(rng.choices(parts + drawn, k=rng.randrange(6)))


def a_whole(rng: Random) -> int:
    return rng.choice([0, -1, 2**63 - 1, -(2**63), 2**53 + 1, rng.randrange(-(2**63), 2**63)])


def a_real(rng: Random) -> float:
    """Any 64 bits that are a number, and the numbers at the ends."""
    drawn: float = struct.unpack("<d", rng.randbytes(8))[0]
    ends = [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, -1e22, 2.0**63, math.inf, -math.inf]
    return rng.choice([*ends, 1.0 if math.isnan(drawn) else drawn, 1.0 if math.isnan(drawn) else drawn])


def a_time(rng: Random) -> datetime:
    ends = [
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        EPOCH,
        EPOCH - timedelta(microseconds=1),
    ]
    return rng.choice([*ends, EPOCH + timedelta(microseconds=rng.randrange(-(10**16), 10**16))])


def a_price(rng: Random) -> Decimal:
    """18 digits, nine of them behind the point."""
    return Decimal(
        rng.choice([0, 1, -1, 10**18 - 1, 1 - 10**18, rng.randrange(-(10**18) + 1, 10**18)])
    ).scaleb(-9)


def an_inner(rng: Random) -> Inner:
    return Inner(a_text(rng), a_real(rng), rng.choice([None, a_time(rng)]))


def a_record(number: int, rng: Random) -> Every:
    def maybe(draw: Callable[[Random], Any]) -> Any:
        return rng.choice([None, draw(rng)])

    return Every(
        number=number,
        text=a_text(rng),
        whole=a_whole(rng),
        real=a_real(rng),
        good=rng.random() < 0.5,
        raw=rng.randbytes(rng.randrange(5)),
        at=a_time(rng),
        price=a_price(rng),
        large=Decimal(rng.randrange(-(10**18) + 1, 10**18)),
        side=rng.choice(list(Side)),
        words=[a_text(rng) for _ in range(rng.randrange(3))],
        counts={a_text(rng): a_whole(rng) for _ in range(rng.randrange(3))},
        inner=an_inner(rng),
        maybe_text=maybe(a_text),
        maybe_whole=maybe(a_whole),
        maybe_real=maybe(a_real),
        maybe_good=maybe(lambda _: rng.random() < 0.5),
        maybe_raw=maybe(lambda _: rng.randbytes(3)),
        maybe_at=maybe(a_time),
        maybe_price=maybe(a_price),
        maybe_inner=maybe(an_inner),
    )


def in_json(value: Any) -> Any:
    """A value as tables and messages show it in JSON: no bytes, times or infinities, decimals as texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Record):
        return {name: in_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: in_json(one) for name, one in value.items()}
    return [in_json(one) for one in value] if isinstance(value, list) else value


def in_store(value: Any) -> Any:
    """A value as a store with types has it: what is nested is JSON."""
    if isinstance(value, Enum):
        return value.name
    return in_json(value) if isinstance(value, list | dict | Record) else value


def same(found: Row, wanted: Row) -> None:
    """Equal, floats bit for bit."""
    for name, value in wanted.items():
        held = found[name]
        if isinstance(value, list | dict):
            held = as_meant(json.loads(held) if isinstance(held, str) else held, value)
        assert (type(held), held) == (type(value), value), (name, held, value)
        if isinstance(value, float):
            assert struct.pack("<d", held) == struct.pack("<d", value), name


def as_meant(held: Any, wanted: Any) -> Any:
    """A value of JSON, its numbers as floats where floats were written: PostgreSQL writes 1e22 as digits."""
    if isinstance(wanted, float) and isinstance(held, int):
        return float(held)
    if isinstance(wanted, dict) and isinstance(held, dict):
        return {name: as_meant(one, wanted.get(name)) for name, one in held.items()}
    return held


def written(folder: Path, seed: int, *sinks: Sink) -> list[Every]:
    """Records of every type, written into these sinks in some micro-batches."""
    rng = Random(seed)
    records = [a_record(number, rng) for number in range(RECORDS)]
    tables = tables_of(folder, *sinks, kind=Every)
    tables.attach("q", "c", has_run=False)
    size = RECORDS // BATCHES
    for batch in range(BATCHES):
        few = columns(Every, *((one.number, one) for one in records[batch * size : (batch + 1) * size]))
        tables.write("q", batch, {"c": batch + 1}, {f"sink{number}": [few] for number in range(len(sinks))})
    tables.close()
    return records


def fields(record: Every, shown: Callable[[Any], Any]) -> Row:
    return {name: shown(getattr(record, name)) for name in Every.__struct_fields__}


@pytest.mark.parametrize("seed", range(3))
def test_files_have_every_value(tmp_path: Path, seed: int) -> None:
    records = written(tmp_path, seed, Table("own"), ParquetTable("parquet"), DeltaTable("delta"))
    own = rows(tmp_path / "tables.sqlite", "own")
    parquet: Any = ds.dataset(tmp_path / "parquet.parquet", format="parquet").to_table().to_pylist()
    delta: Any = deltalake.DeltaTable(str(tmp_path / "delta.delta")).to_pyarrow_table().to_pylist()
    for found, shown in ((own, in_json), (parquet, in_store), (delta, in_store)):
        assert len(found) == RECORDS
        for one in sorted(found, key=lambda row: row["number"]):
            same(one, fields(records[one["number"]], shown))


class Deep(Record):
    number: int
    part: Any = None


def test_files_have_what_is_nested_as_deep_as_it_may_be(tmp_path: Path) -> None:
    part: Any = 1.5
    for level in range(DEPTH_MAX):
        part = [part] if level % 2 else {"in": part}
    sinks = Table("own"), ParquetTable("parquet"), DeltaTable("delta")
    tables = tables_of(tmp_path, *sinks, kind=Deep)
    tables.attach("q", "c", has_run=False)
    batch = columns(Deep, (1, Deep(1, part)))
    tables.write("q", 0, {"c": 1}, {f"sink{number}": [batch] for number in range(len(sinks))})
    tables.close()
    assert rows(tmp_path / "tables.sqlite", "own") == [{"number": 1, "part": part}]
    parquet: Any = ds.dataset(tmp_path / "parquet.parquet", format="parquet").to_table().to_pylist()
    delta: Any = deltalake.DeltaTable(str(tmp_path / "delta.delta")).to_pyarrow_table().to_pylist()
    assert [json.loads(row["part"]) for row in (*parquet, *delta)] == [part, part]


def test_postgresql_has_every_value(tmp_path: Path, postgres: Postgres) -> None:
    dsn = postgres.database("values")
    records = written(tmp_path, 3, PostgresTable("every", dsn=dsn))
    with psycopg.connect(dsn, row_factory=dict_row) as db:
        db.execute("SET TIME ZONE 'UTC'")
        found = db.execute("SELECT * FROM every ORDER BY number").fetchall()
    assert len(found) == RECORDS
    for one in found:
        same(one, fields(records[one["number"]], in_store))


def test_messages_have_every_value(tmp_path: Path) -> None:
    cluster = Cluster()
    with hooked.receiving() as hooks:
        sinks = KafkaSink("kafka", brokers=cluster.brokers, topic="every"), WebhookSink("hook", url=hooks.url)
        records = written(tmp_path, 4, *sinks)
        asked = [body for _, _, body in hooks.asked]
    for found in ([value for _, value in cluster.read("every")], asked):
        assert len(found) == RECORDS
        for one in sorted(found, key=lambda row: row["number"]):
            same(one, fields(records[one["number"]], in_json))
