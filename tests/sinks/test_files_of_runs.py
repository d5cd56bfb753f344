"""Files that sinks write beside an app's tables: each run has its own, and they go with it, killed or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from geartrain import Table
from geartrain.schema import ColumnBatch, derive
from geartrain.sinks import DeltaTable, ParquetTable, Sink
from geartrain_cloud.platform.runs import runs_with_tables, serve_run
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.opening import SinkPlace, is_anew, open_places
from geartrain_cloud.sinks.parquet_form import read_table
from geartrain_cloud.sinks.store import Tables
from tests.sinks.test_stores import Pair, columns

BUSY_S = 1.0
SINKS: dict[str, Sink] = {"kept": Table("kept"), "lake": ParquetTable("lake"), "lake2": ParquetTable("lake2")}
OF_DELTA = SINKS | {"delta": DeltaTable("sums")}


class KillError(Exception):
    """The process ends here."""


def opened(app: AppTables, run: int, sinks: dict[str, Sink] = SINKS, folder: Path | None = None) -> Tables:
    """The stores of a run, as the host opens them; folder: where a former release has the files."""
    places = [SinkPlace(step, sink, derive(Pair)) for step, sink in sinks.items()]
    own = app.open("lake.1", run, BUSY_S)
    tables = open_places("lake.1", places, own, folder or app.files(run))
    tables.attach("q", f"checkpoint of run {run}", has_run=False)
    return tables


def write(tables: Tables, batch_id: int, *symbols: str, sinks: dict[str, Sink] = SINKS) -> None:
    rows: ColumnBatch = columns(Pair, *((number, Pair(one, 1.5)) for number, one in enumerate(symbols)))
    assert tables.write("q", batch_id, {"c": batch_id + 1}, {step: [rows] for step in sinks})


def symbols(folder: Path) -> list[str]:
    return sorted(map(str, read_table(folder)["symbol"].to_pylist()))


def holding(folder: Path, text: str) -> list[Path]:
    """The files that hold a text; those of Parquet have it in their statistics, which are plain."""
    return [one for one in folder.rglob("*") if one.is_file() and text.encode() in one.read_bytes()]


def two_runs(folder: Path, sinks: dict[str, Sink]) -> AppTables:
    """An app whose second run is served, and whose first, with a value that is to go, is to be removed."""
    app = AppTables(folder / "lake.1" / "tables.sqlite")
    for run, symbol in ((1, "purged-value"), (2, "other-value")):
        tables = opened(app, run, sinks)
        write(tables, 0, symbol, sinks=sinks)
        write(tables, 1, symbol, sinks=sinks)
        tables.close()
    serve_run(app.first, 2)
    return app


def test_each_run_has_files_of_its_own_and_they_go_with_it(tmp_path: Path) -> None:
    app = two_runs(tmp_path, OF_DELTA)
    parent = app.first.parent
    names = ["lake.parquet", "lake2.parquet", "sums.delta"]
    assert {one.name for one in parent.glob("*") if one.is_dir()} == {*names, "run-2"}
    assert app.folders() == [parent / "run-2" / name for name in names]
    assert (symbols(parent / "lake.parquet"), symbols(app.folders()[0])) == (
        ["purged-value"] * 2,
        ["other-value"] * 2,
    )
    endings = {one.suffix for one in holding(tmp_path, "purged-value")}
    assert endings == {".sqlite", ".parquet"}
    app.remove(1)
    assert holding(tmp_path, "purged-value") == []
    assert sorted(one.name for one in parent.iterdir()) == ["run-2", "served.json", "tables.run-2.sqlite"]
    for folder in app.folders()[:2]:
        assert symbols(folder) == ["other-value"] * 2
        assert ds.dataset(folder, format="parquet").to_table().num_rows == 2
    app.remove(2)
    assert [one.name for one in parent.iterdir()] == ["served.json"]


@pytest.mark.parametrize("run", [1, 2])
def test_a_removal_that_is_killed_at_any_step_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: int
) -> None:
    """run: that is removed, of the first with its files beside the tables, or of a later one."""
    gone, stays = ("purged-value", "other-value")[:: 1 if run == 1 else -1]
    other, step, is_killed = 3 - run, 0, True
    while is_killed:
        app = two_runs(tmp_path / str(step), SINKS)
        serve_run(app.first, other)
        kept = {one: one.read_bytes() for one in holding(tmp_path / str(step), stays)}
        left = step

        def dying(do: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise KillError
                left -= 1
                return do(*arguments, **more)

            return call

        with monkeypatch.context() as patched:
            for name in ("unlink", "rmdir"):
                patched.setattr(os, name, dying(getattr(os, name)))
            try:
                app.remove(run)
                is_killed = False
            except KillError:
                assert runs_with_tables(app.first) == {1, 2}  # so it is removed again
        app.remove(run)
        assert runs_with_tables(app.first) == {other}
        assert holding(tmp_path / str(step), gone) == []
        assert {one: one.read_bytes() for one in kept} == kept
        assert [symbols(one) for one in app.folders()] == [[stays] * 2] * 2
        step += 1
    assert step > 2 * 3 + 2 + 1  # files and folders of two tables, the folders themselves, the tables' file


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        (ParquetTable("a"), True),
        (DeltaTable("a"), True),
        (ParquetTable("a", folder="/srv"), False),
        (DeltaTable("a", folder="/srv"), False),
        (Table("a"), False),
    ],
)
def test_sinks_with_a_folder_that_somebody_names_are_of_no_run(sink: Sink, expected: bool) -> None:
    assert is_anew(sink) is expected
