"""Retention: old rows go once every registered query is done with them, and never before."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import LedgerError
from geartrain_client.cli import main
from geartrain_cloud.log.opening import ledger_of
from geartrain_cloud.log.queries import commit, register, registered, unregister
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.retention import (
    DAY_US,
    Holding,
    Retained,
    Retention,
    find_all_due,
    holding,
    retain,
)
from geartrain_cloud.log.verify import verify_log
from geartrain_cloud.ports import (
    HeldSegment,
    QueryProgress,
    StoredSegment,
    partition_of_key,
    position_key,
)
from tests.cloud.fleet import FLOW, TestDevice, make_config, prices, running
from tests.waiting import WAIT_S

FAR_US = 2**60
OLD = Retention(older_than_s=1.0)


def three_segments(folder: Path) -> list[int]:
    """A log of three segments; the positions of their entries."""

    async def run() -> None:
        async with running(make_config(folder)) as world:
            device = TestDevice()
            world.net.deliver(device.topic, device.schemas())
            await world.net.acked(device)
            for price in (1.0, 2.0, 3.0):
                world.net.deliver(device.topic, device.quotes(price))
                await world.net.acked(device)

    asyncio.run(run())
    return [entry.number for entry in LogReader(folder).entries(FLOW, "0", 0, 99) if entry.count]


def files(folder: Path) -> int:
    return len(list((folder / "segments").rglob("*.arrow")))


def test_queries_keep_their_place_and_never_go_back(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        register(tmp_path, "tables", FLOW, ["0"])
    three_segments(tmp_path)
    register(tmp_path, "tables", FLOW, ["0", "1"])
    commit(tmp_path, "tables", FLOW, {"0": 4})
    commit(tmp_path, "tables", FLOW, {"0": 3, "2": 2})
    register(tmp_path, "tables", FLOW, ["0"])
    keys = [("0", 4), ("1", 0), ("2", 2)]
    assert registered(tmp_path) == [QueryProgress("tables", FLOW, key, at) for key, at in keys]
    unregister(tmp_path, "tables", FLOW)
    assert registered(tmp_path) == []
    assert (position_key(0), partition_of_key("12")) == ("0", 12)


def test_nothing_goes_that_a_query_is_not_done_with(tmp_path: Path) -> None:
    first, second, third = three_segments(tmp_path)
    assert retain(tmp_path, OLD, FAR_US).held == 3
    register(tmp_path, "slow", FLOW, ["0"])
    commit(tmp_path, "fast", FLOW, {"0": third})
    assert retain(tmp_path, OLD, FAR_US).held == 3
    commit(tmp_path, "slow", FLOW, {"0": second})
    assert retain(tmp_path, OLD, 0).segments == 0
    done = retain(tmp_path, OLD, FAR_US)
    assert (done.segments, done.held, files(tmp_path)) == (2, 1, 1)
    reader = LogReader(tmp_path)
    entries = reader.entries(FLOW, "0", 0, third)
    assert [entry.number for entry in entries] == list(range(1, third + 1))
    assert [entry.kind.value for entry in entries if entry.count] == ["removed", "removed", "rows"]
    assert reader.clocks(FLOW, "0", first)["quotes"] == 10
    with pytest.raises(LedgerError, match="retention has removed them"):
        reader.table(entries[first - 1])
    assert reader.table(entries[third - 1]).column("price").to_pylist() == [3.0]
    assert verify_log(tmp_path).damages == []


def test_oldest_go_first_until_the_bytes_fit(tmp_path: Path) -> None:
    *_, third = three_segments(tmp_path)
    commit(tmp_path, "one", FLOW, {"0": third})
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as ledger:
        sizes = [size for (size,) in ledger.execute("SELECT size FROM segments ORDER BY made_us")]
    done = retain(tmp_path, Retention(bytes_max=sum(sizes[1:])), 0)
    assert done == Retained(1, sizes[0], sum(sizes[1:]), 0)
    assert retain(tmp_path, Retention(bytes_max=sum(sizes[1:])), 0) == Retained(0, 0, sum(sizes[1:]), 0)


def test_ingest_goes_on_while_and_after_rows_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *_, third = three_segments(tmp_path)
    commit(tmp_path, "one", FLOW, {"0": third})

    async def run() -> None:
        async with running(make_config(tmp_path)) as world:
            await asyncio.to_thread(retain, tmp_path, OLD, FAR_US)
            fresh = TestDevice(epoch=b"epoch--2")
            fresh.time = 30
            world.net.deliver(fresh.topic, fresh.hello(2), fresh.schemas(), fresh.quotes(4.0))
            await world.net.acked(fresh)

    asyncio.run(run())
    assert files(tmp_path) == 1
    reader = LogReader(tmp_path)
    newest = reader.positions(FLOW)["0"]
    (entry,) = [e for e in reader.entries(FLOW, "0", third, newest) if e.count]
    assert reader.table(entry).column("price").to_pylist() == [4.0]
    with pytest.raises(LedgerError, match="retention has removed them"):
        prices(reader)
    capsys.readouterr()
    assert main(["log", "ls", "--state", str(tmp_path), "--json"]) == 0
    listed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [one["rows"] for one in listed if one["channel"] == "quotes"] == [1]
    assert main(["log", "trim", "--state", str(tmp_path), "--older-than", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["segments"] == 0
    assert main(["log", "trim", "--state", str(tmp_path)]) == 2
    assert "say what may go" in capsys.readouterr().err


def test_gear_lists_and_forgets_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *_, third = three_segments(tmp_path)
    commit(tmp_path, "keyed@1", FLOW, {"0": third})
    state = ["--state", str(tmp_path)]
    capsys.readouterr()
    assert main(["log", "queries", *state, "--json"]) == 0
    listed = [{"name": "keyed@1", "flow": FLOW, "key": "0", "position": third}]
    assert json.loads(capsys.readouterr().out) == listed
    assert main(["log", "queries", *state]) == 0
    assert "keyed@1" in capsys.readouterr().out
    assert main(["log", "forget", "keyed", *state]) == 2
    assert "no query 'keyed' is registered" in capsys.readouterr().err
    assert main(["log", "forget", "keyed@1", *state]) == 0
    assert main(["log", "queries", *state]) == 0
    assert "nothing of the log may go" in capsys.readouterr().out
    assert main(["log", "ls", *state, "--json"]) == 0
    (quotes,) = [one for one in json.loads(capsys.readouterr().out) if one["channel"] == "quotes"]
    size = sum(path.stat().st_size for path in (tmp_path / "segments").rglob("*.arrow"))
    assert (quotes["segments"], quotes["bytes"], quotes["old_files"]) == (3, size, 0)


def test_ingest_removes_nothing_while_it_cannot_know_who_is_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The row of a query is damaged: rows stay, devices go on, and the log says why."""
    *_, third = three_segments(tmp_path)
    commit(tmp_path, "one", FLOW, {"0": third})
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE queries SET position = position + 1")

    async def run() -> None:
        config = make_config(tmp_path, retention=Retention(bytes_max=1))
        async with running(config) as world:
            said = "what query one has done of stocks/0 is damaged"
            async with asyncio.timeout(WAIT_S):
                while said not in caplog.text:  # noqa: ASYNC110 - what is waited for is a line of the log
                    await asyncio.sleep(0.05)
            fresh = TestDevice(epoch=b"epoch--2")
            world.net.deliver(fresh.topic, fresh.hello(2), fresh.schemas(), fresh.quotes(4.0))
            await world.net.acked(fresh)

    asyncio.run(run())
    assert files(tmp_path) == 4
    with pytest.raises(LedgerError, match="is damaged: restore the ledger from a copy"):
        retain(tmp_path, OLD, FAR_US)
    with pytest.raises(LedgerError, match="is damaged"):
        registered(tmp_path)


