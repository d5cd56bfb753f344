"""From a file on a device to a table through a whole platform, beside the same query by hand in PySpark.

`gear bench` runs each flow twice under each cut, on a platform of its own with its defaults; the second run
counts, since Spark is warm then. The query by hand reads the same rows from Parquet files, without devices,
broker and log, and its second run counts, too. What came out is compared.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.broker.choice import find_mosquitto
from geartrain_cloud.cli.demos import load_demo, set_up
from geartrain_cloud.cli.hops import served_tables
from geartrain_cloud.platform.places import PlatformPlaces
from tests.bench.by_hand import COLUMNS, write_parquet
from tests.bench.harness import ROOT, SIZE, Work, scaled
from tests.bench.platform_flows import write_lines

pytestmark = [pytest.mark.slow, pytest.mark.spark]

RECORDS = scaled(3_000_000, least=20_000)
RUNS = 2 if SIZE > 0.01 else 1
TRAFFIC = {"city": 20 if SIZE > 0.1 else 3, "vehicles": scaled(30_000, least=300)}
CUTS, BY_HAND, SPARK = ("cloud", "auto"), "by hand", "spark"
BROKER = "mosquitto" if find_mosquitto() else "amqtt"
CASES = [("high", 1, BROKER), ("means", 1, BROKER)]
"""Flow, devices and broker."""
MORE = [("high", 1, "amqtt"), ("high", 4, BROKER), ("means", 4, BROKER)]
"""At full size only."""
RATES = {"high": {"cloud": 60.0, "auto": 60.0}, "means": {"cloud": 45.0, "auto": 60.0}}
"""Thousands of records a second that are asked for on mosquitto with one device."""

Run = Mapping[str, Any]


def bench(state: Path, flow: str, broker: str, devices: int, options: Sequence[str]) -> list[Run]:
    """The runs of `gear bench` under both cuts."""
    cuts = [word for cut in CUTS for word in ("--cut", cut)]
    command = [sys.executable, "-m", "geartrain_client.cli", "bench", flow, *cuts, "--json"]
    command += ["--runs", str(RUNS), "--devices", str(devices), "--broker", broker, "--state", str(state)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Run] = json.loads(done.stdout)["runs"]
    return found


def run_by_hand(flow: str, folder: Path) -> list[Run]:
    """The runs of the query by hand; `folder` has its rows."""
    command = [sys.executable, "-m", "tests.bench.by_hand", flow, str(folder), str(RUNS)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    found: list[Run] = json.loads(done.stdout)
    return found


def table_of(file: Path, table: str, flow: str) -> list[tuple[str, float]]:
    """The rows of a table, sorted; means rounded to what both ways of adding up agree on."""
    columns = ", ".join(COLUMNS[flow])
    with closing(sqlite3.connect(file)) as database:
        found = database.execute(f"SELECT {columns} FROM {table}").fetchall()
    return sorted((meter, round(value, 9)) for meter, value in found)


def last_of(runs: Sequence[Run], cut: str) -> Run:
    """The last run under a cut."""
    return [run for run in runs if run["cut"] == cut][-1]


def compare(work: str, flow: str, runs: Sequence[Run], by_hand: Run | None, count: int, goals: bool) -> None:
    """Print the speeds and the costs, and keep them; count: the records that there are."""
    speeds = {f"cut {cut}": last_of(runs, cut)["records_per_s"] / 1_000 for cut in CUTS}
    costs = {f"cut {cut}": last_of(runs, cut)["cpu_s"] for cut in CUTS}
    spark = {cut: 1e6 * cpu[SPARK] / count for cut, cpu in costs.items()}
    whole = {cut: 1e6 * sum(cpu.values()) / count for cut, cpu in costs.items()}
    if by_hand is not None:
        speeds[BY_HAND] = count / by_hand["seconds"] / 1_000
        spark[BY_HAND] = whole[BY_HAND] = 1e6 * by_hand["cpu_s"] / count
    notes = [f"{count:,} records; of each cut the last of {RUNS} runs"]
    if goals:
        notes += [f"asked for: {rate:g} at the cut {cut}" for cut, rate in RATES[flow].items()]
    first = BY_HAND if by_hand is not None else f"cut {CUTS[0]}"
    for what, unit, figures in (
        ("speed", "krecords/s", speeds),
        ("processor time of Spark's part for a record", "us", spark),
        ("processor time of all processes for a record", "us", whole),
    ):
        contenders = {name: lambda figure=figure: figure for name, figure in figures.items()}
        Work(f"platform, {work}, {what}", unit, contenders, first, notes=notes).run(1)
        notes = []
    for cut, cpu in costs.items():
        parts = ", ".join(f"{name} {1e6 * used / count:.1f}" for name, used in sorted(cpu.items()))
        print(f"  {cut}, us of a processor a record: {parts}")


@pytest.mark.parametrize(("flow", "devices", "broker"), CASES + (MORE if SIZE > 0.1 else []))
def test_a_flow(flow: str, devices: int, broker: str, tmp_path: Path) -> None:
    count, options = RECORDS // devices, list[str]()
    for device in range(1, devices + 1):
        path = tmp_path / f"d{device}.jsonl"
        write_lines(path, count, device)
        options += ["--device-set", f"d{device}:meters.path={path}"]
    runs = bench(tmp_path / "state", f"tests.bench.platform_flows:{flow}", broker, devices, options)
    assert {run["records"] for run in runs} == {count * devices}
    write_parquet(tmp_path / "hand" / "rows", [count] * devices)
    by_hand = run_by_hand(flow, tmp_path / "hand")
    wanted = table_of(tmp_path / "hand" / f"{flow}-1.sqlite", "out", flow)
    assert len(wanted) > 100
    for number in range(1, len(runs) + 1):
        tables = served_tables(PlatformPlaces(tmp_path / "state"), f"bench_{number}.1")
        assert table_of(tables, flow, flow) == wanted
    work = f"{flow}, {devices} {'device' if devices == 1 else 'devices'}, {broker}"
    compare(work, flow, runs, by_hand[-1], count * devices, goals=devices == 1 and broker == "mosquitto")


def test_traffic(tmp_path: Path) -> None:
    demo, folder = load_demo("traffic"), tmp_path / "input"
    folder.mkdir()
    setup = set_up(demo, folder, demo.options(**TRAFFIC), 1)
    ((_, sources),) = setup.devices.items()
    given = {**setup.steps, **sources}
    options = [
        word
        for step, values in given.items()
        for option, value in values.items()
        for word in ("--set", f"{step}.{option}={value if isinstance(value, str) else json.dumps(value)}")
    ]
    runs = bench(tmp_path / "state", demo.flow(demo.options(**TRAFFIC)), BROKER, 1, options)
    (count,) = {run["records"] for run in runs}
    assert count > 1_000
    compare(f"traffic, 1 device, {BROKER}", "traffic", runs, None, count, goals=False)
