"""The whole demo as a user runs it: agents, broker, ingest, control and Spark as processes, on real prices.

Its output is compared with pandas, byte for byte, and so is that of `gear run`. Two of agent, ingest, broker,
control and the Spark host are killed with SIGKILL in mid-replay, which the commit draws; the long
form kills each.
The other cuts are in test_every_cut.py. test_demo_own_prices.py runs the cut `cloud` on the broker
that comes along.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.sinks.tables import rows
from geartrain_examples.stocks.data import write_sample
from tests.demo.path_run import hops, kill_9, processes, tables_of, wait_until
from tests.demo.reference import drawdown_rows
from tests.drawing import drawn
from tests.waiting import WAIT_S

VICTIMS = ("agent device-1", "broker", "ingest", "control", "spark")
GEAR = str(Path(sys.executable).with_name("gear"))
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
    return rows(tables_of(PlatformPlaces(folder / "state")), "drawdown_all")


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
    subprocess.run(run, capture_output=True, timeout=WAIT_S, check=True)
    assert (tmp_path / "drawdown.json").read_bytes() == expected(prices, period)
    assert (tmp_path / "drawdown_all.json").read_bytes() == expected(prices, "all")


@pytest.mark.slow
@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(drawn("victims of the demo", VICTIMS, 2), id="drawn"),
        pytest.param(VICTIMS, id="each", marks=pytest.mark.long),
    ],
)
def test_all_on_the_devices_while_processes_are_killed_in_mid_replay(
    prices: pd.DataFrame, broker_kind: str, tmp_path: Path, victims: Sequence[str]
) -> None:
    options = ("--period", "year", "--cut", "edge", "--broker", broker_kind, "--speed", "10000000")
    log = (tmp_path / "gear.log").open("w")
    running = subprocess.Popen(command(tmp_path, *options), stdout=log, stderr=subprocess.STDOUT, text=True)
    places = PlatformPlaces(tmp_path / "state")
    try:
        wait_until("rows are logged", lambda: hops(places).logged > 500, running)
        for name in victims:
            if name == "spark":
                wait_until("Spark has taken it up", lambda: hops(places).to_process > 0, running)
            kill_9(places, name, running)
            if name == "spark":
                break
            before = hops(places).logged
            wait_until("more is logged", lambda before=before: hops(places).logged > before, running)  # type: ignore[misc]
        assert running.wait(WAIT_S) == 0, (tmp_path / "gear.log").read_text()
    finally:
        running.kill()
        running.wait()
        log.close()
    assert ACCOUNTS.search((tmp_path / "gear.log").read_text())
    assert (tmp_path / "out.json").read_bytes() == expected(prices, "year")
    assert whole(tmp_path) == drawdown_rows(prices, "all")
    held = rows(tables_of(places), "prices", canonical=True)
    assert len(held) == len(prices)
    restarts = {name: one["restarts"] for name, one in processes(places).items()}
    assert all(restarts[name] == (name in victims) for name in VICTIMS[1:])
    # A run that is over is not run again.
    again = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out.json").read_bytes() == expected(prices, "year")
