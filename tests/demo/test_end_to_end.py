"""The whole demo as a user runs it: agents, broker, ingest and Spark as processes, on the real prices.

Its output is compared with pandas, byte for byte, and so is that of `gear run`. Agent, ingest, broker and
Spark driver are killed with SIGKILL, each once in mid-replay. The other cuts are in
tests/proofs/test_every_cut.py, and test_own_prices.py runs the cut `cloud` on the broker that comes along.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from geartrain_cloud.sinks.tables import rows
from geartrain_examples.stocks.data import write_sample
from tests.demo.reference import drawdown_rows

GEAR = str(Path(sys.executable).with_name("gear"))
RUN_S = 280
ACCOUNTS = re.compile(
    r"accounts: ([\d,]+) rows spooled, each in the log and in the tables once: lost 0, doubled 0"
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real prices as the launcher hands them to the agents."""
    path = tmp_path_factory.mktemp("prices") / "prices.csv"
    write_sample(path)
    return path


@pytest.fixture(scope="module")
def prices(sample: Path) -> pd.DataFrame:
    frame = pd.read_csv(sample, float_precision="round_trip")
    frame["date"] = pd.to_datetime(frame["date"], utc=True)
    assert len(frame) == 12_154
    return frame


def expected(prices: pd.DataFrame, period: str) -> bytes:
    """The output contract applied to what pandas finds."""
    found = json.dumps(drawdown_rows(prices, period), indent=1, ensure_ascii=False, allow_nan=False)
    return found.encode() + b"\n"


def command(folder: Path, *options: str) -> list[str]:
    output = str(folder / "out.json")
    return [
        GEAR,
        "demo",
        "stocks",
        "--no-page",
        "--state",
        str(folder / "state"),
        "--output",
        output,
        *options,
    ]


def whole(folder: Path) -> list[dict[str, Any]]:
    """The table of whole histories, which every run computes beside the chosen period."""
    return rows(folder / "state" / "tables.sqlite", "drawdown_all")


@pytest.mark.parametrize("period", ["day", "month", "year", "all"])
def test_gear_run_equals_pandas(sample: Path, prices: pd.DataFrame, period: str, tmp_path: Path) -> None:
    options = [
        "--set",
        f"quotes.path={sample}",
        "--set",
        f"drawdown.period={period}",
        "--output",
        str(tmp_path),
    ]
    run = [GEAR, "run", "geartrain_examples.stocks.flow:flow", *options]
    subprocess.run(run, capture_output=True, timeout=60, check=True)
    assert (tmp_path / "drawdown.json").read_bytes() == expected(prices, period)
    assert (tmp_path / "drawdown_all.json").read_bytes() == expected(prices, "all")


@pytest.mark.slow
def test_all_on_the_devices_while_each_process_is_killed_once_in_mid_replay(
    prices: pd.DataFrame, broker_kind: str, tmp_path: Path
) -> None:
    options = ("--period", "year", "--cut", "edge", "--broker", broker_kind, "--speed", "10000000")
    log = (tmp_path / "gear.log").open("w")
    running = subprocess.Popen(command(tmp_path, *options), stdout=log, stderr=subprocess.STDOUT)
    state = tmp_path / "state"
    try:
        until(running, lambda: logged_rows(state) > 500)
        for name in ("agent device-1", "broker", "ingest"):
            kill(running, state, name)
            before = logged_rows(state)
            until(running, lambda before=before: logged_rows(state) > before)  # type: ignore[misc]
        until(running, lambda: _read(state / "driver" / "status.json").get("state") == "running")
        assert processed_rows(state) < logged_rows(state)
        kill(running, state, "driver")
        assert running.wait(RUN_S) == 0, (tmp_path / "gear.log").read_text()
    finally:
        running.kill()
        running.wait()
        log.close()
    assert ACCOUNTS.search((tmp_path / "gear.log").read_text())
    assert (tmp_path / "out.json").read_bytes() == expected(prices, "year")
    assert whole(tmp_path) == drawdown_rows(prices, "all")
    held = rows(state / "tables.sqlite", "prices", canonical=True)
    assert len(held) == len(prices)
    restarts = {name: one["restarts"] for name, one in processes(state).items()}
    assert all(restarts[name] >= 1 for name in ("agent device-1", "broker", "ingest", "driver"))
    # A run that is over is not run again.
    again = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out.json").read_bytes() == expected(prices, "year")


def processes(state: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = _read(state / "processes.json")
    return found


def logged_rows(state: Path) -> int:
    flows = _read(state / "log" / "status.json").get("flows", {"stocks": {"channels": {}}})
    return sum(int(channel["rows"]) for channel in flows["stocks"]["channels"].values())


def processed_rows(state: Path) -> int:
    queries = _read(state / "driver" / "status.json").get("queries", {})
    return sum(int(query["log_rows"]) for query in queries.values())


def kill(running: subprocess.Popen[bytes], state: Path, name: str) -> None:
    """SIGKILL one child, once, and wait until the supervisor has started it again."""
    child = processes(state)[name]
    os.kill(child["pid"], signal.SIGKILL)
    until(running, lambda: processes(state)[name]["restarts"] > child["restarts"])


def until(running: subprocess.Popen[bytes], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not true():
        assert running.poll() is None, "the demo ended"
        assert time.monotonic() < deadline, "nothing happened for 90 s"
        time.sleep(0.1)


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}
