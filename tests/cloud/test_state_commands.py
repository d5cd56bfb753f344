"""`gear log`, `quarantine` and `deadletters`, on a real log that is running or stopped."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from geartrain.records.letters import Letter
from geartrain.schema import ColumnBatch, RowCodec, Schema
from geartrain_client.cli import main
from geartrain_cloud.ingest.resubmit import resubmit_letter
from geartrain_cloud.log.opening import shared_log
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.sqlite import SqliteTables
from tests.cloud.fleet import FLOW, PATIENCE_S, QUOTE, Running, TestDevice, make_config, prices, running

LETTERS = RowCodec(Letter)


def letters(device: TestDevice, *written: Letter, time: int = 25) -> bytes:
    rows = ColumnBatch(
        LETTERS.to_columns(list(written)),
        [time] * len(written),
        [device.name] * len(written),
        list(range(100, 100 + len(written))),
    )
    return device.rows("_dead_letters", LETTERS.schema, rows)


def play(folder: Path, *make: Callable[[TestDevice], bytes], after: Any = None) -> TestDevice:
    """device-1 sends its schemas and then what `make` says; `after`: what to do while ingest still runs."""

    async def run() -> TestDevice:
        async with running(make_config(folder, ("device-1", "device-2"))) as world:
            device = TestDevice()
            schemas: dict[str, Schema] = {"quotes": QUOTE.schema, "_dead_letters": LETTERS.schema}
            world.net.deliver(device.topic, device.schemas(schemas), *(one(device) for one in make))
            await world.net.acked(device)
            if after is not None:
                await asyncio.to_thread(after, world)
        return device

    return asyncio.run(run())


def gear(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--state", str(folder), "--json"]) == code
    printed = capsys.readouterr()
    return json.loads(printed.out) if not code or printed.out else printed.err


def test_log_is_listed_shown_and_whole_while_ingest_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def look(world: Running) -> None:
        seen.append(gear(capsys, tmp_path, "log", "ls"))
        seen.append(gear(capsys, tmp_path, "log", "show", f"{FLOW}/quotes", "--rows"))
        seen.append(gear(capsys, tmp_path, "log", "verify"))
        seen.append(gear(capsys, tmp_path, "log", "show", FLOW))

    play(tmp_path, lambda d: d.quotes(1.0, 2.0), lambda d: d.quotes(3.0), after=look)
    (quotes,) = seen[0]
    assert (quotes["channel"], quotes["rows"], quotes["clocks"]) == ("quotes", 3, {})
    assert (quotes["position"], quotes["clock_time"]) == (quotes["last"], None)
    shown = [row["price"] for entry in seen[1] for row in entry["rows"]]
    assert shown == [1.0, 2.0, 3.0]
    assert {entry["kind"] for entry in seen[1]} == {"rows"}
    kinds = [(entry["kind"], entry["source"]) for entry in seen[3]]
    assert kinds[:3] == [("assigned", "quotes"), ("assigned", "quotes"), ("joined", "")]
    assert [entry["position"] for entry in seen[3]] == list(range(1, quotes["position"] + 1))
    assert seen[2]["whole"]
    assert seen[2]["rows"] == 3
    assert seen[2]["unchecked"] == 0
    assert (
        gear(capsys, tmp_path, "log", "show", f"{FLOW}/quotes", "--after", "1", "--limit", "1")[0]["position"]
        == quotes["first"]
    )
    assert "has no 'x'" in gear(capsys, tmp_path, "log", "show", "x", code=2)
    assert "there is no log in" in gear(capsys, tmp_path / "nowhere", "log", "ls", code=2)


def test_every_flipped_byte_of_a_segment_is_found_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(tmp_path, lambda d: d.quotes(1.0, 2.0))
    play_more(tmp_path)
    (first, second) = sorted((tmp_path / "segments").rglob("*.arrow"))
    whole = first.read_bytes()
    for place in range(0, len(whole), 41):
        first.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        found = gear(capsys, tmp_path, "log", "verify", code=1)
        (damage,) = found["damages"]
        assert (damage["channel"], damage["first"], damage["last"]) == ("quotes", 4, 4)
        assert damage["file"] == first.relative_to(tmp_path).as_posix()
        reader = LogReader(tmp_path)
        (good,) = [e for e in reader.entries(FLOW, "0", 0, 99) if e.segment.endswith(second.name)]
        assert reader.table(good).column("price").to_pylist() == [9.0]
    first.unlink()
    assert "missing" in gear(capsys, tmp_path, "log", "verify", code=1)["damages"][0]["reason"]
    first.write_bytes(whole)
    assert gear(capsys, tmp_path, "log", "verify")["whole"]


def play_more(folder: Path) -> None:
    async def run() -> None:
        async with running(make_config(folder, ("device-1", "device-2"))) as world:
            device = TestDevice("device-2", b"epoch--2")
            world.net.deliver(device.topic, device.hello(2), device.schemas(), device.quotes(9.0))
            await world.net.acked(device)

    asyncio.run(run())


@pytest.mark.parametrize("column", ["clocks", "count", "first_row", "seq"])
def test_changed_row_of_the_ledger_is_found_and_refused(
    tmp_path: Path, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    play(tmp_path, lambda d: d.quotes(1.0, 2.0))
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as ledger, ledger:
        other = """'{"quotes":1}'""" if column == "clocks" else f"{column} + 1"
        ledger.execute(f"UPDATE entries SET {column} = {other} WHERE number = 4")
    (damage, *_) = gear(capsys, tmp_path, "log", "verify", code=1)["damages"]
    assert (damage["flow"], damage["first"], damage["last"]) == (FLOW, 4, 4)
    assert "entry 4 of stocks/0 is damaged" in gear(capsys, tmp_path, "log", "show", f"{FLOW}/quotes", code=1)


def test_missing_entries_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play(tmp_path, lambda d: d.quotes(1.0), lambda d: d.quotes(2.0))
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("DELETE FROM entries WHERE number IN (2, 3)")
    (damage,) = gear(capsys, tmp_path, "log", "verify", code=1)["damages"]
    assert (damage["first"], damage["last"], damage["reason"]) == (
        2,
        3,
        "entries are missing from the ledger",
    )


def test_devices_say_where_they_stand_and_who_holds_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents" / "device-1").mkdir(parents=True)
    report = {"epoch": b"epoch--1".hex(), "spooled_seq": 9, "spool_bytes": 512}
    (tmp_path / "agents" / "device-1" / "status.json").write_text(json.dumps(report))
    play(tmp_path / "log", lambda d: d.quotes(1.0, 2.0))
    one, two = gear(capsys, tmp_path, "log", "devices")
    assert (one["device"], one["seq"], one["ordinal"], one["spooled_seq"]) == ("device-1", 2, 1, 9)
    assert (one["unacked"], one["spool_bytes"], one["holds"]) == (7, 512, [])
    assert one["last_contact"] is not None
    assert (two["device"], two["seq"], two["last_contact"], two["unacked"]) == ("device-2", 0, None, None)
    assert two["holds"] == ["quotes"]
    assert (one["event_time"], two["event_time"]) == ("1970-01-01T00:00:00.000020Z", None)
    (tmp_path / "agents" / "device-2").mkdir()
    marks = {"quotes": 5_000_000, "_late": -(1 << 63)}
    (tmp_path / "agents" / "device-2" / "status.json").write_text(json.dumps({"watermarks": marks}))
    assert gear(capsys, tmp_path, "log", "devices")[1]["event_time"] == "1970-01-01T00:00:05Z"
    of_one_of_several = tmp_path / "agents" / "device-1" / one["flow"]
    of_one_of_several.mkdir()
    (of_one_of_several / "status.json").write_text(json.dumps(report | {"spooled_seq": 5}))
    assert gear(capsys, tmp_path, "log", "devices")[0]["unacked"] == 3
    play_more(tmp_path / "log")
    one, two = gear(capsys, tmp_path, "log", "devices")
    assert (one["behind_s"], two["behind_s"]) == (0.0, 1e-05)


def test_acked_batch_is_resubmitted_once_as_soon_as_its_schema_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unannounced(device: TestDevice) -> bytes:
        rows = ColumnBatch([["late letter"], ["late"], ["r"], [b""]], [5], [device.name], [7])
        return device.rows("_late", LETTERS.schema, rows)

    async def insist() -> None:
        config = make_config(tmp_path, ("device-1", "device-2"), nack_interval_ms=1)
        async with running(config) as world, asyncio.timeout(PATIENCE_S):
            device = TestDevice()
            device.schemas()
            unannounced(device)
            await world.net.insist(device)

    asyncio.run(insist())
    (held,) = gear(capsys, tmp_path, "quarantine", "ls")
    assert (held["state"], held["count"], held["number"]) == ("acked", 1, 1)
    shown = gear(capsys, tmp_path, "quarantine", "show", "1")
    assert shown["header"]["channel"] == "_late"
    assert bytes.fromhex(shown["payload"])
    assert "whose schema no device has announced" in gear(
        capsys, tmp_path, "quarantine", "resubmit", "1", code=1
    )

    async def announce() -> None:
        async with running(make_config(tmp_path, ("device-1", "device-2"))) as world:
            device = TestDevice("device-2", b"epoch--3")
            world.net.deliver(device.topic, device.schemas({"_late": LETTERS.schema}))
            await world.net.acked(device)

    asyncio.run(announce())
    with shared_log(tmp_path):
        refused = gear(capsys, tmp_path, "quarantine", "resubmit", "1", code=1)
        assert "gear-ingest is running on it" in refused
    done = gear(capsys, tmp_path, "quarantine", "resubmit", "1")
    reader = LogReader(tmp_path)
    assert (done["channel"], done["position"], done["rows"]) == ("_late", reader.positions(FLOW)["0"], 1)
    entry = reader.entries(FLOW, "0", done["position"] - 1, done["position"])[0]
    assert (entry.device, entry.epoch, entry.seq) == ("device-1", b"epoch--1", 2)
    assert reader.table(entry).column("step").to_pylist() == ["late letter"]
    assert "was resubmitted before" in gear(capsys, tmp_path, "quarantine", "resubmit", "1", code=1)
    assert "has no batch 2" in gear(capsys, tmp_path, "quarantine", "show", "2", code=2)
    assert reader.counters()["records_resubmitted"] == 1
    assert gear(capsys, tmp_path, "log", "verify")["whole"]
    play_more(tmp_path)
    assert prices(reader) == [9.0]


def test_batch_that_was_not_acked_is_not_resubmitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def deliver(world: Running) -> None:
        world.net.deliver(TestDevice().topic, b"\xff no batch")

    play(tmp_path, lambda d: d.quotes(1.0), after=deliver)
    play_more(tmp_path)
    (held,) = gear(capsys, tmp_path, "quarantine", "ls")
    assert held["state"] == "refused"
    assert gear(capsys, tmp_path, "quarantine", "show", "1")["header"].startswith("cannot be decoded")
    assert "was never acked" in gear(capsys, tmp_path, "quarantine", "resubmit", "1", code=1)


def test_dead_letter_of_a_source_is_resubmitted_and_any_other_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = b'{"symbol":"A\x1b","price":4.5}'.replace(b"\x1b", b"\\u001b")
    written = [
        Letter("quotes", "not_a_record", "event time is in the future", good),
        Letter("drawdown", "not_a_record", "it raised\x1b[2J", good),
        Letter("quotes", "not_a_record", "no row", b"A;4.5"),
        Letter("quotes", "not_a_record", "NaN", b'{"symbol":"A","price":null}'),
        Letter("quotes", "not_a_record", "more", b'{"symbol":"A","price":1.0,"x":1}'),
    ]
    play(tmp_path, lambda d: d.quotes(1.0), lambda d: letters(d, *written))
    listed = gear(capsys, tmp_path, "deadletters", "ls")
    assert [one["step"] for one in listed] == ["quotes", "drawdown", "quotes", "quotes", "quotes"]
    ids = [one["id"] for one in listed]
    assert main(["deadletters", "ls", "--state", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert gear(capsys, tmp_path, "deadletters", "show", ids[1])["raw"] == good.decode()
    sentences = ["only what a source refused", "no raw form of a Quote", "exactly", "no raw form of a Quote"]
    for name, sentence in zip(ids[1:], sentences, strict=True):
        assert sentence in gear(capsys, tmp_path, "deadletters", "resubmit", name, code=1)
    done = gear(capsys, tmp_path, "deadletters", "resubmit", ids[0])
    reader = LogReader(tmp_path)
    table = reader.table(reader.entries(FLOW, "0", done["position"] - 1, done["position"])[0])
    (row,) = table.to_pylist()
    assert (row["symbol"], row["price"], row["_event_time"]) == ("A\x1b", 4.5, 25)
    assert (row["_origin_name"], row["_origin_number"], row["_overtaken"]) == ("device-1", 100, False)
    assert "was resubmitted before" in gear(capsys, tmp_path, "deadletters", "resubmit", ids[0], code=1)
    assert "there is no dead letter" in gear(capsys, tmp_path, "deadletters", "show", "x:0:1:1", code=2)
    assert gear(capsys, tmp_path, "deadletters", "ls")[0]["state"] == "resubmitted"


def test_dead_letter_of_a_step_in_the_cloud_has_an_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused_row = Letter("quotes", "not_a_record", "no row", b"A;4.5")
    play(tmp_path / "log", lambda d: d.quotes(1.0), lambda d: letters(d, refused_row))
    (logged,) = gear(capsys, tmp_path, "deadletters", "ls")
    step, number = logged["step"], gear(capsys, tmp_path, "deadletters", "show", logged["id"])["origin"][1]
    tables = SqliteTables(tmp_path / "tables.sqlite")
    tables.attach("keyed", "identity", has_run=False)
    columns: list[list[Any]] = [
        [step, "drawdown", "drawdown"],
        ["not_a_record", "user_error", "user_error"],
        ["no row", "it raised", "it raised"],
        [b"A;4.5", b"1", b"2"],
    ]
    paths = [b"", b"", b"\x01"]
    rows = ColumnBatch(columns, [25, 40, 40], ["device-1"] * 3, [number, 7, 7], paths)
    tables.write("keyed", 0, {"quotes": 1}, {"_dead_letters": [rows]})
    tables.close()
    listed = gear(capsys, tmp_path, "deadletters", "ls")
    # What a device has sent is in the log and in the tables: it is shown once.
    assert [one["id"] for one in listed] == [logged["id"], "drawdown@device-1:7", "drawdown@device-1:7:01"]
    assert [one["state"] for one in listed] == ["in the log", "in the tables", "in the tables"]
    shown = gear(capsys, tmp_path, "deadletters", "show", "drawdown@device-1:7:01")
    assert (shown["origin"], shown["raw"], shown["reason"]) == (["device-1", 7, "01"], "2", "it raised")
    refused = gear(capsys, tmp_path, "deadletters", "resubmit", "drawdown@device-1:7", code=1)
    assert "refused by step drawdown in the cloud" in refused
    missing = gear(capsys, tmp_path, "deadletters", "show", "drawdown@device-1:8", code=2)
    assert "there is no dead letter drawdown@device-1:8 in the tables" in missing


def test_dead_letters_of_a_split_are_listed_by_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(tmp_path / "log", lambda d: d.quotes(1.0))
    tables = SqliteTables(tmp_path / "tables.sqlite")
    tables.attach("keyed", "identity", has_run=False)
    numbers, times = [9, 100, 10, 2], [5, 1, 9, 7]
    reasons = [f"line {number}" for number in numbers]
    columns: list[list[Any]] = [["drawdown"] * 4, ["user_error"] * 4, reasons, [b""] * 4]
    rows = ColumnBatch(columns, times, ["device-1"] * 4, numbers, [b""] * 4)
    tables.write("keyed", 0, {"quotes": 1}, {"_dead_letters": [rows]})
    tables.close()
    listed = gear(capsys, tmp_path, "deadletters", "ls")
    assert [one["reason"] for one in listed] == ["line 2", "line 9", "line 10", "line 100"]


def test_nothing_is_resubmitted_into_a_flow_that_has_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(make_config(tmp_path)) as world:
            device = TestDevice()
            schemas: dict[str, Schema] = {"quotes": QUOTE.schema, "_dead_letters": LETTERS.schema}
            letter = Letter("quotes", "not_a_record", "r", b'{"symbol":"A","price":4.5}')
            payloads = (device.schemas(schemas), letters(device, letter), device.end())
            world.net.deliver(device.topic, *payloads)
            await world.net.acked(device)

    asyncio.run(run())
    with pytest.raises(Exception, match="flow stocks has ended, and its results are final"):
        resubmit_letter(tmp_path, f"{FLOW}:0:3:0")
