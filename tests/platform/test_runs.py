"""Which run of an instance is served, and where the tables of each lie."""

from __future__ import annotations

from pathlib import Path

from geartrain_cloud.platform.runs import (
    runs_with_tables,
    serve_run,
    served_run,
    tables_of_run,
)
from geartrain_cloud.sinks.app_tables import AppTables


def test_the_first_run_is_served_until_another_is(tmp_path: Path) -> None:
    tables = tmp_path / "tables.sqlite"
    assert served_run(tables) == 1
    assert tables_of_run(tables, 1) == tables
    serve_run(tables, 3)
    assert served_run(tables) == 3
    assert tables_of_run(tables, 3) == tmp_path / "tables.run-3.sqlite"
    assert (tmp_path / "served.json").stat().st_mode & 0o777 == 0o600


def test_only_the_tables_of_one_run_go(tmp_path: Path) -> None:
    tables = tmp_path / "tables.sqlite"
    names = [
        "tables.sqlite",
        "tables.run-7.postgresql",
        "tables.run-2.sqlite",
        "tables.run-2.sqlite-wal",
        "tables.run-12.sqlite",
    ]
    for name in [*names, "outbox.sqlite", "tables.run-x.sqlite"]:
        (tmp_path / name).touch()
    assert runs_with_tables(tables) == {1, 2, 7, 12}
    AppTables(tables).remove(2)
    assert runs_with_tables(tables) == {1, 7, 12}
    assert not (tmp_path / "tables.run-2.sqlite-wal").exists()
    assert (tmp_path / "outbox.sqlite").exists()
