"""The reading side: the output contract of the tables, byte for byte."""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any

import pytest

from geartrain.declarations.sink import Table
from geartrain.records.event_time import parse_time
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import json_bytes, rows, table_names, write_json

SCHEMA = Schema(
    "Trade",
    (
        Field("symbol", FieldType.STR),
        Field("at", FieldType.DATETIME),
        Field("price", FieldType.FLOAT64),
        Field("open", FieldType.BOOL),
        Field("recovered", FieldType.DATETIME, optional=True),
    ),
)
DAY, MICRO = parse_time("2008-10-10"), parse_time("2008-10-10T09:30:00.000001Z")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tables = SqliteTables(tmp_path / "tables.sqlite")
    tables.declare("trades", Table("trades", key=("symbol", "at")), SCHEMA)
    columns: list[list[Any]] = [
        ["b", "ä", "b", "\U0001f600", "Z"],
        [MICRO, DAY, DAY, DAY, DAY],
        [1.0, 0.1 + 0.2, math.nan, -math.inf, -0.0],
        [True, False, True, True, False],
        [None, MICRO, None, None, DAY],
    ]
    tables.write("q", 0, {}, {"trades": [ColumnBatch(columns, [1] * 5, ["o"] * 5, list(range(5)))]})
    tables.close()
    return tmp_path / "tables.sqlite"


EXPECTED = """[
 {
  "symbol": "Z",
  "at": "2008-10-10T00:00:00Z",
  "price": -0.0,
  "open": false,
  "recovered": "2008-10-10T00:00:00Z"
 },
 {
  "symbol": "b",
  "at": "2008-10-10T00:00:00Z",
  "price": null,
  "open": true,
  "recovered": null
 },
 {
  "symbol": "b",
  "at": "2008-10-10T09:30:00.000001Z",
  "price": 1.0,
  "open": true,
  "recovered": null
 },
 {
  "symbol": "ä",
  "at": "2008-10-10T00:00:00Z",
  "price": 0.30000000000000004,
  "open": false,
  "recovered": "2008-10-10T09:30:00.000001Z"
 },
 {
  "symbol": "\U0001f600",
  "at": "2008-10-10T00:00:00Z",
  "price": null,
  "open": true,
  "recovered": null
 }
]
"""


def test_output_is_byte_exact(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out.json"
    write_json(rows(path, "trades"), target)
    assert target.read_bytes() == EXPECTED.encode()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [f.name for f in target.parent.iterdir()] == ["out.json"]


def test_rows_can_be_chosen_by_their_fields(path: Path) -> None:
    assert [r["at"] for r in rows(path, "trades", {"symbol": "b"})] == [
        "2008-10-10T00:00:00Z",
        "2008-10-10T09:30:00.000001Z",
    ]
    assert [r["symbol"] for r in rows(path, "trades", {"symbol": "b", "at": MICRO})] == ["b"]
    assert len(rows(path, "trades", {"recovered": None})) == 3
    assert rows(path, "trades", {"symbol": "'; DROP TABLE trades; --"}) == []


def test_no_rows_are_an_empty_list(path: Path, tmp_path: Path) -> None:
    assert rows(path, "late") == []
    assert json_bytes([]) == b"[]\n"
    assert table_names(path) == ["dead_letters", "late", "overtaken", "trades"]


def test_what_is_not_there_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"no table 'trade' in .*; its tables: dead_letters, late, over"):
        rows(path, "trade")
    with pytest.raises(TableError, match="no field 'sym'"):
        rows(path, "trades", {"sym": "b"})
    with pytest.raises(TableError, match="run the flow first"):
        rows(tmp_path / "nothing", "trades")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "damaged").write_bytes(b"SQLite format 3\x00" + b"\xff" * 4096)
    with pytest.raises(TableError, match="is damaged, or not a file of ours"):
        rows(tmp_path / "damaged", "trades")


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with pytest.raises(ValueError, match="Out of range"):
        write_json([{"x": math.nan}], target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(TableError, match="cannot be written"):
        write_json([], target / "below")
