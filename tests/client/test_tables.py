"""`gear table`: a table for people, as JSON and CSV, and as it grows."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from geartrain_client.cli import tables
from tests.client.fake_platform import FakePlatform
from tests.client.talking import HOSTILE, SHOWN, Capture, add, gear


def sleep_by(stand_in: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `gear table` call this instead of sleeping, and nobody else: threads of other tests sleep, too."""
    monkeypatch.setattr(tables, "time", SimpleNamespace(sleep=stand_in))


def test_table_lists_the_tables_and_shows_one(
    highs: list[list[Any]], platform: FakePlatform, capsys: Capture
) -> None:
    out, _ = gear(capsys, "table", "heat")
    assert "highs" in out
    assert "sensor, celsius, note" in out
    out, err = gear(capsys, "table", "heat", "highs", "--limit", "4")
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert [line[0] for line in lines if line[0].startswith("s")] == ["sensor", "s0", "s1", "s2", "s3"]
    assert err == "the first 4 rows: --limit N shows more, --csv all of them\n"
    assert gear(capsys, "table", "heat", "highs", "--limit", "7")[1] == ""
    assert len(json.loads(gear(capsys, "table", "heat", "highs", "--limit", "5", "--json")[0])) == 5
    out, err = gear(capsys, "table", "heat", "highs")
    assert ("s6" in out, err) == (True, "")
    assert json.loads(gear(capsys, "table", "heat", "highs", "--json")[0]) == [
        {"sensor": s, "celsius": c, "note": n} for s, c, n in highs
    ]
    assert "there is no table 'lows'" in gear(capsys, "table", "heat", "lows", code=2)[1]


def test_csv_has_all_rows_and_goes_into_a_file_as_it_is(highs: list[list[Any]], capsys: Capture) -> None:
    highs[1][2] = 'a "quote", a\nbreak'
    highs[2][2] = {"x": [True]}
    out = gear(capsys, "table", "heat", "--csv")[0]
    assert list(csv.reader(io.StringIO(out))) == [
        ["sensor", "celsius", "note"],
        ["s0", "0.0", ""],
        ["s1", "0.5", 'a "quote", a\nbreak'],
        ["s2", "1.0", '{"x": [true]}'],
        *[[f"s{number}", str(number / 2), ""] for number in range(3, 7)],
    ]


def test_a_long_value_is_cut_for_people_alone(highs: list[list[Any]], capsys: Capture) -> None:
    highs[0][2] = "x" * 10_000
    out = gear(capsys, "table", "heat", "highs")[0]
    assert (out.count("x"), out.count("…")) == (199, 1)
    assert gear(capsys, "table", "heat", "highs", "--csv")[0].count("x") == 10_000
    assert gear(capsys, "table", "heat", "highs", "--json")[0].count("x") == 10_000


def test_rows_of_others_steer_no_terminal(
    highs: list[list[Any]], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    highs[0][0], highs[1][0] = HOSTILE, "\ud800"
    assert SHOWN in gear(capsys, "table", "heat", "highs")[0]
    assert "\\ud800" in gear(capsys, "table", "heat", "highs", "--json")[0]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = gear(capsys, "table", "heat", "highs", "--csv")[0]
    assert "a\\x1b[2J\nb\\u202e[bold]" in out
    assert "\\ud800" in out


def test_follow_shows_each_row_that_appears_or_changes(
    highs: list[list[Any]], platform: FakePlatform, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FOLLOW_PAGES", 2)
    polls = iter(range(3))

    def change(seconds: float) -> None:
        match next(polls):
            case 0:
                highs.append(["s7", 3.5, None])
            case 1:
                highs[6][1] = 9.0
            case _:
                raise KeyboardInterrupt

    sleep_by(change, monkeypatch)
    out, _ = gear(capsys, "table", "heat", "highs", "--follow", code=130)
    assert out.splitlines() == [
        "sensor,celsius,note",
        *[f"s{number},{number / 2}," for number in range(3, 7)],  # the last two pages
        "s7,3.5,",
        "s6,9.0,",
    ]


def test_follow_waits_for_a_table_that_is_not_there_yet(
    platform: FakePlatform, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(platform)
    polls = iter(range(3))

    def change(seconds: float) -> None:
        match next(polls):
            case 0:
                platform.tables["lows"] = {"columns": ["sensor"], "rows": [["a"]]}
            case _:
                raise KeyboardInterrupt

    sleep_by(change, monkeypatch)
    out, err = gear(capsys, "table", "heat", "lows", "--follow", code=130)
    assert (out, err) == ("sensor\na\n", "heat has no such table yet: gear waits for it\n")
    add(platform, state="ended")
    assert "there is no table 'highs'" in gear(capsys, "table", "heat", "highs", "--follow", code=2)[1]
    assert "there is no app 'cold'" in gear(capsys, "table", "cold", "a", "--follow", code=2)[1]


def test_follow_as_json_is_a_line_for_each_row(
    highs: list[list[Any]], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    sleep_by(stop, monkeypatch)
    out, _ = gear(capsys, "table", "heat", "highs", "--follow", "--json", code=130)
    assert [json.loads(line)["sensor"] for line in out.splitlines()] == [f"s{n}" for n in range(7)]


def test_several_tables_are_to_be_told_apart(
    highs: list[list[Any]], platform: FakePlatform, capsys: Capture
) -> None:
    platform.tables["lows"] = {"columns": ["sensor"], "rows": []}
    _, err = gear(capsys, "table", "heat", "--csv", code=2)
    assert err == "gear: name the table that is meant; there are: highs, late, lows\n"
    assert gear(capsys, "table", "heat", "--csv", "--json", code=2)[1].count("\n") == 1
