"""`gear-agent` as a process: its exit codes, its signals, its status file, and one line for each mistake."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain.adapters.plain_log import PlainFormatter
from geartrain.wire.envelope import Ack, Control
from geartrain_edge.agent import main as agent_main
from geartrain_edge.agent.config import read_config
from geartrain_edge.joining import main as joining_main
from tests.edge.agents import agent_of, run, until
from tests.edge.flows import expected
from tests.edge.network import MemoryNet, NaiveIngest
from tests.ports import free_port
from tests.waiting import WAIT_S, Wait

ROOT = Path(__file__).resolve().parents[2]


def write_config(
    tmp_path: Path, *, flow: str = "geartrain_examples.stocks.flow:flow", rows: int = 50
) -> Path:
    prices = tmp_path / "prices.csv"
    days = [f"A,2020-01-01T00:{n // 60:02d}:{n % 60:02d},{n + 1}\n" for n in range(rows)]
    prices.write_text("symbol,date,price\n" + "".join(days))
    config = tmp_path / "agent.toml"
    config.write_text(
        f'device = "d1"\nflow = "{flow}"\nstate = "{tmp_path}/state"\nbroker = "127.0.0.1:{free_port()}"\n'
        f'[sources.quotes]\npath = "{prices}"\n'
    )
    return config


def greeted(config: Path) -> Path:
    """Give an agent's spool its welcome, as if it had been connected once: it now works without a broker."""
    found = read_config(str(config))
    plan = found.plan()

    async def story() -> None:
        net = MemoryNet(NaiveIngest(plan), swallow=lambda header: True)
        agent = agent_of(plan, found.spool_file, net, found.settings)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().state not in ("starting", "greeting"))
        agent.stop()
        await task

    run(story())
    return config


