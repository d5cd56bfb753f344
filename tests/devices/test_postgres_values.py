"""Values of every type from a real PostgreSQL: each field of a record has what the row had."""

from __future__ import annotations

import asyncio
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Annotated, Any

import psycopg

from geartrain import Digits, Record
from geartrain_devices.postgres_query import PostgresQuery
from tests.devices.reading import until
from tests.postgres_server import Postgres
from tests.sinks.test_any_values import a_real, a_text, a_whole

ROWS = 200
COLUMNS = {
    "id": "bigint",
    "text": "text",
    "whole": "bigint",
    "small": "smallint",
    "real": "double precision",
    "single": "real",
    "good": "boolean",
    "at": "timestamptz",
    "price": "numeric",
    "large": "numeric(18,9)",
    "side": "text",
    "words": "text[]",
    "counts": "jsonb",
    "raw": "bytea",
}


class Side(Enum):
    BUY = 1
    SELL = 2


class Every(Record):
    id: int
    text: str | None
    whole: int
    small: int
    real: float
    single: float
    good: bool
    at: datetime
    price: Annotated[Decimal, Digits(18, 4)]
    large: Annotated[Decimal, Digits(18, 9)]
    side: Side
    words: list[str]
    counts: dict[str, int]
    raw: bytes


def a_row(number: int, rng: Random) -> dict[str, Any]:
    """A row as psycopg takes it."""
    return {
        "id": number,
        "text": rng.choice([None, a_text(rng)]),
        "whole": a_whole(rng),
        "small": rng.randrange(-(2**15), 2**15),
        "real": rng.choice(
            [one for one in (a_real(rng) for _ in range(9)) if abs(one) < float("inf")] or [0.5]
        ),
        "single": struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0],
        "good": rng.random() < 0.5,
        "at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**16)),
        "price": Decimal(rng.randrange(-(10**18) + 1, 10**18)).scaleb(-4),
        "large": Decimal(rng.randrange(-(10**18) + 1, 10**18)).scaleb(-9),
        "side": rng.choice(["BUY", "SELL"]),
        "words": [a_text(rng) for _ in range(rng.randrange(3))],
        "counts": psycopg.types.json.Jsonb({a_text(rng): a_whole(rng) for _ in range(rng.randrange(3))}),
        "raw": rng.randbytes(rng.randrange(6)),
    }


def test_each_field_has_what_the_row_had(postgres: Postgres) -> None:
    rng, dsn = Random(1), postgres.database("every")
    rows = [a_row(number, rng) for number in range(ROWS)]
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(f"CREATE TABLE every ({', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())})")
        names = ", ".join(f"%({name})s" for name in COLUMNS)
        for row in rows:
            db.execute(f"INSERT INTO every VALUES ({names})", row)

    async def read() -> Any:
        source = PostgresQuery[Every](query="SELECT * FROM every", dsn=dsn, every_s=0.01)
        (split,) = source.open("cloud-1", "every", Every)
        found = await until(split, ROWS)
        await split.close()
        return found

    found = asyncio.run(read())
    assert found.rejects == []
    assert len(found.values) == ROWS
    for row, record in zip(rows, found.values, strict=True):
        for name in COLUMNS:
            value, held = row[name], getattr(record, name)
            if name == "single":  # of its 32 bits PostgreSQL writes the fewest digits that say which they are
                assert struct.pack("<f", held) == struct.pack("<f", value)
                continue
            value = value.obj if name == "counts" else Side[value] if name == "side" else value
            assert (type(held), held) == (type(value), value), (name, held, value)
            if name == "real":  # the sign of zero counts
                assert struct.pack("<d", held) == struct.pack("<d", value)
