"""A sink of Delta tables: others read it while it grows, and each micro-batch is there once."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from geartrain.schema import ColumnBatch, derive
from geartrain.sinks import DeltaTable, Table
from geartrain_cloud.hosting.prepared import SinkSaid
from geartrain_cloud.sinks import delta
from geartrain_cloud.sinks.layout import Layout, TableError
from geartrain_cloud.sinks.opening import SinkPlace
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Tables
from tests.sinks.delta_writer import BATCHES, ROWS
from tests.sinks.test_stores import FIRST, SECOND, Pair, Trade, columns, tables_of
from tests.waiting import WAIT_S


def opened(folder: Path) -> Tables:
    tables = tables_of(folder, DeltaTable("trades"), kind=Pair)
    tables.attach("q", "c", has_run=False)
    return tables


def pairs(*values: float) -> dict[str, list[ColumnBatch]]:
    return {"sink0": [columns(Pair, *((int(value), Pair("a", value)) for value in values))]}


def read(folder: Path) -> list[dict[str, Any]]:
    rows: Any = deltalake.DeltaTable(str(folder / "trades.delta")).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["_event_time"])


def values(folder: Path) -> list[float]:
    return [row["value"] for row in read(folder)]


def killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_it_is_read_by_others_while_it_grows(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, DeltaTable("trades"))
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Trade, (1, FIRST))]})
    assert len(read(tmp_path)) == 1
    tables.write("q", 1, {"c": 2}, {"sink0": [columns(Trade, (2, SECOND))]})
    tables.close()
    first, second = read(tmp_path)
    wanted = ("A", 2**62, Decimal("-1.50"), "SELL", '["x", "y"]', b"\x00\xff", FIRST.seen)
    assert tuple(first[name] for name in ("symbol", "count", "fee", "side", "tags", "raw", "seen")) == wanted
    assert (second["price"], second["good"], second["seen"]) == (-math.inf, True, None)
    assert (second["_event_time"], second["_origin_name"], second["_origin_path"]) == (2, "s", b"\x01")


@pytest.mark.parametrize(
    "moment",
    [
        (delta.Delta, "_file"),
        (delta.Delta, "_commit"),
        (delta.Delta, "_sync"),
        (delta.Delta, "_clean"),
        (SqliteTables, "write"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_micro_batch_that_is_run_again_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: tuple[type, str], is_late: bool
) -> None:
    owner, name = moment
    tables = opened(tmp_path)
    tables.write("q", 0, {"c": 1}, pairs(1))
    real: Callable[..., Any] = getattr(owner, name)

    def killed_there(*given: Any, **named: Any) -> None:
        if is_late and owner is not SqliteTables:
            real(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killed_there)
        with pytest.raises(KeyboardInterrupt):
            tables.write("q", 1, {"c": 2}, pairs(2, 3))
    tables.close()
    again = opened(tmp_path)
    assert again.write("q", 1, {"c": 2}, pairs(2, 3))
    assert again.write("q", 2, {"c": 3}, pairs(4))
    with pytest.raises(TableError, match="brings micro-batch 5"):
        again.write("q", 5, {"c": 6}, pairs(5))
    again.close()
    assert values(tmp_path) == [1, 2, 3, 4]
    assert len(list((tmp_path / "trades.delta" / "_geartrain").iterdir())) == 1


def test_a_writer_that_is_killed_leaves_each_row_once(tmp_path: Path) -> None:
    rng, command = random.Random(3), [sys.executable, "-m", "tests.sinks.delta_writer", str(tmp_path)]
    for _ in range(2):
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(rng.randint(5, 20)):
            assert writer.stdout.readline()
        writer.kill()
        writer.communicate()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=WAIT_S)
    wanted = [time for time in range(BATCHES * ROWS) if time // ROWS % 3]
    assert values(tmp_path) == wanted


def test_a_file_is_durable_before_its_commit_and_that_before_the_query_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, seen = opened(tmp_path), list[str]()

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = real(*given, **named)
            seen.append(f"{name} {Path(given[0]).name}" if isinstance(given[0], Path) else name)
            return found

        return call

    for name in ("fsync_path", "write_durable"):
        monkeypatch.setattr(delta, name, noting(name, getattr(delta, name)))
    monkeypatch.setattr(
        deltalake.DeltaTable,
        "create_write_transaction",
        noting("commit", deltalake.DeltaTable.create_write_transaction),
    )
    monkeypatch.setattr(tables.own, "write", noting("own", tables.own.write))
    tables.write("q", 0, {"c": 1}, pairs(1))
    tables.close()
    data, mark, *rest = seen
    assert data == "write_durable q-c-0000000000.parquet"
    assert mark.startswith("write_durable ")
    assert mark.endswith(".0.json")
    log = f"fsync_path {2:020d}.json"  # behind the commit that made it, and that of its first mark
    assert rest == ["commit", log, "fsync_path _delta_log", "fsync_path trades.delta", "own"]


def test_what_a_killed_writer_has_committed_is_durable_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = opened(tmp_path)
    monkeypatch.setattr(delta.Delta, "_sync", killed)
    with pytest.raises(KeyboardInterrupt):
        tables.write("q", 0, {"c": 1}, pairs(1))
    tables.close()
    monkeypatch.undo()
    synced: list[str] = []
    monkeypatch.setattr(delta, "fsync_path", lambda path: synced.append(path.name))
    again = opened(tmp_path)
    assert {f"{2:020d}.json", "_delta_log"} <= set(synced)
    again.close()


def test_it_comes_with_a_revision_and_its_columns_stay(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, Table("own"), kind=Pair)
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {})
    tables.evolve([Layout("new", DeltaTable("trades"), derive(Pair))])
    for _ in range(2):
        tables.write("q", 1, {"c": 2}, {"new": pairs(1)["sink0"]})
    with pytest.raises(TableError, match=r"has other columns \(.*price double.*rename the sink"):
        tables.planned([Layout("new", DeltaTable("trades"), derive(Trade))])
    tables.close()
    assert values(tmp_path) == [1]


def test_others_may_write_and_the_log_gets_checkpoints(tmp_path: Path) -> None:
    tables, folder = opened(tmp_path), tmp_path / "trades.delta"
    tables.write("q", 0, {"c": 1}, pairs(0))
    row = deltalake.DeltaTable(str(folder)).to_pyarrow_table().slice(0, 1)
    deltalake.write_deltalake(str(folder), row, mode="append")
    for number in range(1, 101):
        tables.write("q", number, {"c": number + 1}, pairs(number) if number == 100 else {})
    tables.close()
    assert list((folder / "_delta_log").glob("*.checkpoint.parquet"))
    for path in (folder / "_delta_log").glob("0000000000000000000*.json"):
        path.unlink()  # as a log is cleaned up
    again = opened(tmp_path)
    again.write("q", 101, {"c": 102}, pairs(101))
    again.close()
    assert values(tmp_path) == [0, 0, 100, 101]


def test_what_it_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="so there is no key"):
        tables_of(tmp_path, DeltaTable("trades", key=("symbol",)), kind=Pair)
    with pytest.raises(TableError, match=r"sink 'sink0' writes .*trades\.delta: rename one of both"):
        tables_of(tmp_path, DeltaTable("trades"), DeltaTable("trades"), kind=Pair)
    (tmp_path / "other.delta").mkdir()
    (tmp_path / "other.delta" / "file").write_text("")
    with pytest.raises(TableError, match=r"other\.delta is no Delta table: rename the sink"):
        tables_of(tmp_path, DeltaTable("other"), kind=Pair)


def test_a_mark_that_is_gone_and_a_log_that_is_torn_are_one_sentence(tmp_path: Path) -> None:
    tables = opened(tmp_path)
    tables.write("q", 0, {"c": 1}, pairs(1))
    tables.close()
    folder = tmp_path / "trades.delta"
    (path,) = (folder / "_geartrain").iterdir()
    path.unlink()
    with pytest.raises(TableError, match=r"\.0\.json is not there, by which .*trades\.delta goes on"):
        opened(tmp_path)
    (folder / "_delta_log" / f"{2:020d}.json").write_text('{"add": ')
    with pytest.raises(TableError, match=r"trades\.delta cannot be read \("):
        opened(tmp_path)


@pytest.mark.parametrize("layout", ["1", "2", '"geartrain-tables/1"'])
def test_a_table_of_another_layout_is_refused(tmp_path: Path, layout: str) -> None:
    tables = opened(tmp_path)
    tables.write("q", 0, {"c": 1}, pairs(1))
    tables.close()
    (path,) = (tmp_path / "trades.delta" / "_geartrain").iterdir()
    path.write_text(re.sub(r'"layout":.*(?=})', f'"layout":{layout}', path.read_text()))
    with pytest.raises(TableError, match=r"trades\.delta was written by .*: move the folder away, or rename"):
        opened(tmp_path)


def test_columns_are_those_of_arrow(tmp_path: Path) -> None:
    opened(tmp_path).close()
    held: Any = deltalake.DeltaTable(str(tmp_path / "trades.delta")).schema().to_arrow()
    names = [(one.name, str(one.type), one.nullable) for one in pa.schema(held)]
    assert names[:2] == [("symbol", "string", False), ("value", "double", False)]


def test_a_host_of_flows_gets_it_as_data() -> None:
    sink = DeltaTable("trades", folder="/srv")
    assert SinkSaid.of(SinkPlace("s", sink, derive(Pair))).place().sink == sink
