"""The stock demo on a user's own prices, by a `gear` that is killed, stopped, resumed, and shows its page."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import urllib.request
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pandas as pd
import pytest

from geartrain.flow.loading import load_flow
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.sinks.tables import json_bytes, rows
from tests.demo.path_run import (
    expected_bytes,
    gear_command,
    hops,
    is_running,
    pids,
    run_gear,
    started_gear,
    tables_of,
    wait_until,
    write_prices,
)
from tests.waiting import WAIT_S

ODD = "Ö/ \u202e<b>'\""
GOOD = [
    (ODD, "2020-01-03T10:00:00+02:00", "3.5"),
    ("A", "2020-01-02", "10"),
    ("A", "2020-01-02", "8"),
    ("B,C", "2019-12-31T23:59:59.999999Z", "1e-3"),
    ("A", "2020-01-01", "9"),
    ("A", "2021-01-01", "11"),
    (ODD, "2020-01-03T07:59:59Z", "4"),
    ("A", "2020-01-02", "10.5"),
]
BAD = [
    ("A", "2020-01-02", "-1"),
    ("A", "2020-01-02", "nan"),
    ("B,C", "2020-01-02", "inf"),
    ("", "2020-01-02", "7"),
    ("A", "the 2nd", "7"),
    ("A", "2020-01-02"),
    ("only bad", "2020-01-02", "0"),
]
LINES = [*GOOD[:3], *BAD[:4], *GOOD[3:], *BAD[4:]]


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """A gzip file out of order: ties, other time zones, symbols of any text, and rows that are no prices."""
    path = tmp_path / "own.csv.gz"
    path.write_bytes(gzip.compress(write_prices(tmp_path / "own.csv", LINES).read_bytes()))
    return path


@pytest.fixture
def frame() -> pd.DataFrame:
    found = pd.DataFrame(GOOD, columns=["symbol", "date", "price"])
    found["date"] = pd.to_datetime(found["date"], utc=True, format="ISO8601")
    found["price"] = found["price"].astype(float)
    return found


def check_letters(tables: Path) -> None:
    letters = [row["reason"] for row in rows(tables, "dead_letters")]
    assert len(letters) == len(BAD)
    lines = [2 + number for number, line in enumerate(LINES) if line in BAD]
    for line, reason in zip(lines, sorted(letters, key=line_of), strict=True):
        assert reason.startswith(f"own.csv.gz, line {line}: ")
    assert "own.csv.gz, line 5: the price -1.0 is not a finite number above 0" in letters


def line_of(reason: str) -> int:
    return int(reason.split(" line ")[1].partition(":")[0])


def test_in_process(prices: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    graph = (
        load_flow("geartrain_examples.stocks.flow:flow")
        .graph()
        .with_options({"quotes": {"path": str(prices)}})
    )
    result = run_in_process(graph, tmp_path / "out")
    assert (result.records_read, result.dead_letters) == (len(GOOD), len(BAD))
    assert (tmp_path / "out" / "drawdown.json").read_bytes() == expected_bytes(frame, "year")
    assert (tmp_path / "out" / "drawdown_all.json").read_bytes() == expected_bytes(frame, "all")
    check_letters(tmp_path / "out" / "tables.sqlite")


def killed_with_all_it_started(arguments: list[str], places: PlatformPlaces) -> None:
    """Start `gear`, kill it once rows are logged, and wait until none of its processes is left."""
    process = subprocess.Popen(gear_command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until("rows are logged", lambda: hops(places).logged > 0)
    running = pids(places)
    assert len(running) >= 4
    process.kill()
    process.wait()
    wait_until("all processes are gone", lambda: not any(map(is_running, running)))


def stopped_by_ctrl_c(arguments: list[str], places: PlatformPlaces) -> None:
    """Start `gear`, interrupt it: it ends with 130, says how to go on, and leaves nobody behind."""
    former = set(pids(places))
    with started_gear(*arguments) as process:
        wait_until("an agent is started", lambda: len(set(pids(places)) - former) >= 4, process)
        running = pids(places)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert f"to go on: gear demo stocks --state {places.folder}" in " ".join(said.split())
    assert not any(map(is_running, running))


@pytest.mark.slow
def test_killed_stopped_resumed(prices: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    """On the broker that comes along: test_demo_end_to_end.py takes mosquitto where it is."""
    places = PlatformPlaces(tmp_path / "state")
    common = ["demo", "stocks", "--state", str(places.folder)]
    at_work = [*common, "--broker", "amqtt", "--no-page"]
    # So slow that it could not end by itself: the second price of a stock is due in hours.
    killed_with_all_it_started([*at_work, "--input", str(prices), "--cut", "cloud", "--speed", "1"], places)
    stopped_by_ctrl_c([*at_work, "--speed", "1"], places)

    refused = run_gear(*at_work, "--cut", "edge")
    assert refused.returncode == 2
    assert "was begun with --cut cloud, and this run asks for --cut edge" in refused.stderr

    done = run_gear(*at_work)
    assert done.returncode == 0, done.stderr
    assert (
        f"{len(BAD)} rows were refused and are in the table dead_letters:\n  own.csv.gz, line" in done.stderr
    )
    assert (places.folder / "drawdown.json").read_bytes() == expected_bytes(frame, "year")
    assert json_bytes(rows(tables_of(places), "drawdown_all")) == expected_bytes(frame, "all")
    check_letters(tables_of(places))
    assert readable_by_others(places.folder) == []

    check_page(common, frame)


def readable_by_others(folder: Path) -> list[Path]:
    """What others could read."""
    return [path for path in folder.rglob("*") if path.stat().st_mode & 0o077]


def check_page(common: list[str], frame: pd.DataFrame) -> None:
    """The finished run prints its results and serves its page, and runs nothing again."""
    with started_gear(*common) as process:
        assert process.stdout is not None
        address = next(line for line in process.stdout if line.startswith("page: ")).split()[1]
        assert address.startswith("http://127.0.0.1:")
        url = f"{address}api/report/{quote(ODD, safe='')}?period=2020"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:  # noqa: S310
            report = json.load(answer)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=WAIT_S) == 0
    row = next(
        row
        for row in json.loads(expected_bytes(frame, "year"))
        if (row["symbol"], row["period"]) == (ODD, "2020")
    )
    assert {name: report[name] for name in row} == row


def test_sample_needs_its_package(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['bokeh_sampledata'] = None; from geartrain_client.cli import main; "
        "sys.exit(main(['demo', 'stocks', '--state', sys.argv[1]]))"
    )
    run = partial(subprocess.run, capture_output=True, text=True, timeout=WAIT_S, check=False)
    done = run([gear_command()[0], "-c", code, str(tmp_path / "state")])
    assert done.returncode == 2
    assert done.stderr.startswith(
        "gear: the sample prices are not installed: run pip install bokeh_sampledata"
    )
