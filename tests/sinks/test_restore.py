"""Stores go on where they stand, though some are a micro-batch ahead of the flow's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
import pyarrow.dataset as ds
import pytest

from geartrain import Flow, Record, Table
from geartrain.schema import ColumnBatch
from geartrain.sinks import ParquetTable, PostgresTable
from geartrain.testing import TestingSource
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Tables, is_reached
from geartrain_cloud.sinks.tables import rows
from tests.postgres_server import Postgres

SINKS = ("own", "parquet", "postgres")
Batch = tuple[int, Mapping[str, int], Mapping[str, list[ColumnBatch]]]


class Count(Record):
    n: int


def tables_of(folder: Path, dsn: str) -> Tables:
    flow = Flow("counts")
    source = flow.source("counts", TestingSource[Count](), out=Count)
    source.sink("own", Table("counts"))
    source.sink("parquet", ParquetTable("counts"))
    source.sink("postgres", PostgresTable("counts", dsn=dsn))
    return open_tables(flow.graph(), folder / "tables.sqlite")


def batch(batch_id: int, after: int, upto: int) -> Batch:
    """A micro-batch of the records after one position up to another, for all sinks."""
    numbers = list(range(after + 1, upto + 1))
    made = [ColumnBatch([numbers], numbers, ["s"] * len(numbers), numbers)]
    return batch_id, {"counts": upto}, dict.fromkeys(SINKS, made)


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database("restored")


def held(folder: Path, dsn: str) -> list[list[int]]:
    """What each store has, in order."""
    dataset = ds.dataset(folder / "counts.parquet", format="parquet").to_table()
    with psycopg.connect(dsn) as db:
        other = db.execute("SELECT n FROM counts ORDER BY n").fetchall()
    own = [row["n"] for row in rows(folder / "tables.sqlite", "counts")]
    return [sorted(own), sorted(n for n in dataset.column("n").to_pylist() if n), [n for (n,) in other]]


def test_stores_that_do_not_stand_together_are_each_given_what_they_lack(
    tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(tmp_path, dsn)
    tables.attach("q", "c", has_run=False)
    assert tables.write("q", *batch(0, 0, 3))
    with monkeypatch.context() as patched:
        patched.setattr(SqliteTables, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            tables.write("q", *batch(1, 3, 5))
    assert held(tmp_path, dsn) == [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    assert tables.ahead("q") == {"counts": 5}
    tables.close()

    tables = tables_of(tmp_path, dsn)
    tables.attach("q", "c", has_run=True)
    assert tables.positions("q") == {"counts": 3}
    assert tables.write("q", *batch(1, 3, 5))
    assert not tables.write("q", *batch(1, 3, 5))
    assert tables.write("q", *batch(2, 5, 9))
    assert held(tmp_path, dsn) == [list(range(1, 10))] * 3
    assert tables.ahead("q") == {}
    tables.close()


def killed(*_: object) -> Callable[..., bool]:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("stands", "positions", "reached"),
    [
        ({"a": 3}, {"a": 3}, True),
        ({"a": 3}, {"a": 4}, False),
        ({"a": 3, "b": 1}, {"a": 1, "b": 2}, False),
        ({}, {"a": 0}, True),
        ({}, {"a": 1}, False),
    ],
)
def test_positions_are_compared_key_by_key(
    stands: Mapping[str, int], positions: Mapping[str, int], *, reached: bool
) -> None:
    assert is_reached(stands, positions) is reached
