"""Tables that change with random chains of revisions, beside a model of plain Python."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geartrain.declarations.sink import Sink, Table
from geartrain.sinks import ParquetTable, PostgresTable
from geartrain_cloud.sinks.opening import SinkPlace, open_places
from geartrain_cloud.sinks.own import OwnTables, SqliteReader, TablesReader
from geartrain_cloud.sinks.parquet_form import read_table
from geartrain_cloud.sinks.postgres_reading import PostgresReader
from geartrain_cloud.sinks.postgres_schema import PostgresSchema
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Tables
from tests.postgres_server import Postgres
from tests.sinks.evolving import Column, Model, batches, chains, column_batch, layout_of, ordered

QUERY, IDENTITY = "hosted", "c"


class Flow:
    """One flow's tables under revisions; what opens them is what runs in production."""

    def __init__(self, folder: Path, own: Callable[[], OwnTables], sinks: dict[str, Sink]) -> None:
        self._folder, self._own, self._sinks = folder, own, sinks
        self.models = {sink: Model(bool(table.key)) for sink, table in sinks.items()}
        self.batch = -1
        self.tables: Tables | None = None

    def places(self, columns: list[Column]) -> list[SinkPlace]:
        layouts = [layout_of(sink, table, columns) for sink, table in self._sinks.items()]
        return [SinkPlace(one.sink, one.table, one.schema, one.defaults) for one in layouts]

    def open(self, columns: list[Column], *, evolving: bool) -> Tables:
        if self.tables is not None:
            self.tables.close()
        self.tables = open_places("flow", self.places(columns), self._own(), self._folder, evolving=evolving)
        self.tables.attach(QUERY, IDENTITY, has_run=self.batch >= 0)
        return self.tables

    def write(self, columns: list[Column], rows: list[Any], *, again: bool) -> None:
        assert self.tables is not None
        batch = column_batch(columns, rows)
        self.batch += 1
        for expected in (True, False) if again else (True,):
            given_rows = {sink: [batch] for sink in self._sinks}
            assert (
                self.tables.write(QUERY, self.batch, {"0": self.batch + 1}, given_rows, len(rows)) == expected
            )
        for model in self.models.values():
            model.become(columns)
            for row, place in rows:
                model.write(dict(row), place)


def run_chain(data: st.DataObject, flow: Flow, chain: list[list[Column]], check: Callable[[], None]) -> None:
    flow.open(chain[0], evolving=False)
    before = chain[0]
    for revision, columns in enumerate(chain):
        if revision:
            if data.draw(st.booleans()):  # the program ended, and begins again with either revision
                tables = flow.open(data.draw(st.sampled_from([before, columns])), evolving=True)
            assert flow.tables is not None
            tables = flow.tables
            layouts = [place.layout for place in flow.places(columns)]
            assert len(tables.planned(layouts)) == len(layouts)
            tables.evolve(layouts)
            check()  # nothing has changed yet
        for _ in range(data.draw(st.integers(1, 2))):
            rows = data.draw(batches(columns, first=100 * (flow.batch + 1)))
            flow.write(columns, rows, again=data.draw(st.booleans()))
            check()
        before = columns
    flow.open(chain[-1], evolving=False)  # what is there is what an ordinary start expects
    assert flow.tables is not None
    flow.tables.close()


def shown(reader: TablesReader, table: str) -> list[dict[str, Any]]:
    return reader.page(table, 0, 1_000)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_files_are_what_the_model_says(data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / "t.sqlite"
        sinks: dict[str, Sink] = {"every": Table("each"), "last": Table("latest", key=("sensor",))}
        flow, reader = Flow(folder, lambda: SqliteTables(path), sinks), SqliteReader(path)

        def check() -> None:
            every, last = flow.models["every"], flow.models["last"]
            if flow.batch >= 0:
                assert reader.columns("each") == [c.name for c in every.columns]
                found, _ = reader.rows_after("each", 0, 1_000)
                assert list(map(repr, found)) == list(map(repr, every.shown()))  # and in the order of writing
                assert ordered(shown(reader, "latest")) == ordered(last.shown())

        run_chain(data, flow, data.draw(chains(again=True)), check)
    finally:
        shutil.rmtree(folder)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_parquet_is_what_the_model_says(data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        flow = Flow(folder, lambda: SqliteTables(folder / "t.sqlite"), {"files": ParquetTable("files")})
        kept: dict[str, bytes] = {}

        def check() -> None:
            model = flow.models["files"]
            if flow.batch < 0:
                return
            names = [c.name for c in model.columns]
            table = read_table(folder / "files.parquet")
            assert table.column_names[: len(names)] == names
            assert ordered(table.select(names).to_pylist()) == ordered(model.in_parquet())
            outside = ds.dataset(folder / "files.parquet", format="parquet").to_table()
            if model.rows:
                assert set(outside.column_names) == set(table.column_names)
            assert len(outside) == len(model.rows)
            for path in (folder / "files.parquet").glob("hosted*.parquet"):
                assert kept.setdefault(path.name, path.read_bytes()) == path.read_bytes()

        run_chain(data, flow, data.draw(chains(again=False)), check)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database("geartrain_chains")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_postgres_is_what_the_model_says(dsn: str, data: st.DataObject) -> None:
    """A schema of the platform's, and tables in a database of somebody's."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}")
    theirs = f"{dsn} options='-c search_path={name} -c timezone=UTC'"
    sinks: dict[str, Sink] = {
        "every": Table("each"),
        "last": Table("latest", key=("sensor",)),
        "theirs": PostgresTable("latest", key=("sensor",), dsn=theirs),
    }
    with tempfile.TemporaryDirectory() as folder:
        own = f"own_{name}"
        flow = Flow(Path(folder), lambda: PostgresSchema(dsn, own, "me", 0.1), sinks)
        reader = PostgresReader(dsn, own)

        def check() -> None:
            if flow.batch < 0:
                return
            every, last = flow.models["every"], flow.models["last"]
            found, _ = reader.rows_after("each", 0, 1_000)
            assert list(map(repr, found)) == list(map(repr, every.shown()))
            assert ordered(shown(reader, "latest")) == ordered(last.shown())
            with psycopg.connect(theirs) as db:
                cursor = db.execute("SELECT * FROM latest")
                names = [one.name for one in cursor.description or ()]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            assert {n for n in names if not n.startswith("_")} == {c.name for c in last.columns}
            by_sensor = {row["sensor"]: row for row in rows}
            for row, place in last.rows:
                held = by_sensor.pop(row["sensor"])
                assert held["_event_time"] == place[0]
                for column in last.columns:
                    value = column.shown(row[column.name]) if column.kind == "list" else None
                    value = value if column.kind == "list" else column.in_parquet(row[column.name])
                    assert repr(held[column.name]) == repr(value) or held[column.name] == value
            assert by_sensor == {}

        run_chain(data, flow, data.draw(chains(again=True)), check)
