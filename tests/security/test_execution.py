"""Nothing that was read is executed: agent, ingest and a whole flow, watched by audit hooks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from geartrain.adapters.toml_text import to_toml
from geartrain_cloud.broker import choose_broker, wait_until_ready
from geartrain_cloud.log.reader import LogReader
from tests.cloud.fleet import prices
from tests.rosters import document, put_flow
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FLOW = "geartrain_examples.stocks.flow:flow"
GUILTY = """
def main(arguments):
    import importlib, subprocess, sys
    marshal, pickle = importlib.import_module("marshal"), importlib.import_module("pickle")
    marshal.loads(marshal.dumps(compile("1", "data", "eval")))
    pickle.loads(pickle.dumps(print))
    eval("1")
    subprocess.run([sys.executable, "-c", ""], check=True)
    return 0
"""


def watched(report: Path, module: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.security.watched", str(report), module, *arguments]
    with report.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def test_the_watch_sees_what_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "guilty.py").write_text(GUILTY)
    command = [sys.executable, "-m", "tests.security.watched", str(tmp_path / "report"), "guilty"]
    path = f"{ROOT}:{tmp_path}"
    subprocess.run(command, check=True, cwd=ROOT, env={"PYTHONPATH": path}, timeout=WAIT_S)
    seen = json.loads((tmp_path / "report").read_text())
    found = {one.partition(" ")[0] for one in seen if "guilty.py" in one}
    assert found >= {"marshal.loads", "pickle.find_class", "compile", "exec"}
    assert any(one.startswith("subprocess.Popen") for one in seen)


def test_agent_and_ingest_execute_nothing_that_they_read(
    tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    csv = tmp_path / "prices.csv"
    csv.write_text("symbol,date,price\n" + "".join(f"S,2020-01-{n % 28 + 1:02d},{n}.5\n" for n in range(300)))
    broker = choose_broker(broker_kind, tmp_path / "broker")
    put_flow(tmp_path / "log", "stocks", document({"quotes": ("d1",)}))
    agent = {"device": "d1", "flow": FLOW, "cut": "cloud", "state": str(tmp_path / "state")}
    agent |= {"broker": broker.address, "sources": {"quotes": {"path": str(csv)}}}  # type: ignore[dict-item]
    (tmp_path / "agent.toml").write_text(to_toml(agent))
    (tmp_path / "ingest.toml").write_text(to_toml({"log": "log", "broker": broker.address}))
    serving = subprocess.Popen(broker.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    reports = {name: tmp_path / f"{name}.json" for name in ("agent", "ingest")}
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        ingest = watched(
            reports["ingest"], "geartrain_cloud.ingest.main", "--config", str(tmp_path / "ingest.toml")
        )
        try:
            sent = watched(
                reports["agent"], "geartrain_edge.agent.process", "--config", str(tmp_path / "agent.toml")
            )
            assert sent.wait(timeout=WAIT_S) == 0
            ingest.terminate()
            assert ingest.wait(timeout=WAIT_S) == 0
        finally:
            ingest.kill()
            ingest.wait()
    finally:
        serving.kill()
        serving.wait()
    assert len(prices(LogReader(tmp_path / "log"))) == 300
    assert {name: json.loads(path.read_text()) for name, path in reports.items()} == {
        "agent": [],
        "ingest": [],
    }


def test_a_whole_flow_in_one_process_executes_nothing_that_it_reads(tmp_path: Path) -> None:
    csv, report = tmp_path / "prices.csv", tmp_path / "report.json"
    csv.write_text('symbol,date,price\nA,2020-01-01,8\n"__import__(""os"")",2020-01-02,9\nB,eval(1),1\n')
    arguments = ("run", FLOW, "--set", f"quotes.path={csv}", "--output", str(tmp_path / "out"))
    assert watched(report, "geartrain_client.cli", *arguments).wait(timeout=WAIT_S) == 0
    assert (tmp_path / "out" / "tables.sqlite").exists()
    assert json.loads(report.read_text()) == []