def held(flow: str, number: int, size: int, made_us: int) -> HeldSegment:
    name = f"segments/{flow}/{number}"
    return HeldSegment(StoredSegment(name, size, b"", made_us), flow, "quotes", 0, number, number, 1)


def test_limits_of_flows_hold_beside_those_of_all() -> None:
    segments = [held(flow, n, 10, n * 1_000_000) for n in range(1, 5) for flow in ("a", "b", "c")]
    done = [QueryProgress("tables", flow, "0", at) for flow, at in (("a", 9), ("b", 3), ("c", 9))]
    own = {"a": Retention(bytes_max=20), "b": Retention(older_than_s=0.5), "c": Retention()}

    def gone(limits: Retention) -> tuple[list[str], int, int]:
        due = find_all_due(segments, done, limits, own, now_us=5_000_000)
        return sorted(one.segment.name[9:] for one in due.segments), due.held, due.bytes_left

    assert gone(Retention()) == (["a/1", "a/2", "b/1", "b/2", "b/3"], 1, 70)
    assert gone(Retention(older_than_s=3.5)) == (["a/1", "a/2", "b/1", "b/2", "b/3", "c/1"], 1, 60)


def test_what_a_flow_holds_and_how_it_grows_is_told_from_its_segments(tmp_path: Path) -> None:
    three_segments(tmp_path)
    with ledger_of(tmp_path) as ledger:
        sizes = [size for (size,) in ledger.execute("SELECT size FROM segments")]
        (first_us,) = ledger.execute("SELECT min(made_us) FROM segments").fetchone()
    assert holding(tmp_path, FLOW, first_us + 1) == Holding(sum(sizes))
    half_a_day = first_us + DAY_US // 2
    assert holding(tmp_path, FLOW, half_a_day) == Holding(sum(sizes), sum(sizes) * 2.0, 43_200.0)
    assert holding(tmp_path, FLOW, first_us + 9 * DAY_US) == Holding(sum(sizes), 0.0, 86_400.0)
    assert holding(tmp_path, "nothing", first_us) == Holding(0)
