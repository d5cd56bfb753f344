"""`gear run` as a person meets it: live sources, what it writes and leaves out, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from geartrain.adapters.sqlite import translated
from geartrain.flow.loading import load_flow
from geartrain_client.cli import main
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.broker.ready import wait_until_ready
from geartrain_cloud.cli.inprocess import Now, RunOptions, run_in_process
from geartrain_cloud.sinks import tables
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import rows
from tests.waiting import WAIT_S

Capture = pytest.CaptureFixture[str]

HEAD = """
import asyncio, sys
from geartrain import Context, Flow, Record, Table, Task
from geartrain.sinks import Actuator, ConsoleSink, JsonLinesFile, MqttSink, ParquetTable, PostgresTable
from geartrain.testing import TestingSource
from geartrain_devices.simulated import SimulatedSensor

class Reading(Record):
    sensor: str
    celsius: float

class Thermometer(SimulatedSensor[Reading]):
    def make(self, random, number, device):
        return Reading("a", number / 2)

class Valve(Actuator[Reading]):
    async def start(self, device):
        print("start", device)
    async def act(self, value, at):
        if value.celsius == 1.0:
            raise OSError("stuck")
        print("act", value.celsius, at.index, at.time_us)
    async def stop(self):
        print("stop")

flow = Flow("mine")
"""
LIVE = "readings = flow.source('readings', Thermometer(), out=Reading)\n"
FULL = (
    "gear: --output out cannot be written, for the disk is full: free space there, or name another folder "
    "with --output DIR"
)
FEW = "readings = flow.source('readings', Thermometer(records=3), out=Reading)\n"


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes a flow's module, and names the flow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, ""])
    names: list[str] = []

    def write(code: str) -> str:
        names.append(f"run_flow_{request.node.name.partition('[')[0]}_{len(names)}")
        (tmp_path / f"{names[-1]}.py").write_text(HEAD + textwrap.dedent(code), encoding="utf-8")
        return f"{names[-1]}:flow"

    yield write
    for name in names:
        sys.modules.pop(name, None)


def gear(arguments: Sequence[str], capsys: Capture) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_a_live_source_is_read_for_as_long_as_asked(module: Any, capsys: Capture, tmp_path: Path) -> None:
    name = module(LIVE + "readings.sink('kept', Table('kept'))")
    code, out, err = gear(["run", name, "--for", "200ms", "--output", "out", "--json"], capsys)
    assert code == 0
    found = json.loads(out)
    assert found["records_read"] > 0
    assert found["rows"]["kept"] == found["records_read"] == found["places"][0]["position"]
    assert not found["ended"]
    kept = rows(tmp_path / "out" / "tables.sqlite", "kept")
    assert kept == sorted(kept, key=lambda row: row["celsius"])
    assert [row["celsius"] for row in kept] == [number / 2 for number in range(len(kept))]
    assert err.startswith("reading readings to the end, or until Ctrl-C, for 0.2 s at the most\n")
    assert f"readings: local was read up to position {len(kept):,}, event time 2026-" in err
    assert "windows and timers that were still open are not in the tables" in err


def test_a_paced_source_is_waited_for_to_its_end(module: Any, capsys: Capture) -> None:
    name = module(
        "readings = flow.source('readings', Thermometer(records=4, speed=100), out=Reading)\n"
        "readings.sink('kept', Table('kept'))"
    )
    code, out, _ = gear(["run", name, "--json"], capsys)
    assert (code, json.loads(out)["rows"]["kept"], json.loads(out)["ended"]) == (0, 4, True)


def test_what_sensors_publish_over_mqtt_is_read_until_told(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = choose_broker("auto", tmp_path / "broker")
    name = module(
        f"""
        from geartrain_devices.mqtt_topic import MqttTopic
        topic = MqttTopic(topic="t", port={choice.port}, time="at", fields={{"sensor": "s", "celsius": "c"}})
        flow.source("readings", topic, out=Reading).sink("kept", Table("kept"))
        """
    )
    from aiomqtt import Client

    process = subprocess.Popen(choice.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told: list[Now] = []
    publishers: list[Any] = []

    async def publish() -> None:
        import asyncio

        async with Client("127.0.0.1", choice.port) as client:
            while True:  # until one comes through: nothing is kept for a subscriber who is not there yet
                await client.publish("t", json.dumps({"at": 5, "s": "a", "c": 1.5}))
                await asyncio.sleep(0.05)

    def tell(now: Now) -> None:
        import asyncio

        if not publishers:
            publishers.append(asyncio.ensure_future(publish()))
        told.append(now)

    try:
        wait_until_ready(choice.host, choice.port, timeout_s=WAIT_S)
        options = RunOptions(going=lambda: not told or told[-1].read < 3, tell=tell)
        result = run_in_process(load_flow(name).graph(), tmp_path / "out", options)
    finally:
        process.terminate()
        process.wait()
    assert result.records["kept"] >= 3
    assert rows(tmp_path / "out" / "tables.sqlite", "kept")[0] == {"sensor": "a", "celsius": 1.5}


def test_an_actuator_is_called_only_when_asked_and_what_is_left_out_is_said(
    module: Any, capsys: Capture
) -> None:
    name = module(FEW + "readings.sink('valve', Valve('valve', attempts=2, pause_ms=1))")
    code, out, err = gear(["run", name, "--json"], capsys)
    assert (code, json.loads(out)["rows"]["valve"]) == (0, 3)
    said = "actuator valve was not called, its records are in the table valve: --actuate calls it"
    assert json.loads(out)["left_out"] == [said]
    assert f"left out: {said}\n" in err

    code, out, err = gear(["run", name, "--actuate"], capsys)
    times = [1_767_225_600_000_000 + second * 1_000_000 for second in range(3)]
    acted = [line for line in out.splitlines() if line.startswith(("start", "act", "stop"))]
    assert acted == ["start local", f"act 0.0 0 {times[0]}", f"act 0.5 1 {times[1]}", "stop"]
    assert "left out" not in err
    assert "dead letters of valve: 1, the first of them:" in out
    assert 'the actuator failed 2 times: OSError: stuck; the record, readings/local number 2: {"se' in out
    assert code == 0


def test_parquet_is_written_and_what_goes_elsewhere_is_left_out(
    module: Any, capsys: Capture, tmp_path: Path
) -> None:
    name = module(
        FEW + "readings.sink('files', ParquetTable('files', folder='/nowhere'))\n"
        "readings.sink('base', PostgresTable('base'))\n"
        "readings.sink('topic', MqttSink('topic', topic='a/{sensor}'))\n"
        "readings.sink('lines', JsonLinesFile('lines'))\n"
        "readings.sink('shown', ConsoleSink('shown', rows_max=2))\n"
    )
    out = err = ""
    for _ in range(2):  # a second run replaces the files of the first
        code, out, err = gear(["run", name, "--output", "out"], capsys)
        assert code == 0
        table = pq.read_table(tmp_path / "out" / "files.parquet").to_pydict()
        assert (table["sensor"], table["celsius"]) == (["a"] * 3, [0.0, 0.5, 1.0])
    assert not Path("/nowhere").exists()
    assert 'shown 2026-01-01T00:00:01Z {"sensor": "a", "celsius": 0.5}\nshown and 1 more' in out
    kept = "its records are in the table"
    assert [line for line in err.splitlines() if line.startswith("left out")] == [
        "left out: sink files: /nowhere was left alone, its files are below --output",
        f"left out: sink base: nothing was written to PostgreSQL, {kept} base",
        f"left out: sink topic: nothing was published to a/{{sensor}}, {kept} topic",
        f"left out: sink lines: the device's file lines.jsonl was not written, {kept} lines",
    ]
    assert "files.parquet" in err
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_records_that_a_task_refuses_are_named_and_too_many_end_with_3(module: Any, capsys: Capture) -> None:
    flow = """
        def halved(one: Reading) -> Reading:
            if int(one.celsius * 2) % 100 < {bad}:
                sys.exit("no")
            return one
        readings = flow.source('readings', Thermometer(records=30_000), out=Reading)
        readings.map(halved).sink('kept', Table('kept'))
    """
    code, out, err = gear(["run", module(flow.format(bad=1))], capsys)
    assert code == 0
    assert "read 30,000 records; late 0; dead letters 300\n" in out

    code, out, err = gear(["run", module(flow.format(bad=2))], capsys)
    assert code == 3
    assert "dead letters of halved: 600, the first of them:\n" in out
    first = '  SystemExit: no; the record, readings/local number 0: {"sensor":"a","celsius":0.0}\n'
    assert first in out
    assert err.splitlines()[-1] == (
        "gear: 600 dead letters of 30,000 records, more than 1 %, the first of them as above: mend the flow "
        "or its input"
    )


def test_a_step_that_refuses_all_ends_with_3(module: Any, capsys: Capture) -> None:
    code, out, err = gear(
        [
            "run",
            module(FEW + "readings.map(lambda one: sys.exit(), name='m', out=int).sink('k', Table('k'))"),
            "--json",
        ],
        capsys,
    )
    assert (code, json.loads(out)["refused_by"][0]["count"]) == (3, 3)
    assert "dead letters of m: 3, the first of them:" in err
    assert "gear: step m: all 3 records of source readings became dead letters, the first as above" in err


def test_a_table_whose_results_were_all_refused_ends_with_3_however_few_they_are(
    module: Any, capsys: Capture
) -> None:
    few = FEW.replace("records=3", "records=1_000")
    summed = (
        "readings.sink('all', Table('all'))\n"
        "keyed = readings.key_by('sensor').window(global_window())\n"
        "keyed.fold('sum', int, lambda n, one: n + 1, result=lambda n: f'{n}', out=int)"
        ".sink('k', Table('k'))\n"
    )
    code, out, err = gear(["run", module("from geartrain import global_window\n" + few + summed)], capsys)
    assert code == 3
    assert "read 1,000 records; late 0; dead letters 1\n" in out
    assert err.splitlines()[-1] == (
        "gear: step sum: all its results became dead letters (1), the first as above, so that sink k has "
        "none: mend the step, or its input"
    )


def test_a_step_that_had_little_to_make_and_failed_once_ends_with_0(module: Any, capsys: Capture) -> None:
    rare = (
        "def rare(one):\n"
        "    return [1 // 0] if one.celsius == 3.5 else []\n"
        "readings.sink('all', Table('all'))\n"
        "readings.flat_map(rare, out=int).sink('k', Table('k'))\n"
    )
    many = FEW.replace("records=3", "records=1_000")
    code, out, _ = gear(["run", module(many + rare)], capsys)
    assert code == 0
    assert "dead letters 1" in out


def test_what_a_flow_prints_is_not_in_the_json(module: Any, capsys: Capture) -> None:
    code_of_it = (
        "print('loaded')\n"
        "def loud(reading: Reading) -> Reading:\n"
        "    print('one', reading.celsius)\n"
        "    return reading\n"
    )
    name = module(code_of_it + FEW + "readings.map(loud).sink('kept', Table('kept'))\n")
    code, out, err = gear(["run", name, "--json"], capsys)
    assert (code, json.loads(out)["rows"]["kept"]) == (0, 3)
    assert [line for line in err.splitlines() if line.startswith(("loaded", "one"))][:2] == [
        "loaded",
        "one 0.0",
    ]
    code, out, err = gear(["run", name], capsys)
    assert (code, "one 0.0" in out) == (0, True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("symbol,date,price\n", "source quotes held no record: is it the right input?"),
        ("symbol,date,price\nA,x,1\nB,y,1\n", "source quotes: all 2 rows became dead letters, the first as"),
    ],
)
def test_a_file_without_records_ends_with_3(
    text: str, sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    flow = "geartrain_examples.stocks.flow:flow"
    code, out, err = gear(["run", flow, "--set", f"quotes.path={path}"], capsys)
    assert code == 3
    assert sentence in err
    assert "read 0 records" in out
    assert "A,x" not in text or "prices.csv, line 2: column date" in out


def test_output_is_tried_before_anything_is_read(module: Any, capsys: Capture, tmp_path: Path) -> None:
    name = module(FEW + "readings.map(lambda one: print('read'), name='m', out=str).sink('k', Table('k'))")
    (tmp_path / "file").write_text("")
    code, out, err = gear(["run", name, "--output", "file"], capsys)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "gear: --output file cannot be written (File exists): name another folder with --output DIR"
    )
    code, out, err = gear(["run", name, "--output", "/proc/out"], capsys)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("gear: --output /proc/out cannot be written (")


def test_a_full_disk_is_a_sentence(module: Any, capsys: Capture, tmp_path: Path) -> None:
    """A process that may write only so many bytes, as a full disk would let it."""
    name = module(
        "readings = flow.source('readings', Thermometer(records=20_000), out=Reading)\n"
        "readings.sink('kept', Table('kept'))"
    )
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
        "from geartrain_client.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", limited, "run", name, "--output", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        ": is the disk full? Free space, or name another with --output"
    )
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_once(
    number: int, module: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, _content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tables, "write_private", fail)
    code, _, err = gear(["run", module(FEW + "readings.sink('k', Table('k'))"), "--output", "out"], capsys)
    assert (code, err.splitlines()[-1]) == (1, FULL)


def test_what_sqlite_calls_a_full_disk_is_said_once(
    module: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(_self: SqliteTables, *_: Any) -> None:
        small = "CREATE TABLE a (b); PRAGMA max_page_count = 2; INSERT INTO a VALUES (zeroblob(100000))"
        with translated(TableError, "the file of tables"), closing(sqlite3.connect(":memory:")) as database:
            database.executescript(small)

    monkeypatch.setattr(SqliteTables, "write", fill)
    code, _, err = gear(["run", module(FEW + "readings.sink('k', Table('k'))"), "--output", "out"], capsys)
    assert (code, err.splitlines()[-1]) == (1, FULL)


@pytest.mark.parametrize(("source", "written"), [(LIVE, True), ("bounded", False)])
def test_ctrl_c_says_what_stands_where(source: str, written: bool, module: Any, tmp_path: Path) -> None:
    if source == "bounded":
        source = """
