"""The commands against a real gear-control: what one sends, the other takes, and what it answers is shown."""

from __future__ import annotations

import io
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain_client.cli import main
from geartrain_client.rest import door
from tests.control.platform_client import control_process
from tests.waiting import Wait

pytestmark = pytest.mark.slow

STOCKS = "geartrain_examples.stocks.flow:flow"
Capture = pytest.CaptureFixture[str]


FLOW = """
from geartrain import Flow, Record, Table
from geartrain.testing import TestingSource

class Reading(Record):
    sensor: str

flow = Flow("doors")
readings = flow.source("readings", TestingSource(items=[]), out=Reading)
readings.filter(lambda r: r.sensor != "a", name="some").sink("all", Table("doors"))
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a control; the flow `doors_there` is installed where it runs."""
    folder, installed = tmp_path_factory.mktemp("platform"), tmp_path_factory.mktemp("installed")
    (installed / "doors_there.py").write_text(FLOW, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
        with control_process(folder):
            yield folder


@pytest.fixture(autouse=True)
def _here(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(door.STATE, str(state))
    monkeypatch.delenv(door.URL, raising=False)
    monkeypatch.delenv(door.TOKEN_FILE, raising=False)
    monkeypatch.delenv(door.TOKEN, raising=False)


def gear(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    got = main(arguments)
    said = capsys.readouterr()
    assert got == code, said.err
    return said.out, said.err


def test_an_app_goes_from_submit_to_purge(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "s1.toml"
    gear(capsys, "device", "add", "s1", "--label", "kind=stock", "--output", str(file))
    assert tomllib.loads(file.read_text())["device"] == "s1"
    given = ["--devices", "kind=stock", "--set", "quotes.path=p.csv", "--device-set", "s1:quotes.select=IBM"]
    _, err = gear(capsys, "submit", STOCKS, *given, "--no-wait")
    assert err.startswith("submitted stocks.1, revision ")
    assert err.endswith(", for 1 device: s1\n")
    [one] = json.loads(gear(capsys, "list", "--json")[0])
    assert (one["name"], one["instance"], one["devices"]["assigned"]) == ("stocks", "stocks.1", 1)
    assert "stocks.1" in gear(capsys, "list")[0]
    out = gear(capsys, "info", "stocks")[0]
    assert "devices: applied by 0 of 1, 0 in contact\n" in out
    assert "waits for: s1 is offline\n" in out
    assert "stocks" in gear(capsys, "submit", STOCKS, "--set", "quotes.path=p.csv", code=2)[1]
    assert gear(capsys, "logs", "stocks")[0] == ""
    gear(capsys, "table", "stocks")
    assert gear(capsys, "table", "stocks", "drawdown", code=2)[1].count("\n") == 1
    assert gear(capsys, "kill", "stocks", "--now")[0] == "stocks.1 has ended; its tables stay\n"
    assert "has ended already" in gear(capsys, "kill", "stocks", code=2)[1]
    assert gear(capsys, "kill", "stocks", "--purge")[0] == "stocks.1 has ended; its tables are gone\n"
    assert "stocks" in gear(capsys, "info", "stocks", code=2)[1]
    gear(capsys, "submit", STOCKS, *given, "--no-wait")
    out = gear(capsys, "kill", "stocks", "--now", "--purge")[0]
    assert out == "stocks.2 has ended; its tables are gone\n"
    assert "stocks" in gear(capsys, "info", "stocks", code=2)[1]


def test_a_selector_that_no_device_matches_is_refused_unless_it_may_wait(capsys: Capture) -> None:
    here = ("submit", STOCKS, "--name", "later", "--set", "quotes.path=p.csv", "--no-wait")
    for selector, mend in (
        ("kind=ship,site!=north", "label one by gear device label DEVICE kind=ship"),
        ("site!=north,kind!=stock,kind!=truck", "label one by gear device label DEVICE KEY=VALUE"),
        ("s99", "add it by gear device add s99"),
    ):
        out, err = gear(capsys, *here, "--devices", selector, code=2)
        assert (out, err.count("\n")) == ("", 1)
        assert f"no device matches {selector}: {mend}" in err
        assert "--allow-none" in err
    assert not any(one["name"] == "later" for one in json.loads(gear(capsys, "list", "--json")[0]))
    own = ("--device-set", "s98:quotes.select=IBM", "--allow-none")
    err = gear(capsys, *here, "--devices", "kind=ship", *own)[1]
    assert "for no device yet: none fits its selector. Add one by gear device add, or label one\n" in err
    assert "later.1: the settings of --device-set for s98 hold once such a device gets the app\n" in err
    assert (
        "waits for: no device matches kind=ship: add one, or label one\n" in gear(capsys, "info", "later")[0]
    )
    gear(capsys, "device", "add", "boat", "--label", "kind=ship")
    assert "devices: applied by 0 of 1" in gear(capsys, "info", "later")[0]
    gear(capsys, "device", "retire", "boat")
    gear(capsys, "kill", "later", "--now", "--purge")
    gear(capsys, *here, "--devices", "kind=ship", code=2)  # one that was retired is none


def test_what_control_refuses_is_its_sentence(capsys: Capture) -> None:
    for arguments in (
        ["submit", STOCKS, "--name", "9", "--set", "quotes.path=p.csv"],
        ["submit", STOCKS, "--devices", "=", "--set", "quotes.path=p.csv"],
        ["submit", "no_such_flow:flow", "--unchecked", "--name", "none"],
        ["info", "none"],
        ["device", "add", "a/b"],
        ["device", "show", "none"],
        ["replay", "none"],
    ):
        out, err = gear(capsys, *arguments, code=2)
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("gear: ")


def test_devices_are_labelled_listed_and_retired(capsys: Capture) -> None:
    for name in ("t1", "t2", "t3"):
        gear(capsys, "device", "add", name, "--label", "kind=truck")
    gear(capsys, "device", "label", "t2", "site=north", "kind-")
    found = json.loads(gear(capsys, "device", "ls", "--label", "kind=truck", "--json")[0])
    assert [one["name"] for one in found] == ["t1", "t3"]
    assert "labels: site=north\n" in gear(capsys, "device", "show", "t2")[0]
    out = gear(capsys, "device", "ls")[0]
    assert "t1" in out
    assert "offline" in out
    gear(capsys, "device", "retire", "t3")
    assert json.loads(gear(capsys, "device", "show", "t3", "--json")[0])["retired"] is True


def test_status_is_answered(capsys: Capture, state: Path) -> None:
    out = gear(capsys, "status")[0]
    assert out.startswith("platform 0.2.0 at http://127.0.0.1:")


def test_other_code_than_what_is_installed_there_is_refused(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two contents within one tick of the disk's clock
    mine = tmp_path / "doors_there.py"
    mine.write_text(FLOW.replace('!= "a"', '!= "b"'), encoding="utf-8")
    try:
        _, err = gear(capsys, "submit", "doors_there:flow", "--no-wait", code=2)
        assert "doors_there.py" in err
        assert err.count("\n") == 1
        mine.write_text(FLOW, encoding="utf-8")
        del sys.modules["doors_there"]
        assert "submitted doors.1" in gear(capsys, "submit", "doors_there:flow", "--no-wait")[1]
    finally:
        sys.modules.pop("doors_there", None)
    gear(capsys, "submit", "doors_there:flow", "--unchecked", "--name", "unseen", "--no-wait")


def test_tokens_are_made_used_listed_and_revoked_and_all_of_it_is_noted(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = gear(
        capsys, "token", "add", "alice", "--role", "operator", "--app", "nowhere", "--expires", "2h"
    )
    assert "token alice: operator of app nowhere, until " in err
    file = tmp_path / "bob.token"
    _, err = gear(capsys, "token", "add", "bob", "--role", "viewer", "--output", str(file))
    assert "name the file with GEARTRAIN_TOKEN_FILE" in err
    assert (file.stat().st_mode & 0o777, file.read_text()[:5]) == (0o600, "gear_")
    assert (
        "is there already"
        in gear(capsys, "token", "add", "c", "--role", "viewer", "--output", str(file), code=2)[1]
    )
    shown = json.loads(gear(capsys, "token", "ls", "--json")[0])
    assert {(one["name"], one["role"], one["app"]) for one in shown} >= {
        ("alice", "operator", "nowhere"),
        ("bob", "viewer", ""),
    }
    assert "bob" in gear(capsys, "token", "ls")[0]
    with monkeypatch.context() as patch:
        patch.setenv(door.TOKEN_FILE, str(file))
        gear(capsys, "list")
        assert (
            "token bob has the role viewer: ask an admin" in gear(capsys, "device", "retire", "s1", code=2)[1]
        )
        assert "GET /audit needs the role admin" in gear(capsys, "audit", code=2)[1]
        patch.setenv(door.TOKEN, out.strip())
        assert json.loads(gear(capsys, "list", "--json")[0]) == []
        assert "token alice is for app nowhere" in gear(capsys, "device", "ls", code=2)[1]
        patch.setenv(door.TOKEN, "gear_wrong")
        assert "does not take this token" in gear(capsys, "list", code=2)[1]
    assert gear(capsys, "token", "revoke", "alice")[0] == "token alice is good for nothing any more\n"
    assert "there is no token 'alice'" in gear(capsys, "token", "revoke", "alice", code=2)[1]
    [newest, _, *_] = json.loads(gear(capsys, "audit", "--since", "1h", "--json")[0])
    assert (newest["path"], newest["status"], newest["token"]) == (
        "/api/v1/tokens/alice/revoke",
        404,
        "local",
    )
    table = gear(capsys, "audit", "--limit", "5")[0]
    assert "403 forbidden" in table
    assert "there may be older ones" in table
    assert "write a length of time" in gear(capsys, "audit", "--since", "yesterday", code=2)[1]
    assert "nobody has asked" in gear(capsys, "audit", "--since", "2199-01-01")[0]


def test_secrets_go_in_and_never_come_out(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    value, second = "planted-8Km2-value", "planted-4Bn7-second"
    file = tmp_path / "password.txt"
    file.write_text(value + "\n")
    gear(capsys, "device", "add", "here", "--label", "kind=own", "--local")
    gear(capsys, "submit", STOCKS, "--name", "safe", "--devices", "kind=own", "--no-wait")
    out = gear(capsys, "secret", "set", "safe", "db", "--file", str(file))[0]
    assert "secret db of app safe has version " in out
    assert "it goes to 1 device: gear secret ls safe" in out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(second.encode())))
    made = json.loads(gear(capsys, "secret", "set", "safe", "db", "--json")[0])
    assert set(made) == {"app", "name", "version", "set_us", "wanted", "applied", "devices"}
    place = state / "agents" / "here" / "secrets" / "safe" / "db"
    wait = Wait("a secret to be applied")
    while "applied by 1 of 1 device" not in (out := gear(capsys, "secret", "ls", "safe")[0]):
        wait.check()
        time.sleep(0.1)
    assert (place.read_text(), place.stat().st_mode & 0o777) == (second, 0o600)
    assert "no device runs later now" in gear(capsys, "secret", "set", "later", "k", "--file", str(file))[0]
    assert [one["app"] for one in json.loads(gear(capsys, "secret", "ls", "--json")[0])] == ["later", "safe"]
    said = [out, json.dumps(made), *gear(capsys, "audit"), *gear(capsys, "info", "safe")]
    file.unlink()
    holds = [one for one in state.rglob("*") if one.is_file() and b"planted-" in one.read_bytes()]
    assert holds == [place]
    assert "planted-" not in "".join(said)
    assert gear(capsys, "secret", "rm", "safe", "db")[0].startswith("secret db of app safe is removed")
    assert "app 'safe' has no secret 'db'" in gear(capsys, "secret", "rm", "safe", "db", code=2)[1]
    wait = Wait("a removed secret to be gone")
    while place.exists():
        wait.check()
        time.sleep(0.1)
    gear(capsys, "secret", "rm", "later", "k")
    assert "there is no secret" in gear(capsys, "secret", "ls")[0]
    assert "app safe has no secret" in gear(capsys, "secret", "ls", "safe")[0]


def test_what_is_no_secret_is_refused(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "value"
    for content, said in ((b"", "must hold the value"), (b"x" * 4_097, "must hold"), (b"\xff", "no text")):
        file.write_bytes(content)
        assert said in gear(capsys, "secret", "set", "safe", "db", "--file", str(file), code=2)[1]
    file.write_text("secret:other")
    assert "names a secret" in gear(capsys, "secret", "set", "safe", "db", "--file", str(file), code=2)[1]
    file.write_text("good")
    for app, name in (("1safe", "db"), ("safe", ".db"), ("safe", "../db")):
        assert gear(capsys, "secret", "set", app, name, "--file", str(file), code=2)[1].count("\n") == 1
    missing = str(tmp_path / "missing")
    assert "cannot be read" in gear(capsys, "secret", "set", "safe", "db", "--file", missing, code=2)[1]
