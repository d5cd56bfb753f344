"""Rows of tables that go by age: which go, which stay, and who counts them; in a file and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from geartrain.declarations.sink import Table
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.own import OwnTables
from tests.postgres_server import Postgres

SCHEMA = Schema("Reading", (Field("sensor", FieldType.STR), Field("value", FieldType.FLOAT64)))
Make = Callable[[], AppTables]


def batch(*entries: tuple[str, float, int]) -> ColumnBatch:
    """Rows of (sensor, value, time), numbered by their place."""
    sensors, values, times = (list(column) for column in zip(*entries, strict=True))
    return ColumnBatch([sensors, values], times, ["s"] * len(times), [*range(len(times))])


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> AppTables:
    store = ""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        store = server.database("geartrain_table_retention")
    return AppTables(tmp_path / "tables.sqlite", store)


def opened(app: AppTables) -> OwnTables:
    own = app.open("heat.1", 1, 5.0)
    own.declare("all", Table("readings"), SCHEMA)
    own.declare("last", Table("latest", key=("sensor",)), SCHEMA)
    own.attach("main", "c", has_run=False)
    return own


def held(app: AppTables, table: str) -> list[float]:
    reader = app.reader(1)
    assert reader is not None
    return [row["value"] for row in reader.page(table, 0, 1_000)]


def remove_all(app: AppTables, before_us: int) -> int:
    before, sweep = app.removed_rows(1), app.sweep(1, before_us)
    assert sweep is not None
    while sweep.step():
        pass
    return app.removed_rows(1) - before


def test_rows_go_by_their_event_time_and_are_counted(app: AppTables) -> None:
    own = opened(app)
    rows = batch(("a", 1.0, 10), ("b", 2.0, 20), ("a", 3.0, 30), ("c", 4.0, END_OF_TIME))
    columns: list[list[Any]] = [["p"] * 2, ["wrong_type"] * 2, ["no"] * 2, [b"x", b"y"]]
    letters = ColumnBatch(columns, [5, START_OF_TIME], ["s", "s"], [7, 8])
    own.write("main", 0, {"0": 4}, {"all": [rows], "last": [rows], DEAD_LETTERS: [letters]})
    assert (remove_all(app, 5), app.removed_rows(1)) == (0, 0)
    assert app.sweep(2, 5) is None
    assert remove_all(app, 30) == 4
    assert held(app, "readings") == [3.0, 4.0]
    assert held(app, "latest") == [3.0, 4.0]
    reader = app.reader(1)
    assert reader is not None
    assert reader.row_count("dead_letters") == 1
    assert (remove_all(app, 30), app.removed_rows(1)) == (0, 4)
    assert own.records()["all"] == 4
    own.write("main", 1, {"0": 5}, {"last": [batch(("b", 9.0, 40))]})
    assert held(app, "latest") == [3.0, 9.0, 4.0]
    own.close()


def test_who_reads_in_the_order_of_writing_misses_nothing(app: AppTables) -> None:
    own, reader = opened(app), app.reader(1)
    assert reader is not None
    own.write("main", 0, {"0": 2}, {"all": [batch(("a", 1.0, 10), ("a", 2.0, 11))]})
    _, place = reader.rows_after("readings", 0, 100)
    remove_all(app, 1_000)
    own.write("main", 1, {"0": 3}, {"all": [batch(("a", 3.0, 12))]})
    found, _ = reader.rows_after("readings", place, 100)
    assert [row["value"] for row in found] == [3.0]
    own.close()


def test_few_rows_go_at_once_while_others_are_written(app: AppTables) -> None:
    own = opened(app)
    own.write("main", 0, {"0": 1}, {"all": [batch(*(("a", 0.0, n) for n in range(2_500)))]})
    first = app.sweep(1, 10_000)
    assert first is not None
    assert (first.step(), app.removed_rows(1)) == (True, 1_000)

    def write() -> None:
        for number in range(1, 30):
            row = batch((f"n{number}", float(number), 20_000 + number))
            own.write("main", number, {"0": number + 1}, {"all": [row], "last": [row]})

    writer = Thread(target=write)
    writer.start()
    remove_all(app, 10_000)
    writer.join()
    remove_all(app, 10_000)
    assert held(app, "readings") == held(app, "latest")
    assert app.removed_rows(1) == 2_500
    own.close()