class Endless(Thermometer):
    bounded = True
readings = flow.source('readings', Endless(), out=Reading)
"""
    name = module(
        source
        + """
def seen(one: Reading) -> Reading:
    print("seen", flush=True) if one.celsius == 1.0 else None
    return one
readings.map(seen).sink('kept', Table('kept'))
"""
    )
    command = [sys.executable, "-m", "geartrain_client.cli", "run", name, "--output", "out"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "seen\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "readings: local was read up to position " in err
    assert "read " in out
    if written:
        assert "written to out: tables.sqlite, " in err
        assert len(rows(tmp_path / "out" / "tables.sqlite", "kept")) > 2
    else:
        assert "nothing was written to out: the run was stopped before the end of its sources" in err
        assert list((tmp_path / "out").iterdir()) == []
    assert err.splitlines()[-1] == "gear: stopped by SIGINT"


@pytest.mark.parametrize("text", ["30", "0s", "-1s", "soon", "1e3s", "inf"])
def test_a_time_of_another_form_is_refused(text: str, capsys: Capture) -> None:
    code, out, err = gear(["run", "any:flow", "--for", text], capsys)
    assert (code, out) == (2, "")
    assert err == f"gear: --for {text}: write a number above 0 with its unit, such as 30s, 5m or 2h\n"


@pytest.mark.parametrize(
    ("step", "who"),
    [
        ("readings.map(bad, out=Reading, name='mends')", "step 'mends'"),
        ("readings.key_by('sensor').process('bads', Bad(), out=Reading)", "step 'bads'"),
    ],
)
def test_what_a_step_raises_that_is_no_exception_is_one_sentence(
    module: Any, capsys: Capture, step: str, who: str
) -> None:
    head = """
class Mine(BaseException):
    pass
def bad(reading):
    raise Mine("so it is")
class Bad(Task[Reading, Reading]):
    def on_next(self, value, context):
        bad(value)
"""
    flow = module(head + FEW + f"{step}.sink('out', Table('out'))\n")
    code, out, err = gear(["run", flow], capsys)
    file, line = (
        f"{flow.partition(':')[0]}.py",
        (HEAD + head).split("\n").index('    raise Mine("so it is")') + 1,
    )
    assert (code, out) == (1, "")
    assert f"gear: {who} raised Mine: so it is (" in err
    assert f"{file}, line {line}), which is no Exception: " in err
