"""Sources in the cloud on a whole platform: read by its own device, beside those of a fleet and without one.

The tables are compared with what plain Python makes of the same files.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from geartrain_client.cli import main
from tests.control.platform_client import client_of
from tests.proofs.test_platform import gear, kill, until, until_ended
from tests.supervisor.test_up import pids, platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FLOW = """
from geartrain import Flow, Record, Table
from geartrain_devices.csv_replay import CsvReplay


class Price(Record):
    symbol: str
    price: float


class Name(Record):
    symbol: str
    name: str


class Named(Record):
    name: str
    price: float


def named(price, names):
    known = names.get(price.symbol)
    return Named("?" if known is None else known.name, price.price)


flow = Flow("named")
names = flow.source("names", CsvReplay(time_column="time"), out=Name).at("cloud")
prices = flow.source("prices", CsvReplay(time_column="time"), out=Price, partitioned_by="symbol")
prices.broadcast("named", names, named, key="symbol", out=Named).sink("all", Table("all"))

alone = Flow("alone")
rows = alone.source("names", CsvReplay(time_column="time"), out=Name).at("cloud")
rows.sink("kept", Table("kept"))
"""


def write(path: Path, head: list[str], rows: list[list[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def test_a_source_in_the_cloud_is_read_once_beside_a_fleet_and_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named.py").write_text(FLOW, encoding="utf-8")
    names = [["2026-01-01T00:00:00Z", f"S{n}", f"name {n}"] for n in range(5)]
    prices = [[f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z", f"S{n % 6}", str(n)] for n in range(1, 600)]
    write(tmp_path / "names.csv", ["time", "symbol", "name"], names)
    write(tmp_path / "prices.csv", ["time", "symbol", "price"], prices)
    state, file = tmp_path / "state", tmp_path / "names.csv"
    with platform(state):
        client = client_of(state)
        gear(state, "submit", "named:alone", f"--set=names.path={file}", "--no-wait")
        assert client.get("/devices/cloud-1")["local"] is True
        until(lambda: "device cloud-1" in pids(state), "the platform's own device")
        kill(state, "device cloud-1")
        until_ended(client, "alone")
        kept = client.get("/apps/alone/tables/kept?limit=1000")["rows"]
        assert sorted(kept) == sorted([symbol, name] for _, symbol, name in names)

        gear(state, "device", "add", "d1", "--local")
        given = f"--set=names.path={file}", f"--set=prices.path={tmp_path / 'prices.csv'}"
        gear(state, "submit", "named:flow", *given, "--no-wait")
        info = client.get("/apps/named")
        assert {one["device"]: one["lacks"] for one in info["applied"]} == {
            "cloud-1": ["prices"],
            "d1": ["names"],
        }
        kill(state, "device cloud-1")
        until_ended(client, "named")
        rows = client.get("/apps/named/tables/all?limit=1000")["rows"]
        known = {symbol: name for _, symbol, name in names}
        assert sorted(rows) == sorted([known.get(symbol, "?"), float(price)] for _, symbol, price in prices)
        assert {one["device"] for one in client.get("/apps/alone")["applied"]} == {"cloud-1"}

    own = f"--device=d1:prices.path={tmp_path / 'prices.csv'}"
    assert main(["run", "named:flow", f"--set=names.path={file}", own, "--output=out"]) == 0
    alike = [[row["name"], row["price"]] for row in json.loads(Path("out/all.json").read_text())]
    assert sorted(alike) == sorted(rows)