def start(config: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "geartrain_edge.agent.process", "--config", str(config)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def status_of(tmp_path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((tmp_path / "state" / "status.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    wait = Wait("what the agent says of itself")
    while not condition():
        wait.check()
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_agent_cleanly(tmp_path: Path, number: signal.Signals, code: int) -> None:
    agent = start(greeted(write_config(tmp_path)))
    try:
        wait_for(lambda: status_of(tmp_path).get("state") == "draining")
        before = status_of(tmp_path)
        agent.send_signal(number)
        _, said = agent.communicate(timeout=WAIT_S)
    finally:
        agent.kill()
    assert agent.returncode == code, said
    after = status_of(tmp_path)
    assert (before["state"], after["state"], after["finished"]) == ("draining", "stopped", False)
    assert (after["records_read"], after["acked_seq"], after["connected"]) == (50, 0, False)
    assert after["spooled_seq"] > 1
    assert after["pid"] == agent.pid
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "state").iterdir()}
    assert modes == {"spool.sqlite": 0o600, "status.json": 0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert "Traceback" not in said


def test_a_second_agent_on_one_spool_is_refused_in_one_line(tmp_path: Path) -> None:
    config = greeted(write_config(tmp_path))
    first = start(config)
    try:
        wait_for(lambda: status_of(tmp_path).get("ended", False))
        second = start(config)
        _, said = second.communicate(timeout=WAIT_S)
        assert second.returncode == agent_main.EXIT_FAILED
        assert f"gear-agent: spool {tmp_path}/state/spool.sqlite is in use by another agent" in said
        assert "Traceback" not in said
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate(timeout=WAIT_S)


def test_running_takes_little_memory(tmp_path: Path) -> None:
    agent = start(greeted(write_config(tmp_path, rows=3_000)))
    try:
        wait_for(lambda: status_of(tmp_path).get("ended", False))
        lines = Path(f"/proc/{agent.pid}/status").read_text().splitlines()
    finally:
        agent.kill()
        agent.communicate(timeout=WAIT_S)
    peak_kb = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    print(f"agent, running: {peak_kb / 1024:.1f} MB RSS at its highest")
    assert peak_kb < 60 * 1024


def said_by(capsys: pytest.CaptureFixture[str], config: Path) -> tuple[int, str]:
    before = os.umask(0o022)
    try:
        code = agent_main.main(["--config", str(config)])
    finally:
        os.umask(before)
    return code, capsys.readouterr().err


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path)
    config.write_text(config.read_text() + "select = 3\n")
    code, said = said_by(capsys, config)
    assert code == agent_main.EXIT_CONFIG
    select = 'quotes.select = 3: expected list, got int: write a list, such as ["a", "b"]'
    assert said == f"gear-agent: {config}: [sources] {select}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "the agent's configuration"),
        (["--help"], 0, "gear-agent --device truck-1.toml"),
        ([], 2, "the following arguments are required: --config"),
        (["--config", "--other"], 2, "argument --config: expected one argument"),
        (["--config", "a.toml", "b.toml"], 2, "unrecognized arguments: b.toml"),
    ],
)
def test_what_is_no_configuration_file_is_told_how_to_name_one(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        agent_main.main(arguments)
    assert ended.value.code == code
    out, err = capsys.readouterr()
    assert "usage: gear-agent" in out + err
    assert said in out + err


def test_the_help_of_joining_has_its_defaults_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        joining_main.main(["join", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"default {joining_main.DEVICE_FILE}" in out
    assert f"default {joining_main.STATE}, or with --device a folder state beside it" in out
    assert "gear-agent join --from join-hall.toml --device hall/device.toml" in out


def test_the_file_may_be_named_behind_an_equals_sign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.umask", lambda mask: 0)
    assert agent_main.main([f"--config={tmp_path}/none.toml"]) == agent_main.EXIT_CONFIG
    assert capsys.readouterr().err == (
        f"gear-agent: {tmp_path}/none.toml cannot be read: No such file or directory\n"
    )


def test_a_finished_run_is_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    plan = read_config(str(config)).plan()
    ingest = NaiveIngest(plan)
    monkeypatch.setattr("geartrain.adapters.mqtt.AiomqttNet", lambda *_, **__: MemoryNet(ingest))
    code, said = said_by(capsys, config)
    assert (code, status_of(tmp_path)["finished"]) == (agent_main.EXIT_OK, True), said
    assert ingest.sorted_rows() == expected(plan)


def test_an_alarm_is_one_line_and_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        return [replace(answer, seq=1_000) for answer in answers if isinstance(answer, Ack)]

    config = write_config(tmp_path)
    ingest = NaiveIngest(read_config(str(config)).plan())
    net = MemoryNet(ingest, meddle=meddle)
    monkeypatch.setattr("geartrain.adapters.mqtt.AiomqttNet", lambda *_, **__: net)
    code, said = said_by(capsys, config)
    assert code == agent_main.EXIT_ALARM
    assert "gear-agent: ingest acks batch 1000, but this spool ends at " in said
    assert status_of(tmp_path)["alarm"].startswith("ingest acks batch 1000")
    assert status_of(tmp_path)["counters"]["ack_refused"] == 2


def test_a_defect_is_raised_with_its_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> MemoryNet:
        net = MemoryNet(NaiveIngest(read_config(str(config)).plan()))
        monkeypatch.setattr(net, "connect", lambda client_id: 1 / 0)
        return net

    config = write_config(tmp_path)
    monkeypatch.setattr("geartrain.adapters.mqtt.AiomqttNet", broken)
    with pytest.raises(ExceptionGroup) as caught:
        said_by(capsys, config)
    assert caught.group_contains(ZeroDivisionError)
    assert status_of(tmp_path)["state"] == "failed"
    assert status_of(tmp_path)["reason"] == "ZeroDivisionError: division by zero"


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "said %s", ("\x1b[2J\r\u202e\u00e9",), None)
    assert PlainFormatter("%(message)s").format(record) == "said \\x1b[2J\\r\\u202e\u00e9"
    two = logging.LogRecord("x", logging.INFO, "x", 1, "said\n2026-01-01 ERROR all is lost", (), None)
    assert PlainFormatter("%(message)s").format(two) == "said\\n2026-01-01 ERROR all is lost"


def test_a_source_that_cannot_open_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path)
    (tmp_path / "prices.csv").write_text("sym\x1b[2Jbol,date\n")
    code, said = said_by(capsys, config)
    assert code == agent_main.EXIT_CONFIG
    line = next(line for line in said.splitlines() if line.startswith("gear-agent: "))
    assert line.startswith(f"gear-agent: file {tmp_path}/prices.csv has no column 'symbol'; its columns: ")
    assert "\x1b" not in said
    assert status_of(tmp_path)["state"] == "failed"
    assert "has no column" in status_of(tmp_path)["reason"]
