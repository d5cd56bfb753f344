"""The whole path as the tests run it: `gear` as a process that can be watched and killed, and its results."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from geartrain_cloud.cli.hops import Hops, agent_status, read_hops, served_tables
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.sinks.tables import rows
from tests.demo.reference import drawdown_rows
from tests.waiting import WAIT_S, Wait

DEVICES = [f"device-{number}" for number in range(1, 6)]
SAMPLE_ROWS = 12_154


def sample_frame() -> pd.DataFrame:
    """The sample prices, read past all code of ours."""
    stocks: Any = __import__("bokeh_sampledata.stocks").stocks
    parts = [
        pd.DataFrame(
            {"symbol": s, "date": getattr(stocks, s)["date"], "price": getattr(stocks, s)["adj_close"]}
        )
        for s in ("AAPL", "FB", "GOOG", "IBM", "MSFT")
    ]
    frame = pd.concat(parts, ignore_index=True)
    frame["date"] = pd.to_datetime(frame["date"], utc=True)
    return frame


def expected_bytes(frame: pd.DataFrame, period: str) -> bytes:
    """The output that the contract asks for, computed by pandas and written by `json` alone."""
    found = drawdown_rows(frame, period)
    return (json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_prices(path: Path, lines: Sequence[Sequence[object]]) -> Path:
    """A price file of these rows, header first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("symbol", "date", "price"), *lines])
    return path


def gear_command(*arguments: str) -> list[str]:
    """`gear` under this interpreter."""
    return [sys.executable, "-m", "geartrain_client.cli", *arguments]


def run_gear(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `gear` to its end; a stack trace or a colour in what it says fails the test."""
    done = subprocess.run(
        gear_command(*arguments), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "\x1b[" not in done.stdout + done.stderr
    return done


@contextmanager
def started_gear(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`gear` at work, killed at the end if it still is."""
    process = subprocess.Popen(
        gear_command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(
    what: str, condition: Callable[[], bool], process: subprocess.Popen[str] | None = None
) -> None:
    """Wait for a condition; fails with its name, or when the process has ended before."""
    wait = Wait(what)
    while not condition():
        wait.check()
        assert process is None or process.poll() is None, f"gear ended before this: {what}"
        time.sleep(0.05)


def hops(places: PlatformPlaces, instance: str = "stocks.1") -> Hops:
    """How far a run of the demo is."""
    return read_hops(places, instance, DEVICES)


def tables_of(places: PlatformPlaces, instance: str = "stocks.1") -> Path:
    """The tables of a run of the demo."""
    return served_tables(places, instance)


def processes(places: PlatformPlaces) -> dict[str, Any]:
    """Who runs under which process id, by the supervisor's word."""
    return read_report(places.processes)


def pids(places: PlatformPlaces) -> list[int]:
    """The process ids that the supervisor knows."""
    return [one["pid"] for one in processes(places).values() if one["pid"] is not None]


def pid_of(places: PlatformPlaces, name: str, instance: str) -> int | None:
    """Who runs as a process of the supervisor, or as `agent DEVICE`, which is its parent's."""
    device = name.removeprefix("agent ")
    is_agent = device != name
    said = (
        read_report(agent_status(places, device, instance)) if is_agent else processes(places).get(name, {})
    )
    pid: int | None = said.get("pid")
    return pid


def kill_9(
    places: PlatformPlaces, name: str, process: subprocess.Popen[str], instance: str = "stocks.1"
) -> None:
    """Kill a process while there is work left and wait until another stands in its place."""
    wait_until(f"{name} runs", lambda: pid_of(places, name, instance) is not None, process)
    now = hops(places, instance)
    assert now.processed < max(1, now.to_process) or now.read > now.logged, "all is in the tables already"
    before = pid_of(places, name, instance)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(
        f"{name} is started again", lambda: pid_of(places, name, instance) not in (None, before), process
    )


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_prices(tables: Path) -> list[tuple[str, str, float]]:
    """The table of prices, sorted."""
    return [(row["symbol"], row["date"], row["price"]) for row in rows(tables, "prices")]
