"""`gear backfill`: it says the way before anything is sent, and sends what the platform lacks."""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

from geartrain_client.cli import backfilling
from tests.client.fake_platform import FakePlatform
from tests.client.talking import Capture, add, gear

ARGUMENTS = ["backfill", "heat", "--source", "readings", "--device", "d1"]


def test_it_says_the_way_and_sends_what_is_not_there(
    platform: FakePlatform, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfilling, "PIECE_BYTES", 10)
    add(platform)
    content = b"time,sensor,celsius\n2026-01-01T00:00:00Z,a,1.5\n"
    file = tmp_path / "old.csv"
    file.write_bytes(content)
    name = f"{hashlib.sha256(content).hexdigest()}.csv"
    platform.histories[name] = content[:20]
    given = [*ARGUMENTS, "--file", str(file)]
    out, err = gear(capsys, *given, "--dry-run")
    assert out == "the first lines of each file fit; nothing was changed\n"
    assert platform.asked[-1][3]["heads"] == [b64encode(content).decode()]
    assert "set" not in platform.asked[-1][3]
    assert "comes before the live records of d1, which has never had app heat" in err
    assert platform.histories[name] == content[:20]
    out, _ = gear(capsys, *given)
    assert platform.histories[name] == content
    begins = [path.partition("begin=")[2] for method, path, _, _ in platform.asked if method == "PUT"]
    assert begins == [f"{begin}&size={len(content)}" for begin in (20, 30, 40)]
    assert "d1 begins with this history once it gets app heat" in out
    assert platform.asked[-1][3]["files"] == [name]
    platform.told = {"is_new": False}
    out, _ = gear(capsys, *given)
    assert out == "heat has this history already; nothing was added\n"
    assert json.loads(gear(capsys, *given, "--json")[0])["is_new"] is False


def test_a_run_apart_is_waited_for_and_its_dead_letters_are_said(
    platform: FakePlatform, capsys: Capture, tmp_path: Path
) -> None:
    held = add(platform)
    ended = {"name": "heat_history_1", "instance": "heat_history_1.1", "state": "ended"}
    platform.tables["dead_letters"] = {"columns": [], "rows": [[], []]}
    platform.apps["heat_history_1"] = held | ended
    file = tmp_path / "old.jsonl"
    file.write_bytes(b'{"time": 1}\n')
    platform.told = {"way": "apart", "app": "heat_history_1", "reason": "device d1 has app heat already"}
    out, err = gear(capsys, *ARGUMENTS, "--file", str(file))
    assert "goes into a run of its own, app heat_history_1" in err
    assert err.rstrip().endswith("stay as they are: device d1 has app heat already")
    assert "2 rows were no records: gear table heat_history_1 dead_letters" in out
    platform.tables["dead_letters"] = {"columns": [], "rows": [[]]}
    out, _ = gear(capsys, *ARGUMENTS, "--file", str(file))
    assert "; 1 row was no record: gear table heat_history_1 dead_letters" in out
    assert "goes into the tables" in gear(capsys, *ARGUMENTS, "--file", str(file), "--no-wait")[0]


def test_a_refusal_names_the_file_as_the_user_does(
    platform: FakePlatform, capsys: Capture, tmp_path: Path
) -> None:
    add(platform)
    file = tmp_path / "old.csv"
    file.write_bytes(b"time,sensor,celcius\n")
    platform.told = {"refused": f"file {file} has no column 'celsius'; its columns: 'time', 'celcius'"}
    _, err = gear(capsys, *ARGUMENTS, "--file", str(file), code=2)
    assert f"file {file} has no column 'celsius'; its columns: 'time', 'celcius'" in err
    assert platform.asked[-1][3]["called"] == [str(file)]


def test_a_dry_run_sends_whole_first_lines_within_a_bound(
    platform: FakePlatform, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(platform)
    monkeypatch.setattr(backfilling, "HEAD_BYTES", 22)
    files = [tmp_path / name for name in ("a.csv", "b.csv.gz", "c.csv", "d.parquet", "e.csv")]
    lines = b"time,sensor\n1,a\n2,b\n3,c\n4,d\n"
    files[0].write_bytes(lines)
    files[1].write_bytes(gzip.compress(lines))
    files[2].write_bytes(b"x" * 31)
    files[3].write_bytes(b"PAR1")
    files[4].write_bytes(b"time,caf\xff\n")
    given = [part for file in files for part in ("--file", str(file))]
    out, _ = gear(capsys, *ARGUMENTS, *given, "--dry-run")
    head = b"time,sensor\n1,a\n2,b\n"
    heads = [b64decode(one) for one in platform.asked[-1][3]["heads"]]
    assert heads == [head, head, b"", b"", b"time,caf\xff\n"]
    assert out == f"nothing was changed; not looked into: {files[2]}, {files[3]}\n"
    files[1].write_bytes(b"no gzip at all")
    assert f"--file {files[1]} cannot be read" in gear(capsys, *ARGUMENTS, *given, "--dry-run", code=2)[1]
    platform.told = {"refused": f"file {files[0]} has no column 'celsius'"}
    _, err = gear(capsys, *ARGUMENTS, "--file", str(files[0]), "--dry-run", code=2)
    assert f"file {files[0]} has no column" in err
    assert platform.asked[-1][3]["called"] == [str(files[0])]
    platform.told = {"is_new": False}
    assert "nothing would be added" in gear(capsys, *ARGUMENTS, "--file", str(files[0]), "--dry-run")[0]


def test_options_of_the_files_go_along_as_they_are_written(
    platform: FakePlatform, capsys: Capture, tmp_path: Path
) -> None:
    add(platform)
    file = tmp_path / "app.log-20240131.gz"
    file.write_bytes(gzip.compress(b"1 a 2\n"))
    given = [*ARGUMENTS, "--file", str(file), "--set", "pattern=(?P<a>.+)=(?P<b>.+)"]
    gear(capsys, *given, "--set", "encoding=cp1252")
    asked = platform.asked[-1][3]
    assert asked["set"] == {"pattern": "(?P<a>.+)=(?P<b>.+)", "encoding": "cp1252"}
    assert asked["files"] == [f"{hashlib.sha256(file.read_bytes()).hexdigest()}.log.gz"]
    for wrong, said in (
        ("delimiter", "--set delimiter: write OPTION=VALUE, such as decimal=,"),
        ("readings.delimiter=;", "--set readings.delimiter=;: write OPTION=VALUE"),
        ("pattern=x", "--set pattern=x: pattern is set twice; leave one out"),
    ):
        assert said in " ".join(gear(capsys, *given, "--set", wrong, code=2)[1].split())


def test_files_that_cannot_be_are_refused_before_anything_is_asked(
    platform: FakePlatform, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "notes.dat").write_text("x")
    for name, said in (
        ("empty.csv", "is empty"),
        ("notes.dat", "call it .csv"),
        ("none.csv", "cannot be read"),
    ):
        assert said in gear(capsys, *ARGUMENTS, "--file", str(tmp_path / name), code=2)[1]
    assert platform.asked == []
