"""The stock flow under every legal cut over the real path, and kills while Spark keeps state.

Beside test_demo_end_to_end.py: there the cut `edge`, here `cloud` and all cuts between them. Under `cloud`
every process is killed while Spark keeps the state, at a pace that Ctrl-C ends and a second `gear` takes up.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

import msgspec
import pandas as pd
import pytest

from geartrain.flow.loading import load_flow
from geartrain.planning import legal_cuts
from geartrain_cloud.cli.demos import DemoApp
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.sinks.tables import json_bytes, rows
from geartrain_examples.stocks.data import write_sample
from geartrain_examples.stocks.demo import DEMO, StockOptions
from tests.demo.path_run import (
    SAMPLE_ROWS,
    all_prices,
    expected_bytes,
    hops,
    is_running,
    kill_9,
    pids,
    run_gear,
    sample_frame,
    started_gear,
    tables_of,
    wait_until,
)
from tests.demo.whole_app import run_to_the_end
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

BETWEEN = {
    "drawdown": "month",  # one keyed step on the device, its twin inside Spark
    "whole": "day",
}
"""The legal cuts between `cloud` and `edge`, each with the period of its run."""


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    found = sample_frame()
    assert len(found) == SAMPLE_ROWS
    return found


def check_tables(tables: Path, frame: pd.DataFrame, period: str) -> None:
    """What is in the tables is what pandas finds, and each price is there once."""
    assert json_bytes(rows(tables, "drawdown")) == expected_bytes(frame, period)
    assert json_bytes(rows(tables, "drawdown_all")) == expected_bytes(frame, "all")
    days = frame["date"].dt.strftime("%Y-%m-%dT00:00:00Z")
    assert all_prices(tables) == sorted(zip(frame["symbol"], days, frame["price"], strict=True))


def test_the_cuts_tried_are_all_there_are() -> None:
    found = {cut.edge for cut in legal_cuts(load_flow(DEMO.flow(StockOptions())).graph())}
    key = {"quotes", "quotes_by_symbol"}
    tried = [{"quotes"}, key | {"drawdown"}, key | {"whole"}, key | {"drawdown", "whole"}]
    assert found == {frozenset(one) for one in tried}


def test_every_cut_between_gives_the_same_on_one_platform(
    tmp_path: Path, frame: pd.DataFrame, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    prices, places, apps = tmp_path / "input.csv", PlatformPlaces(tmp_path / "state"), {}
    write_sample(prices)
    for cut, period in BETWEEN.items():
        options = msgspec.convert({"input": prices, "period": period}, StockOptions)
        setup = DEMO.set_up(tmp_path, options, 3)
        apps[cut] = DemoApp(f"by_{cut}", DEMO.flow(options), cut, setup.steps, setup.devices)
    accounts = run_to_the_end([*apps.values()], places.folder, {"broker": broker_kind})
    for cut, period in BETWEEN.items():
        mine = accounts[apps[cut].name]
        assert sum(one.before for one in mine) > SAMPLE_ROWS
        assert all(one.is_even for one in mine)
        check_tables(tables_of(places, apps[cut].instance), frame, period)


@pytest.mark.long
def test_kills_while_spark_keeps_state_and_ctrl_c_leave_the_bytes_as_they_are(
    tmp_path: Path, frame: pd.DataFrame, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    places, output = PlatformPlaces(tmp_path / "state"), tmp_path / "out.json"
    common = ["demo", "stocks", "--no-page", "--state", str(places.folder), "--broker", broker_kind]
    with started_gear(*common, "--cut", "cloud", "--period", "month", "--speed", "500000") as process:
        wait_until("Spark brings rows to the tables", lambda: hops(places).processed > 0, process)
        for name in ("agent device-1", "ingest", "broker", "spark"):
            kill_9(places, name, process)
            logged = hops(places).logged
            wait_until("more is logged", lambda logged=logged: hops(places).logged > logged + 20, process)  # type: ignore[misc]
        processed = hops(places).processed
        wait_until("the new host goes on", lambda: hops(places).processed > processed, process)
        running = pids(places)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert not any(map(is_running, running))
    assert hops(places).read < SAMPLE_ROWS

    done = run_gear(*common, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "lost 0, doubled 0" in done.stderr
    assert output.read_bytes() == expected_bytes(frame, "month")
    check_tables(tables_of(places), frame, "month")
