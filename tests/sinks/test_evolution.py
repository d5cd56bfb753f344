"""Tables whose columns change with a revision: what is refused, what is said, and a crash at each step."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pandas
import psycopg
import pytest

from geartrain import Digits, Record, Table
from geartrain.declarations.sink import Sink
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain.sinks import ConsoleSink, ParquetTable, PostgresTable
from geartrain_cloud.sinks.defaults import column_defaults
from geartrain_cloud.sinks.evolution import evolution, evolutions
from geartrain_cloud.sinks.layout import AwayError, Layout, TableError
from geartrain_cloud.sinks.opening import SinkPlace, open_places
from geartrain_cloud.sinks.own import OwnTables, SqliteReader, TablesReader
from geartrain_cloud.sinks.parquet_form import read_table
from geartrain_cloud.sinks.postgres_reading import PostgresReader
from geartrain_cloud.sinks.postgres_schema import PostgresSchema
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Tables
from tests.postgres_server import Postgres

STR, INT, FLOAT = FieldType.STR, FieldType.INT64, FieldType.FLOAT64
OLD = Schema(
    "Drawdown",
    (
        Field("well", STR),
        Field("level", FLOAT),
        Field("count", INT),
        Field("note", FieldType.BYTES, True),
    ),
)
NEW = Schema(
    "Drawdown",
    (
        Field("well", STR),
        Field("low", FLOAT),
        Field("count", INT, True),
        Field("level", FLOAT),
        Field("pump", STR),
    ),
)
DEFAULTS = {"low": -0.0, "pump": "none"}


def layouts(schema: Schema, *more: tuple[str, Sink]) -> list[Layout]:
    sinks = [("each", Table("drawdown")), ("latest", Table("latest", key=("well",))), *more]
    return [Layout(step, sink, schema, DEFAULTS if schema is NEW else {}) for step, sink in sinks]


def old_rows(*rows: tuple[str, float, int, bytes | None], first: int = 0) -> ColumnBatch:
    return _batch(rows, first)


def new_rows(*rows: tuple[str, float, int | None, float, str], first: int = 0) -> ColumnBatch:
    return _batch(rows, first)


def _batch(rows: Any, first: int) -> ColumnBatch:
    numbers = list(range(first, first + len(rows)))
    return ColumnBatch(
        [list(column) for column in zip(*rows, strict=True)], numbers, ["s"] * len(rows), numbers
    )


FIRST = old_rows(("a", 1.0, 1, None), ("b", 2.0, 2, b"x"), ("a", 3.0, 3, b"y"))
SECOND = new_rows(("a", 0.5, None, 9.0, "p1"), first=3)
BEFORE = {"well", "level", "count", "note"}
EACH = [
    {"well": "a", "low": -0.0, "count": 1, "level": 1.0, "pump": "none"},
    {"well": "b", "low": -0.0, "count": 2, "level": 2.0, "pump": "none"},
    {"well": "a", "low": -0.0, "count": 3, "level": 3.0, "pump": "none"},
    {"well": "a", "low": 0.5, "count": None, "level": 9.0, "pump": "p1"},
]  # fmt: skip
LATEST = [EACH[3], EACH[1]]


def opened(
    own: OwnTables, folder: Path, old: list[Layout], *, evolving: bool = False, has_run: bool = False
) -> Tables:
    places = [SinkPlace(one.sink, one.table, one.schema, one.defaults) for one in old]
    tables = open_places("flow", places, own, folder, evolving=evolving)
    tables.attach("hosted", "c", has_run=has_run)
    return tables


# --- what is compared ---


def changed(name: str, old: Field | None, new: Field | None, **defaults: Any) -> list[str]:
    key = Field("well", STR)
    was, now = (Schema("R", (key, *([one] if one else []))) for one in (old, new))
    return evolution(Layout("s", Table(name), was), Layout("s", Table(name), now, defaults)).clauses()


def test_sentences_say_what_becomes_of_the_rows() -> None:
    assert changed("t", None, Field("low", FLOAT, True)) == [
        "column 'low' is added (null in the rows there are)"
    ]
    price = Field("price", INT, False, "decimal(6,2)")
    assert changed("t", None, price, price=150) == ["column 'price' is added (1.50 in the rows there are)"]
    assert changed("t", price, None) == [
        "column 'price' is dropped, and its values in the rows there are with it"
    ]
    assert changed("t", price, Field("price", INT, True, "decimal(9,2)")) == [
        "column 'price' is widened from decimal(6,2) to decimal(9,2) | None"
    ]
    assert (
        changed("t", Field("side", STR, False, "enum(A,B)"), Field("side", STR, False, "enum(B,A,C)")) != []
    )
    assert changed("t", Field("side", STR, False, "enum(A,B)"), Field("side", STR)) != []
    assert changed("t", price, price) == []
    files = Layout("f", ParquetTable("files"), OLD), Layout("f", ParquetTable("files"), NEW, DEFAULTS)
    assert "column 'note' is dropped, the files there are keep it" in evolution(*files).clauses()
    plan = evolutions(
        [Layout("gone", Table("gone"), OLD), Layout("a", Table("t"), OLD)],
        [Layout("b", Table("t"), OLD), Layout("n", Table("new"), OLD), Layout("c", ConsoleSink("c"), OLD)],
    )
    assert [one.clauses() for one in plan] == [
        [],
        ["is made"],
        ["nothing writes it any more, its rows stay"],
    ]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (Field("x", INT), Field("x", FLOAT), "was int64, is now float64, which does not hold every value"),
        (Field("x", INT, True), Field("x", INT), "rows there are may hold None"),
        (Field("x", STR), Field("x", STR, False, "enum(A)"), "does not hold every value"),
        (Field("x", STR, False, "enum(A,B)"), Field("x", STR, False, "enum(A,C)"), "does not hold"),
        (Field("x", INT, False, "decimal(6,2)"), Field("x", INT, False, "decimal(8,3)"), "does not hold"),
        (Field("x", INT, False, "decimal(6,2)"), Field("x", INT, False, "decimal(5,2)"), "does not hold"),
        (None, Field("x", INT), r"have no value for it: declare it as int64 \| None, or give it a default"),
        (Field("x", INT), Field("y", INT, True), "'x' goes and 'y' of the same type comes"),
    ],
)  # fmt: skip
def test_what_would_lose_a_value_is_refused(old: Field | None, new: Field, why: str) -> None:
    with pytest.raises(TableError, match=why) as refused:
        changed("t", old, new)
    assert "\n" not in str(refused.value)


def test_keys_and_names_stay() -> None:
    was = Layout("s", Table("t", key=("well",)), OLD)
    with pytest.raises(TableError, match=r"its key was \(well\), is now none: give the table another name"):
        evolution(was, Layout("s", Table("t"), OLD))
    with pytest.raises(TableError, match="'T' is called 't' so far"):
        evolutions([was], [Layout("s", Table("T", key=("well",)), OLD)])
    with pytest.raises(TableError, match="earlier files have a column 'pump' that was dropped"):
        evolution(Layout("s", Table("t"), OLD), Layout("s", Table("t"), NEW, DEFAULTS), ["pump"])


class Side(Enum):
    BUY = 1


def test_defaults_are_those_of_the_type() -> None:
    class Trade(Record):
        symbol: str
        price: Annotated[Decimal, Digits(9, 2)] = Decimal("1.5")
        side: Side = Side.BUY
        share: float = 1
        tags: list[str] = msgspec.field(default_factory=list)
        stamp: int = msgspec.field(default_factory=time.monotonic_ns)
        wrong: int = "x"  # type: ignore[assignment]
        maybe: int | None = None

    class Pair(NamedTuple):
        a: str
        b: int = 3

    @dataclass(frozen=True)
    class Plain:
        a: str
        b: bytes = b"\0"

    assert column_defaults(Trade) == {"price": 150, "side": "BUY", "share": 1.0, "tags": b"\x90"}
    assert (column_defaults(Pair), column_defaults(Plain)) == ({"b": 3}, {"b": b"\0"})
    assert column_defaults(float) == {}


# --- what stores do ---


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database("geartrain_evolution")


@pytest.fixture(params=["file", pytest.param("schema", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[], OwnTables], TablesReader]:
    if request.param == "file":
        path = tmp_path / "t.sqlite"
        return lambda: SqliteTables(path), SqliteReader(path)
    dsn = request.getfixturevalue("dsn")
    return lambda: PostgresSchema(dsn, "heat_1_run_1", "me", 0.1), PostgresReader(dsn, "heat_1_run_1")


Place = tuple[Callable[[], OwnTables], TablesReader]


def test_tables_change_with_the_micro_batch_and_not_before(place: Place, tmp_path: Path) -> None:
    own, reader = place
    tables = opened(own(), tmp_path, layouts(OLD))
    tables.write("hosted", 0, {"0": 3}, {"each": [FIRST], "latest": [FIRST]})
    assert tables.planned(layouts(NEW))[0].clauses() == [
        "column 'low' is added (-0.0 in the rows there are)",
        "column 'pump' is added (none in the rows there are)",
        "column 'note' is dropped, and its values in the rows there are with it",
        "column 'count' is widened from int64 to int64 | None",
    ]
    tables.evolve(layouts(NEW))
    assert not tables.write("hosted", 0, {"0": 3}, {})  # run again: it is held, and nothing changes
    assert set(reader.columns("drawdown")) == BEFORE
    tables.close()

    with pytest.raises(TableError, match="with another name, key or fields"):
        opened(own(), tmp_path, layouts(NEW), has_run=True)  # an ordinary start evolves nothing
    tables = opened(own(), tmp_path, layouts(OLD), evolving=True, has_run=True)
    tables.evolve(layouts(NEW))
    assert tables.write("hosted", 1, {"0": 4}, {"each": [SECOND], "latest": [SECOND]})
    assert not tables.write("hosted", 1, {"0": 4}, {"each": [SECOND], "latest": [SECOND]})
    assert repr(reader.rows_after("drawdown", 0, 9)[0]) == repr(EACH)
    assert repr(reader.page("latest", 0, 9)) == repr(LATEST)
    late = new_rows(
        ("b", 7.0, 7, 7.0, "late")
    )  # earlier than what is held, which was written by the old layout
    assert tables.write("hosted", 2, {"0": 5}, {"latest": [late]})
    assert repr(reader.page("latest", 0, 9)) == repr(LATEST)
    assert tables.records()["each"] == 4
    tables.close()
    opened(own(), tmp_path, layouts(NEW), has_run=True).close()


def test_a_table_belongs_to_whatever_step_writes_it(place: Place, tmp_path: Path) -> None:
    own, reader = place
    tables = opened(own(), tmp_path, [Layout("a", Table("one"), OLD), Layout("b", Table("two"), OLD)])
    tables.write("hosted", 0, {"0": 3}, {"a": [FIRST]})
    tables.evolve([Layout("b", Table("one"), OLD), Layout("a", Table("three"), NEW, DEFAULTS)])
    tables.write("hosted", 1, {"0": 4}, {"b": [old_rows(("c", 1.0, 1, None), first=9)], "a": [SECOND]})
    assert [reader.row_count(name) for name in ("one", "two", "three")] == [4, 0, 1]
    tables.evolve([Layout("a", Table("two"), OLD)])  # a revision later it is wanted again
    tables.write("hosted", 2, {"0": 5}, {"a": [FIRST]})
    assert [reader.row_count(name) for name in ("one", "two", "three")] == [4, 3, 1]
    with pytest.raises(TableError, match="which is not a declared sink"):
        tables.write("hosted", 3, {"0": 6}, {"b": []})
    tables.close()


def test_a_table_that_cannot_be_evolved_is_left_alone(place: Place, tmp_path: Path) -> None:
    own, reader = place
    tables = opened(own(), tmp_path, layouts(OLD))
    tables.write("hosted", 0, {"0": 3}, {"each": [FIRST]})
    narrower = [Layout("each", Table("drawdown"), Schema("D", (Field("well", STR), Field("count", FLOAT))))]
    with pytest.raises(TableError, match="column 'count' was int64, is now float64"):
        tables.planned(narrower)
    tables.evolve(narrower)
    with pytest.raises(TableError, match="column 'count' was int64, is now float64"):
        tables.write("hosted", 1, {"0": 4}, {})
    assert set(reader.columns("drawdown")) == BEFORE
    assert tables.positions("hosted") == {"0": 3}
    tables.evolve(layouts(OLD))
    assert tables.write("hosted", 1, {"0": 4}, {})
    tables.close()


# --- crashes ---


def check_state(tables: Tables, reader: TablesReader) -> bool:
    """Whether the micro-batch is held; the tables are of one layout, and whole."""
    is_new = tables.positions("hosted") == {"0": 4}
    for name, count in (("drawdown", 3), ("latest", 2)):
        assert (set(reader.columns(name)) == {f.name for f in NEW.fields}) == is_new
        assert reader.row_count(name) == count + (is_new and name == "drawdown")
    return is_new


def finish(tables: Tables, reader: TablesReader) -> None:
    tables.evolve(layouts(NEW))
    tables.write("hosted", 1, {"0": 4}, {"each": [SECOND], "latest": [SECOND]})
    assert repr(reader.rows_after("drawdown", 0, 9)[0]) == repr(EACH)
    assert repr(reader.page("latest", 0, 9)) == repr(LATEST)
    assert (tables.positions("hosted"), tables.records()["each"]) == ({"0": 4}, 4)
    tables.close()


def test_a_file_after_a_kill_at_each_statement(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    states: list[Path] = []
    tables = opened(SqliteTables(folder / "t.sqlite"), folder, layouts(OLD))
    tables.write("hosted", 0, {"0": 3}, {"each": [FIRST], "latest": [FIRST]})

    def kept(_: str) -> None:
        states.append(shutil.copytree(folder, tmp_path / f"state{len(states)}"))

    own = tables.own
    assert isinstance(own, SqliteTables)
    own._db.set_trace_callback(kept)
    tables.evolve(layouts(NEW))
    tables.write("hosted", 1, {"0": 4}, {"each": [SECOND], "latest": [SECOND]})
    kept("after the commit")
    own._db.set_trace_callback(None)
    tables.close()
    assert len(states) > 15
    held = []
    for state in states:
        reader = SqliteReader(state / "t.sqlite")
        again = opened(SqliteTables(state / "t.sqlite"), state, layouts(OLD), evolving=True, has_run=True)
        held.append(check_state(again, reader))
        finish(again, reader)
    assert held == sorted(held)
    assert {False, True} == set(held)


def test_a_schema_after_a_kill_at_each_statement(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, left, number = psycopg.Connection.execute, [10**9], 0

    def killed(self: Any, *arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os.close(os.dup(self.fileno()))
            self.close()  # as the system does for a program that is killed
            raise KeyboardInterrupt
        return execute(self, *arguments, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", killed)
    while left[0] != 0:
        name, number = f"run_{number}", number + 1
        reader = PostgresReader(dsn, name)
        tables = opened(PostgresSchema(dsn, name, "me", 0.1), tmp_path, layouts(OLD))
        tables.write("hosted", 0, {"0": 3}, {"each": [FIRST], "latest": [FIRST]})
        tables.evolve(layouts(NEW))
        left[0] = number
        try:
            tables.write("hosted", 1, {"0": 4}, {"each": [SECOND], "latest": [SECOND]})
        except KeyboardInterrupt:
            left[0] = 10**9
        else:
            left[0] = 0
            break
        again = opened(
            PostgresSchema(dsn, name, "me", 0.1), tmp_path, layouts(OLD), evolving=True, has_run=True
        )
        assert not check_state(again, reader)
        finish(again, reader)
    assert number > 10


def test_a_server_that_dies_between_the_change_and_the_commit(
    postgres: Postgres, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = PostgresReader(dsn, "heat_1_run_1")
    tables = opened(PostgresSchema(dsn, "heat_1_run_1", "me", 0.1), tmp_path, layouts(OLD))
    tables.write("hosted", 0, {"0": 3}, {"each": [FIRST], "latest": [FIRST]})
    tables.evolve(layouts(NEW))
    insert = PostgresSchema._insert

    def dies(*arguments: Any) -> None:
        insert(*arguments)
        postgres.stop("immediate")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSchema, "_insert", dies)
        with pytest.raises(AwayError):
            tables.write("hosted", 1, {"0": 4}, {"each": [SECOND], "latest": [SECOND]})
    postgres.start()
    check_state(tables, reader)
    finish(tables, reader)


def test_a_reader_in_the_way_is_waited_for(dsn: str, tmp_path: Path) -> None:
    theirs = ("theirs", PostgresTable("theirs", dsn=dsn))
    tables = opened(PostgresSchema(dsn, "heat_1_run_1", "me", 0.1), tmp_path, layouts(OLD, theirs))
    tables.write("hosted", 0, {"0": 3}, {"each": [FIRST], "latest": [FIRST], "theirs": [FIRST]})
    tables.evolve(layouts(NEW, theirs))
    rows = {"each": [SECOND], "latest": [SECOND], "theirs": [SECOND]}
    for table in ("theirs", "heat_1_run_1.drawdown"):
        with psycopg.connect(dsn) as other:
            other.execute(f"SELECT * FROM {table}".encode())
            with pytest.raises(AwayError, match="is in use by another program"):
                tables.write("hosted", 1, {"0": 4}, rows)
    with psycopg.connect(dsn) as other:  # what was written first is not written again
        assert tables.write("hosted", 1, {"0": 4}, rows)
        found = other.execute(
            "SELECT well, low, count, level, pump FROM theirs ORDER BY _origin_number"
        ).fetchall()
    assert found == [tuple(row.values()) for row in EACH]
    reader = PostgresReader(dsn, "heat_1_run_1")
    assert repr(reader.rows_after("drawdown", 0, 9)[0]) == repr(EACH)
    tables.close()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """Functions that are called before and after each step that the system makes durable."""
    watchers: list[Callable[[], None]] = []

    def watched(whole: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            for watch in watchers:
                watch()
            result = whole(*arguments, **more)
            for watch in watchers:
                watch()
            return result

        return call

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (os, "open")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    yield watchers
    watchers.clear()


def test_a_folder_of_parquet_after_a_kill_at_each_step(
    tmp_path: Path, steps: list[Callable[[], None]]
) -> None:
    old, new = (
        [Layout("files", ParquetTable("files"), schema, DEFAULTS if schema is NEW else {})]
        for schema in (OLD, NEW)
    )
    folder = tmp_path / "run"
    states: list[Path] = []
    tables = opened(SqliteTables(folder / "t.sqlite"), folder, old)
    tables.write("hosted", 0, {"0": 3}, {"files": [FIRST]})
    tables.evolve(new)
    copying: list[int] = []

    def kept() -> None:
        if not copying:
            copying.append(1)
            states.append(shutil.copytree(folder, tmp_path / f"state{len(states)}"))
            copying.clear()

    steps.append(kept)
    tables.write("hosted", 1, {"0": 4}, {"files": [SECOND]})
    steps.clear()
    kept()
    tables.close()
    assert len(states) > 12
    held = []
    for state in states:
        tables = opened(SqliteTables(state / "t.sqlite"), state, old, evolving=True, has_run=True)
        count = len(read_table(state / "files.parquet"))
        names = read_table(state / "files.parquet").column_names
        assert (count, "pump" in names) in {(3, False), (4, True)}
        held.append(count == 4)
        tables.evolve(new)
        tables.write("hosted", 1, {"0": 4}, {"files": [SECOND]})
        tables.close()
        fields = [f.name for f in NEW.fields]
        assert repr(read_table(state / "files.parquet").select(fields).to_pylist()) == repr(
            [{name: row[name] for name in fields} for row in EACH]
        )
        left = sorted(path.name for path in (state / "files.parquet").glob("*.parquet"))
        assert left == [
            "0-columns-0000000002.parquet",
            "hosted-0000000000.parquet",
            "hosted-0000000001.parquet",
        ]
    assert held == sorted(held)
    assert {False, True} == set(held)


def test_pandas_reads_old_and_new_files_together(tmp_path: Path) -> None:
    old, new = (
        [Layout("files", ParquetTable("files"), schema, DEFAULTS if schema is NEW else {})]
        for schema in (OLD, NEW)
    )
    tables = opened(SqliteTables(tmp_path / "t.sqlite"), tmp_path, old)
    tables.write("hosted", 0, {"0": 3}, {"files": [FIRST]})
    tables.evolve(new)
    tables.write("hosted", 1, {"0": 4}, {"files": [SECOND]})
    found = pandas.read_parquet(tmp_path / "files.parquet").sort_values("_origin_number")
    assert [name for name in found.columns if not name.startswith("_")] == [f.name for f in NEW.fields]
    assert [None if pandas.isna(one) else one for one in found["pump"]] == [None, None, None, "p1"]
    assert list(found["level"]) == [1.0, 2.0, 3.0, 9.0]
    note = Schema("Drawdown", (*NEW.fields, Field("note", FLOAT, True)))
    back = [Layout("files", ParquetTable("files"), note)]
    with pytest.raises(TableError, match="earlier files have a column 'note' that was dropped"):
        tables.planned(back)
    tables.close()


def test_what_comes_with_a_revision_begins_there(dsn: str, tmp_path: Path) -> None:
    tables = opened(SqliteTables(tmp_path / "t.sqlite"), tmp_path, layouts(OLD))
    tables.write("hosted", 0, {"0": 3}, {"each": [FIRST]})
    more = layouts(
        OLD,
        ("files", ParquetTable("files")),
        ("theirs", PostgresTable("theirs", dsn=dsn)),
        ("c", ConsoleSink("c")),
    )
    tables.evolve(more)
    batch = old_rows(("c", 1.0, 1, None), first=3)
    rows = {"each": [batch], "files": [batch], "theirs": [batch]}
    for count in (1, 1):
        tables.write("hosted", count, {"0": 4}, rows)
    tables.write("hosted", 2, {"0": 5}, {"files": [old_rows(("d", 1.0, 1, None), first=4)]})
    tables.evolve(layouts(OLD))
    tables.write("hosted", 3, {"0": 6}, {})
    tables.evolve(more)
    tables.write("hosted", 4, {"0": 7}, {"theirs": [old_rows(("e", 1.0, 1, None), first=5)]})
    tables.close()
    assert read_table(tmp_path / "files.parquet").column("well").to_pylist() == ["c", "d"]
    with psycopg.connect(dsn) as db:
        assert db.execute("SELECT well FROM theirs ORDER BY 1").fetchall() == [("c",), ("e",)]
    again = opened(SqliteTables(tmp_path / "t.sqlite"), tmp_path, more, has_run=True)
    assert not again.write("hosted", 4, {"0": 7}, {})
    again.close()


def test_what_comes_with_a_revision_may_come_with_a_start(dsn: str, tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    tables = opened(SqliteTables(path), tmp_path, layouts(OLD))
    tables.write("hosted", 0, {"0": 3}, {"each": [FIRST]})
    tables.close()
    more = layouts(OLD, ("files", ParquetTable("files")), ("theirs", PostgresTable("theirs", dsn=dsn)))
    with pytest.raises(TableError, match="holds nothing of it"):
        opened(SqliteTables(path), tmp_path, more, has_run=True)
    rows = {"files": [FIRST], "theirs": [FIRST]}
    for evolving, count in ((True, 1), (False, 1), (False, 2)):
        tables = opened(SqliteTables(path), tmp_path, more, evolving=evolving, has_run=True)
        assert tables.write("hosted", count, {"0": 3 + count}, rows) == (evolving or count == 2)
        tables.close()
    assert len(read_table(tmp_path / "files.parquet")) == 6
    with psycopg.connect(dsn) as db:
        assert db.execute("SELECT count(*) FROM theirs").fetchone() == (6,)


def test_a_manifest_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = opened(
        SqliteTables(tmp_path / "t.sqlite"), tmp_path, [Layout("files", ParquetTable("files"), OLD)]
    )

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("geartrain_cloud.sinks.parquet.write_durable", full)
        with pytest.raises(TableError, match="No space left on device"):
            tables.write("hosted", 0, {"0": 3}, {"files": [FIRST]})
    assert tables.write("hosted", 0, {"0": 3}, {"files": [FIRST]})
    held = json.loads((tmp_path / "files.parquet" / "_manifest.json").read_bytes())
    assert held["queries"]["hosted"]["files"] == ["hosted-0000000000.parquet"]
    tables.close()


def test_a_table_of_somebody_else_is_not_changed(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE theirs (well text)")
    sinks = [Layout("theirs", PostgresTable("theirs", dsn=dsn), OLD)]
    tables = opened(SqliteTables(tmp_path / "t.sqlite"), tmp_path, sinks, evolving=True)
    with pytest.raises(TableError, match="has a table 'theirs' with other columns"):
        tables.write("hosted", 0, {"0": 3}, {"theirs": [FIRST]})
    with pytest.raises(TableError, match="has a table 'theirs' with other columns"):
        tables.planned(sinks)
    tables.close()
    with sqlite3.connect(tmp_path / "t.sqlite") as db:
        assert db.execute("SELECT count(*) FROM _queries WHERE batch_id >= 0").fetchone() == (0,)
