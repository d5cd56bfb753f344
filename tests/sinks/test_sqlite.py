"""The tables in SQLite: each micro-batch once, upserts in canonical order, refusals, values bit for bit."""

from __future__ import annotations

import itertools
import math
import random
import shutil
import sqlite3
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.declarations.sink import Table
from geartrain.records.record import Record
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import rows

SCHEMA = Schema("Reading", (Field("sensor", FieldType.STR), Field("value", FieldType.FLOAT64)))


class WithoutCode(Record):
    """A dead letter as release 0.2 kept it."""

    step: str
    reason: str
    raw: bytes


LETTER_ROW = ColumnBatch([["parse"], ["wrong_type"], ["not a number"], [b"\x00<x>"]], [5], ["s"], [7])


def batch(*entries: tuple[str, float, int, int], paths: list[bytes] | None = None) -> ColumnBatch:
    """Rows of (sensor, value, time, number) of split `s`."""
    sensors, values, times, numbers = (list(c) for c in zip(*entries, strict=True))
    return ColumnBatch([sensors, values], times, ["s"] * len(times), numbers, paths)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tables.sqlite"


@pytest.fixture
def tables(path: Path) -> Iterator[SqliteTables]:
    opened = SqliteTables(path)
    opened.declare("all", Table("readings"), SCHEMA)
    opened.declare("last", Table("latest", key=("sensor",)), SCHEMA)
    yield opened
    opened.close()


def test_files_are_private(tables: SqliteTables, path: Path) -> None:
    tables.write("q", 0, {"c": 1}, {"all": [batch(("a", 1.0, 1, 0))]})
    files = sorted(path.parent.iterdir())
    assert [f.name for f in files] == ["tables.sqlite", "tables.sqlite-shm", "tables.sqlite-wal"]
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}


def test_micro_batch_is_written_once(tables: SqliteTables, path: Path) -> None:
    first = {"all": [batch(("a", 1.0, 1, 0)), batch(("b", 2.0, 2, 1))]}
    assert tables.write("q", 0, {"c": 3}, first)
    assert not tables.write("q", 0, {"c": 3}, first)
    assert tables.write("q", 1, {"c": 4}, {"all": [batch(("a", 1.0, 1, 0))]})
    found = [(r["sensor"], r["value"]) for r in rows(path, "readings")]
    assert found == [("a", 1.0), ("a", 1.0), ("b", 2.0)]
    assert tables.positions("q") == {"c": 4}
    assert tables.records()["all"] == 3


