"""The commands of `gear` as a person meets them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

import geartrain
from geartrain_client.cli import main
from geartrain_client.cli.app import app
from geartrain_client.errors import StoppedError
from geartrain_client.terminal.settings import parse_set
from geartrain_cloud.broker import choice
from geartrain_cloud.cli import doctor
from geartrain_cloud.cli.hops import Hops
from geartrain_cloud.cli.hops_view import one_line
from geartrain_cloud.errors import BrokerError
from geartrain_cloud.sinks.tables import rows
from tests.waiting import WAIT_S

FLOW = "geartrain_examples.stocks.flow:flow"

ROOT_COMMAND = get_command(app)
"""Made once: it takes as long as `gear` takes to start."""

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(
        "symbol,date,price\nA,2020-01-02,8\nA,2020-01-01,10\nB,2020-01-01,-1\nA,yesterday,3\n",
        encoding="utf-8",
    )
    return path


def gear(arguments: Sequence[str], capsys: Capture) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert "\x1b[" not in said.out + said.err, "colours belong on a terminal"
    return code, said.out, said.err


def commands(path: tuple[str, ...] = (), command: Any = None) -> Iterator[tuple[str, ...]]:
    """Every command of `gear` but the demos, which packages bring with them."""
    command = ROOT_COMMAND if command is None else command
    if not isinstance(command, TyperGroup):
        yield path
        return
    for name in command.list_commands(Context(command)):
        if name != "demo":
            yield from commands((*path, name), command.get_command(Context(command), name))


def test_help_of_every_command_has_examples_that_can_be_read(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain_client.cli.app.app", ROOT_COMMAND)  # which each call would make anew
    known = list(commands())
    assert {("run",), ("device", "ls"), ("deadletters", "show")} <= set(known)
    for path in [*known, ("demo", "stocks")]:
        code, out, _ = gear([*path, "--help"], capsys)
        assert code == 0
        examples = re.findall(r"^    (gear .*)$", out.partition("Example")[2], re.MULTILINE)
        assert examples, path
        for example in examples:
            words = shlex.split(example.partition("   (")[0])[1:]
            assert tuple(words[: len(path)]) == path
            command: Any = ROOT_COMMAND
            for name in path:
                command = command.get_command(Context(command), name)
            command.make_context("gear", words[len(path) :])  # refuses an option that there is not


@pytest.mark.parametrize("arguments", [[], ["log"], ["device"]])
def test_a_group_alone_shows_its_help(arguments: list[str], capsys: Capture) -> None:
    code, out, err = gear(arguments, capsys)
    assert code == 2
    assert "Commands:" in out + err


def test_version(capsys: Capture) -> None:
    assert gear(["--version"], capsys) == (0, "gear 0.2.0\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["dance"], "gear: there is no command 'dance': the commands are new, plan, run, doctor, "),
        (["log", "verifi"], "no command 'verifi' (did you mean 'verify'?): the commands of log are ls"),
        (["log", "dance"], "there is no command 'dance': the commands of log are ls, show, verify, "),
        (
            ["run"],
            "run: the argument 'MODULE:FLOW|FOLDER' is missing (The flow, such as my_flows",
        ),
        (["run", FLOW, "--for"], "option '--for' requires an argument"),
        (
            ["run", FLOW, "--dance"],
            "run: there is no option --dance: the options of run are --set, ",
        ),
        (
            ["log", "show", "a/b", "--limit", "x"],
            "log show: --limit must be a valid integer: see gear",
        ),
        (
            ["demo", "stocks", "--dance"],
            "there is no option --dance: the options of demo stocks are --",
        ),
        (
            ["demo", "stocks", "--devices", "0"],
            "demo stocks: --devices must be greater than or equal to 1",
        ),
        (["demo", "stocks", "--cut", "middle"], "flow stocks has no step 'middle'"),
        (["demo", "stocks", "--period", "week"], "'week' is not one of"),
        (["demo", "stocks", "--speed", "fast"], "--speed fast: write max, or how many event seconds"),
        (["demo", "stocks", "--speed", "inf"], "--speed inf: write max"),
        (["demo", "stocks", "--speed", "0"], "--speed 0: write max"),
        (
            ["demo", "stocks", "--input", "nowhere.csv"],
            "file nowhere.csv cannot be read: there is no such file",
        ),
        (["plan", "stocks"], "flow 'stocks': write module:name"),
        (["plan", "./nowhere"], "folder ./nowhere: there is no such folder: give MODULE:FLOW, or the folder"),
        (["token", "add", "ann", "--role", "boss"], "token add: --role 'boss' is not one of 'viewer', "),
        (["plan", "no_such_module:flow"], "there is no module 'no_such_module'"),
        (["plan", FLOW, "--cut", "dance"], "flow stocks has no step 'dance'; its steps: quotes, "),
        (["plan", FLOW, "--set", "period=year"], "--set period=year: write STEP.OPTION=VALUE"),
        (["plan", FLOW, "--set", "drawdown.peroid=year"], "there is no option 'peroid'"),
        (["run", FLOW, "--set", "drawdown.period=week"], "drawdown.period = 'week'"),
        (["run", FLOW], "source quotes has no file"),
        (["run", FLOW, "--set", "quotes.path=nowhere.csv"], "file nowhere.csv cannot be read"),
    ],
)
def test_wrong_use_is_a_sentence_and_2(
    arguments: list[str], sentence: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = ["--state", str(tmp_path / "state")] if arguments[:2] == ["demo", "stocks"] else []
    code, out, err = gear([*arguments, *state], capsys)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1, "one sentence"


@pytest.mark.parametrize(
    ("text", "columns"), [("symbol,date\n", "price"), ("date,price\nx,1\n", "symbol"), ("", "first line")]
)
def test_input_without_its_columns_is_refused_before_anything_starts(
    tmp_path: Path, capsys: Capture, text: str, columns: str
) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    code, _, err = gear(["demo", "stocks", "--input", str(path), "--state", str(tmp_path / "state")], capsys)
    assert code == 2
    assert str(path) in err
    assert columns in err
    assert not (tmp_path / "state" / "logs").exists()


def test_refused_start_leaves_no_new_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert gear(["demo", "stocks", "--input", "nowhere.csv"], capsys)[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_input_without_prices_is_refused(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("symbol,date,price\n", encoding="utf-8")
    code, _, err = gear(["demo", "stocks", "--input", str(path), "--state", str(tmp_path / "state")], capsys)
    assert (code, "has no price in it" in err) == (2, True)


def test_missing_broker_fails_with_1(
    tmp_path: Path, prices: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_mosquitto", lambda: None)
    wanted = ["--broker", "mosquitto", "--state", str(tmp_path / "state"), "--input", str(prices)]
    code, _, err = gear(["demo", "stocks", *wanted], capsys)
    assert code == 1
    assert err.splitlines()[-1].startswith("gear: mosquitto is not installed: ")


def test_run_writes_tables_and_json_and_says_what_was_refused(
    tmp_path: Path, prices: Path, capsys: Capture
) -> None:
    output = tmp_path / "out"
    code, out, err = gear(["run", FLOW, "--set", f"quotes.path={prices}", "--output", str(output)], capsys)
    assert code == 0
    assert out.startswith("read 2 records; late 0; dead letters 2\n")
    assert "dead letters of quotes: 2, the first of them:\n  prices.csv, line 4: the price -1.0 is" in out
    assert "\n  prices.csv, line 5: column date: 'yesterday' is not" in out
    assert "drawdown.json" in err
    assert json.loads((output / "drawdown.json").read_text(encoding="utf-8"))[0]["drawdown"] == 2.0
    assert sorted(path.name for path in output.iterdir()) == [
        "dead_letters.json",
        "drawdown.json",
        "drawdown_all.json",
        "late.json",
        "prices.json",
        "tables.sqlite",
    ]
    assert len(rows(output / "tables.sqlite", "prices")) == 2


def test_run_again_replaces_the_former_results_and_a_failed_one_leaves_them(
    tmp_path: Path, prices: Path, capsys: Capture
) -> None:
    command = ["run", FLOW, "--set", f"quotes.path={prices}", "--output", str(tmp_path / "out"), "--json"]
    first = gear(command, capsys)
    before = (tmp_path / "out" / "drawdown.json").read_bytes()
    assert gear(command, capsys) == first
    assert (tmp_path / "out" / "drawdown.json").read_bytes() == before
    prices.unlink()
    assert gear(command, capsys)[0] == 2
    assert (tmp_path / "out" / "drawdown.json").read_bytes() == before
    assert json.loads(first[1])["rows"]["drawdown"] == 1


def test_run_finds_a_flow_in_the_working_directory(tmp_path: Path) -> None:
    code = """
        from geartrain import Flow, Table
        from geartrain.testing import TestingSource
        flow = Flow("numbers")
        flow.source("ones", TestingSource(items=[(1, 1)]), out=int).sink("out", Table("ones"))
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(code), encoding="utf-8")
    command = [sys.executable, "-m", "geartrain_client.cli", "run", "mine:flow", "--json"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"]["ones"] == 1


def test_plan_says_where_each_step_runs_and_why(capsys: Capture) -> None:
    code, out, _ = gear(["plan", FLOW, "--cut", "cloud", "--json"], capsys)
    plan = json.loads(out)
    assert code == 0
    tiers = {step["id"]: step["tier"] for step in plan["steps"]}
    assert {name for name, tier in tiers.items() if tier == "edge"} == {"quotes"}
    assert [channel["id"] for channel in plan["channels"]] == ["quotes", "_dead_letters", "_late"]
    assert {"name": "price", "type": "float64"} in plan["channels"][0]["fields"]

    code, out, _ = gear(["plan", FLOW], capsys)
    assert code == 0
    assert "Flow stocks" in out
    assert "rule 1: a table is a store of the cloud" in out
    assert "recovered_time: datetime | None" in out


def test_doctor_finds_what_is_there(capsys: Capture, tmp_path: Path) -> None:
    code, out, _ = gear(["doctor", "--json", "--folder", str(tmp_path)], capsys)
    checks = {check["name"]: check for check in json.loads(out)}
    names = "python packages bytecode java broker ports state temp disk fsync"
    assert " ".join(checks) == names
    assert code == 0, checks
    assert "ms in the middle" in checks["fsync"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_is_missing_and_ends_with_1(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LIBRARIES", ("pyspark", "no-such-library"))
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 62)
    code, out, _ = gear(["doctor", "--folder", str(tmp_path)], capsys)
    assert code == 1
    assert "MISSING   packages   not installed: no-such-library; run pip install for them" in out
    assert "MISSING   disk       only " in out


def test_doctor_says_where_each_process_compiles_what_it_imports(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    for is_off, said in ((True, "PYTHONDONTWRITEBYTECODE is set: unset it"), (False, "next start writes it")):
        monkeypatch.setattr(sys, "dont_write_bytecode", is_off)
        code, out, _ = gear(["doctor", "--json", "--folder", str(tmp_path)], capsys)
        [found] = [check for check in json.loads(out) if check["name"] == "bytecode"]
        assert (code, found["ok"]) == (0, True), "nothing fails by it"
        assert said in found["found"]
        assert f"none for {Path(geartrain.__file__).parent}; " in found["found"]
    monkeypatch.setattr(doctor, "cache_from_source", str)
    assert "find compiled what they import" in gear(["doctor", "--folder", str(tmp_path)], capsys)[1]


def test_settings_are_split_at_the_first_signs() -> None:
    assert parse_set(["a.b=c.d=e", "a.c=", "b.x=1"]) == {"a": {"b": "c.d=e", "c": ""}, "b": {"x": "1"}}


def test_hops_in_one_line() -> None:
    assert one_line(Hops(read=1_200, spooled=2_400, batches=12, waiting_for=("d1", "d2", "d3", "d4"))) == (
        "read 1,200 records, spooled 2,400 rows in 12 batches, acked 0 batches, logged 0 rows "
        "(waiting for d1, d2, d3 and 1 more; Spark is starting)"
    )


def test_entries_are_told_once_spark_has_looked_at_the_log() -> None:
    """Before that it would be `processed 0 of 0 entries`, although the log has some."""
    assert one_line(Hops(read=9, logged=9, host="starting")).endswith("logged 9 rows (Spark is starting)")
    assert one_line(Hops(read=9, logged=9, processed=1, to_process=3, host="running")).endswith(
        "logged 9 rows, processed 1 of 3 entries"
    )


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (BrokerError("no\x1b[31m broker"), 1),
        (KeyboardInterrupt(), 130),
        (StoppedError(signal.SIGTERM), 143),
    ],
)
def test_ends_have_their_codes(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(doctor, "show_checks", fail)
    assert gear(["doctor"], capsys)[0] == code
