"""Units and descriptions of fields: comments in PostgreSQL, metadata in Parquet, the catalogue in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pyarrow.dataset as ds
import pytest

from geartrain import Description, Record, Table, Unit
from geartrain.declarations.sink import Sink
from geartrain.schema import ColumnBatch, Note, RowCodec, Schema, derive
from geartrain.sinks import ParquetTable, PostgresTable
from geartrain_cloud.hosting.prepared import SinkSaid
from geartrain_cloud.sinks.evolution import evolution
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.opening import SinkPlace, open_places
from geartrain_cloud.sinks.parquet_form import read_table
from geartrain_cloud.sinks.postgres_schema import PostgresSchema
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Tables
from tests.postgres_server import Postgres


def plain() -> Any:
    class Reading(Record):
        sensor: str
        value: float

    return Reading


def noted() -> Any:
    class Reading(Record):
        sensor: Annotated[str, Description("it's the building's name")]
        value: Annotated[float, Unit("degC"), Description("air")]

    return Reading


def renoted() -> Any:
    class Reading(Record):
        sensor: str
        value: Annotated[float, Unit("degF")]
        room: Annotated[str | None, Description("as on the door")] = None

    return Reading


WANTED = [
    (plain, {}),
    (noted, {"sensor": Note("", "it's the building's name"), "value": Note("degC", "air")}),
    (renoted, {"value": Note("degF"), "room": Note("", "as on the door")}),
    (plain, {}),
]
"""One revision after the other, and what its columns say."""
SAID = [notes for _, notes in WANTED]


def row(kind: type[Any], number: int) -> ColumnBatch:
    codec = RowCodec(kind)
    values, _ = codec.conform([kind("a", float(number))])
    return ColumnBatch(codec.to_columns(values), [number], ["s"], [number], [b""])


def after_each(tables: Tables, sink: Sink, said: Callable[[], dict[str, Note]]) -> list[dict[str, Note]]:
    """What is said after a micro-batch of each revision, which a host reads from its file."""
    found = []
    tables.attach("hosted", "c", has_run=False)
    for number, (make, _) in enumerate(WANTED):
        kind = make()
        place = SinkSaid.of(SinkPlace("out", sink, derive(kind), {})).place()
        tables.evolve([place.layout])
        assert tables.write("hosted", number, {"0": number + 1}, {"out": [row(kind, number)]})
        found.append(said())
    tables.close()
    return found


def placed(own: Any, tmp_path: Path, sink: Sink) -> Tables:
    return open_places("heat", [SinkPlace("out", sink, derive(plain()), {})], own, tmp_path)


def of_comments(found: list[tuple[str, str | None]]) -> dict[str, Note]:
    notes = {}
    for name, text in found:
        if text:
            unit, _, rest = text.removeprefix("[").partition("]") if text.startswith("[") else ("", "", text)
            notes[name] = Note(unit, rest.strip())
    return notes


def comments(dsn: str, table: str) -> dict[str, Note]:
    with psycopg.connect(dsn) as db:
        found = db.execute(
            "SELECT attname, col_description(attrelid, attnum) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            (table,),
        ).fetchall()
    return of_comments(found)


def test_sqlite_keeps_them_in_its_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"

    def said() -> dict[str, Note]:
        with sqlite3.connect(path) as db:
            [(text,)] = db.execute("SELECT schema FROM _sinks WHERE name = 'kept'").fetchall()
        return Schema.from_json(text).notes

    assert after_each(placed(SqliteTables(path), tmp_path, Table("kept")), Table("kept"), said) == SAID


def test_an_ordinary_start_notes_them_anew(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    for make, wanted in WANTED[:2]:
        tables = SqliteTables(path)
        tables.declare("out", Table("kept"), derive(make()))
        tables.close()
        with sqlite3.connect(path) as db:
            [(text,)] = db.execute("SELECT schema FROM _sinks WHERE name = 'kept'").fetchall()
        assert Schema.from_json(text).notes == wanted


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database("geartrain_notes")


def test_the_flows_own_tables_in_postgresql_have_comments(dsn: str, tmp_path: Path) -> None:
    own = PostgresSchema(dsn, "heat_1", "me", 5.0)
    tables = placed(own, tmp_path, Table("kept"))
    assert after_each(tables, Table("kept"), lambda: comments(dsn, "heat_1.kept")) == SAID


def test_a_users_database_has_comments(dsn: str, tmp_path: Path) -> None:
    sink = PostgresTable("kept", dsn=dsn)
    tables = placed(SqliteTables(tmp_path / "t.sqlite"), tmp_path, sink)
    assert after_each(tables, sink, lambda: comments(dsn, "kept")) == SAID


def test_a_persons_own_comment_stays_until_the_notes_change(dsn: str, tmp_path: Path) -> None:
    def opened(kind: Any) -> None:
        own = PostgresSchema(dsn, "heat_1", "me", 5.0)
        own.declare("out", Table("kept"), derive(kind))
        own.close()

    opened(noted())
    assert comments(dsn, "heat_1.kept") == WANTED[1][1]
    with psycopg.connect(dsn) as db:
        db.execute("COMMENT ON COLUMN heat_1.kept.value IS 'as we call it'")
    opened(noted())
    assert comments(dsn, "heat_1.kept")["value"] == Note("", "as we call it")
    opened(plain())
    assert comments(dsn, "heat_1.kept") == {}


def test_parquet_has_them_as_metadata_of_its_columns(tmp_path: Path) -> None:
    sink, folder = ParquetTable("kept", folder=str(tmp_path)), tmp_path / "kept.parquet"

    def of_schema(schema: Any) -> dict[str, Note]:
        metadata = {one.name: one.metadata or {} for one in schema}
        return {
            name: Note(found.get(b"unit", b"").decode(), found.get(b"description", b"").decode())
            for name, found in metadata.items()
            if b"unit" in found or b"description" in found
        }

    def said() -> dict[str, Note]:
        newest = max(folder.glob("hosted-*.parquet"))
        by_others = of_schema(ds.dataset(newest).schema)
        assert of_schema(read_table(folder).schema) == by_others
        return by_others

    assert after_each(placed(SqliteTables(tmp_path / "t.sqlite"), tmp_path, sink), sink, said) == SAID
    assert [one["value"] for one in read_table(folder).to_pylist()] == [0.0, 1.0, 2.0, 3.0]


def test_a_plan_to_evolve_says_nothing_of_them() -> None:
    old, new = (Layout("out", Table("kept"), derive(make())) for make in (plain, noted))
    assert evolution(old, new).clauses() == []