def test_two_queries_keep_their_own_places(tables: SqliteTables) -> None:
    assert tables.write("q", 0, {"c": 3}, {})
    assert tables.write("r", 0, {"c": 9}, {})
    assert (tables.positions("q"), tables.positions("r"), tables.positions("s")) == ({"c": 3}, {"c": 9}, {})


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_upsert_keeps_the_canonically_last_row(order: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever the order of arrival, within one micro-batch and across several."""
    entries = [("a", 1.0, 10, 5), ("a", 2.0, 10, 6), ("a", 3.0, 9, 99), ("b", 4.0, 1, 1)]
    ways: dict[str, list[tuple[int, ...]]] = {"one": [order], "many": [(i,) for i in order]}
    for name, cuts in ways.items():
        tables = SqliteTables(tmp_path / name)
        tables.declare("last", Table("latest", key=("sensor",)), SCHEMA)
        for number, part in enumerate(cuts):
            tables.write("q", number, {}, {"last": [batch(*(entries[i] for i in part))]})
        tables.close()
        assert rows(tmp_path / name, "latest") == [
            {"sensor": "a", "value": 2.0},
            {"sensor": "b", "value": 4.0},
        ]


def test_upsert_compares_paths_and_names(tables: SqliteTables, path: Path) -> None:
    tables.write("q", 0, {}, {"last": [batch(("a", 1.0, 1, 1), paths=[b"\x01"])]})
    tables.write("q", 1, {}, {"last": [batch(("a", 2.0, 1, 1), paths=[b"\x00"])]})
    assert rows(path, "latest")[0]["value"] == 1.0
    later = ColumnBatch([["a"], [3.0]], [1], ["t"], [0])
    tables.write("q", 2, {}, {"last": [later]})
    assert rows(path, "latest")[0]["value"] == 3.0


def test_dead_letters_are_one_row_each(tables: SqliteTables, path: Path) -> None:
    tables.write("q", 0, {}, {"_dead_letters": [LETTER_ROW]})
    tables.write("r", 0, {}, {"_dead_letters": [LETTER_ROW], "_late": [LETTER_ROW]})
    assert rows(path, "dead_letters") == [
        {"step": "parse", "code": "wrong_type", "reason": "not a number", "raw": "003c783e"}
    ]
    assert len(rows(path, "late")) == 1


def test_a_failing_write_leaves_nothing(tables: SqliteTables, path: Path) -> None:
    broken = ColumnBatch([["a", "b"], [1.0, 2.0]], [1], ["s"], [1])
    with pytest.raises(ValueError, match="shorter"):
        tables.write("q", 0, {"c": 1}, {"all": [batch(("a", 1.0, 1, 0)), broken]})
    none = ColumnBatch([[None], [1.0]], [1], ["s"], [1])
    with pytest.raises(TableError, match="NOT NULL"):
        tables.write("q", 0, {"c": 1}, {"all": [batch(("a", 1.0, 1, 0)), none]})
    assert rows(path, "readings") == []
    assert tables.positions("q") == {}
    assert tables.write("q", 0, {"c": 1}, {"all": [batch(("a", 1.0, 1, 0))]})


def test_reopened_file_goes_on(path: Path) -> None:
    for number in range(3):
        tables = SqliteTables(path)
        tables.declare("all", Table("readings"), SCHEMA)
        tables.attach("q", "checkpoint-1", has_run=number > 0)
        for again in range(number + 1):
            tables.write("q", again, {"c": again}, {"all": [batch(("a", float(again), again, again))]})
        tables.close()
    assert [r["value"] for r in rows(path, "readings")] == [0.0, 1.0, 2.0]


def test_checkpoint_and_file_must_belong_together(tables: SqliteTables) -> None:
    tables.attach("q", "first", has_run=False)
    tables.attach("q", "second", has_run=False)  # nothing was written for the first one
    tables.write("q", 0, {"c": 1}, {})
    tables.attach("q", "second", has_run=True)
    with pytest.raises(TableError, match="checkpoint is not there"):
        tables.attach("q", "third", has_run=False)
    with pytest.raises(TableError, match="holds nothing of it"):
        tables.attach("r", "fourth", has_run=True)
    assert tables.positions("q") == {"c": 1}


def test_gap_and_backward_positions_are_refused(tables: SqliteTables) -> None:
    with pytest.raises(TableError, match="older than the checkpoint"):
        tables.write("q", 1, {}, {})
    tables.write("q", 0, {"c": 5}, {})
    with pytest.raises(TableError, match="older than the checkpoint"):
        tables.write("q", 2, {"c": 6}, {})
    with pytest.raises(TableError, match="already at 5"):
        tables.write("q", 1, {"c": 4}, {})
    with pytest.raises(TableError, match="repeats micro-batch 0 with other positions"):
        tables.write("q", 0, {"c": 6}, {})
    with pytest.raises(TableError, match="not a declared sink"):
        tables.write("q", 1, {"c": 5}, {"other": []})


@pytest.mark.parametrize(
    ("table", "fields", "said"),
    [
        (Table("late"), [("a", FieldType.STR, False)], "belongs to Geartrain"),
        (Table("Dead_Letters"), [("a", FieldType.STR, False)], "belongs to Geartrain"),
        (Table("sqlite_x"), [("a", FieldType.STR, False)], "reserves"),
        (Table("t"), [("a", FieldType.STR, False), ("A", FieldType.STR, False)], "upper and lower case"),
        (Table("t", key=("b",)), [("a", FieldType.STR, False)], "not a field"),
        (Table("t", key=("a",)), [("a", FieldType.STR, True)], "may be None"),
        (Table("t", key=("a",)), [("a", FieldType.FLOAT64, False)], "a float"),
        (Table("READINGS"), [("sensor", FieldType.STR, False)], "another name"),
    ],
)
def test_table_that_cannot_be_kept_is_refused(
    tables: SqliteTables, table: Table, fields: list[Any], said: str
) -> None:
    with pytest.raises(TableError, match=said):
        tables.declare("new", table, Schema("R", tuple(Field(*f) for f in fields)))


def test_changed_declaration_is_refused(tables: SqliteTables, path: Path) -> None:
    again = SqliteTables(path)
    again.declare("all", Table("readings"), SCHEMA)
    with pytest.raises(TableError, match="another name, key or fields"):
        again.declare(
            "last", Table("latest", key=("value",)), Schema("R", (Field("value", FieldType.INT64),))
        )
    again.close()


def test_a_file_that_is_none_of_ours_is_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"not a database at all, " * 100)
    with pytest.raises(TableError, match="is damaged, or not a file of ours") as raised:
        SqliteTables(other)
    assert "\n" not in str(raised.value)
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(
        TableError, match="was written by another program, or by an early version of Geartrain"
    ):
        SqliteTables(newer)
    with pytest.raises(TableError, match="make no folder of it"):
        SqliteTables(tmp_path)


@pytest.mark.parametrize("name", ["select", "order", "group", "été", "Größe"])
def test_any_field_name_can_be_a_column(name: str, tmp_path: Path) -> None:
    tables = SqliteTables(tmp_path / "t")
    schema = Schema("R", (Field(name, FieldType.INT64), Field("table", FieldType.STR)))
    tables.declare("s", Table("values", key=(name,)), schema)
    tables.write("q", 0, {}, {"s": [ColumnBatch([[1, 2], ["x", "y"]], [1, 2], ["o", "o"], [0, 1])]})
    tables.close()
    assert rows(tmp_path / "t", "values") == [{name: 1, "table": "x"}, {name: 2, "table": "y"}]


VALUES = {
    FieldType.BOOL: st.booleans(),
    FieldType.INT64: st.integers(-(2**63), 2**63 - 1),
    FieldType.FLOAT64: st.floats(),
    FieldType.STR: st.text(max_size=20),
    FieldType.BYTES: st.binary(max_size=20),
    FieldType.DATETIME: st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
}
EVERY_TYPE = Schema("R", tuple(Field(t.value + "_", t, optional=True) for t in FieldType))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*(st.none() | VALUES[t] for t in FieldType)), min_size=1, max_size=20))
def test_values_come_back_bit_for_bit(values: list[tuple[Any, ...]]) -> None:
    tables = SqliteTables(Path(tempfile.mkdtemp()) / "tables.sqlite")
    tables.declare("s", Table("t"), EVERY_TYPE)
    count = len(values)
    numbers = list(range(count))
    columns = [list(c) for c in zip(*values, strict=True)]
    tables.write("q", 0, {}, {"s": [ColumnBatch(columns, numbers, ["o"] * count, numbers)]})
    names = ", ".join(f.name for f in EVERY_TYPE.fields)
    with sqlite3.connect(tables.path) as db:
        held = db.execute(f"SELECT {names} FROM t ORDER BY _origin_number").fetchall()
    tables.close()
    shutil.rmtree(tables.path.parent)
    assert [tuple(map(_bits, row)) for row in held] == [tuple(map(_bits, row)) for row in values]


def _bits(value: Any) -> Any:
    """A float by its bits; NaN is NULL there."""
    if isinstance(value, float):
        return None if math.isnan(value) else struct.pack(">d", value)
    return value


def test_random_cuts_and_replays_give_the_same_tables(tmp_path: Path) -> None:
    """A dictionary is the oracle: the same records in any micro-batches, each brought one to three times."""
    rng = random.Random(7)
    entries = [(rng.choice("abcd"), rng.random(), rng.randrange(50), n) for n in range(300)]
    newest = {k: v for k, v, *_ in sorted(entries, key=lambda e: (e[2], e[3]))}
    for run in range(4):
        tables = SqliteTables(tmp_path / str(run))
        tables.declare("all", Table("readings"), SCHEMA)
        tables.declare("last", Table("latest", key=("sensor",)), SCHEMA)
        rng.shuffle(entries)
        rest, number = list(entries), 0
        while rest:
            size = rng.randrange(1, 40)
            part, rest = batch(*rest[:size]), rest[size:]
            for _ in range(rng.randrange(1, 4)):
                tables.write("q", number, {"c": number}, {"all": [part], "last": [part]})
            number += 1
        tables.close()
        assert {r["sensor"]: r["value"] for r in rows(tmp_path / str(run), "latest")} == newest
        found = [(r["sensor"], r["value"]) for r in rows(tmp_path / str(run), "readings")]
        assert found == sorted((s, v) for s, v, *_ in entries)
