"""Devices that have no source of their app get what the cloud sends to them, each command once, under kills.

Real processes: gear up with broker, ingest, the Spark host and the sender, and the agents of three devices.
One app has its only source in the cloud. The other has a source on one of the devices, too.
"""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geartrain.records.event_time import END_OF_TIME
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.ports import NO_SOURCE, EntryKind
from tests.control.platform_client import Client, client_of
from tests.proofs.test_platform import gear, kill, until, until_ended
from tests.supervisor.test_up import platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

STATIONS = ("station-1", "station-2", "station-3")
ORDERS, SPEED = 600, 20
FLOW = """
from dataclasses import dataclass
from pathlib import Path

from geartrain import Flow, Record, Table
from geartrain.sinks import Actuator, Delivery, JsonLinesFile
from geartrain_devices.csv_replay import CsvReplay


class Order(Record):
    station: str
    number: int


class Level(Record):
    station: str
    level: int


@dataclass(frozen=True)
class Pump(Actuator[Order]):
    folder: str = "."

    async def act(self, value: Order, at: Delivery) -> None:
        with Path(self.folder, value.station).open("a") as file:
            file.write(f"{at.epoch} {at.seq} {at.index} {value.number}\\n")


def is_due(order: Order) -> bool:
    return order.number % 2 == 0


def ordered(order: Order) -> Order:
    return order


def send(flow: Flow) -> None:
    orders = flow.source("orders", CsvReplay(time_column="time"), out=Order).at("cloud")
    sent = orders.map(ordered).at("edge", device="station")
    sent.sink("book", JsonLinesFile("book"))
    sent.filter(is_due).sink("pump", Pump("pump"))


flow = Flow("orders")
send(flow)

mixed = Flow("mixed")
send(mixed)
levels = mixed.source("levels", CsvReplay(time_column="time"), out=Level, devices="site=north")
levels.sink("levels_kept", Table("levels", key=("station", "level")))
"""


def write(path: Path, head: str, count: int) -> list[list[str]]:
    rows = [
        [f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z", STATIONS[n % len(STATIONS)], str(n)]
        for n in range(count)
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["time", "station", head], *rows])
    return rows


def booked(state: Path, device: str, instance: str) -> list[int]:
    path = PlatformPlaces(state).agent(device, instance) / "book.jsonl"
    return [json.loads(line)["number"] for line in path.read_text().splitlines()] if path.exists() else []


def wanted(device: str) -> list[int]:
    return [n for n in range(ORDERS) if STATIONS[n % len(STATIONS)] == device]


def check(state: Path, client: Client, instance: str, folder: Path) -> None:
    """Each command is in the file once and in order. The pump got each, some twice, under one identity."""
    for device in STATIONS:
        assert booked(state, device, instance) == wanted(device), device
        lines = [line.rsplit(" ", 1) for line in (folder / device).read_text().splitlines()]
        acted = dict.fromkeys((at, int(number)) for at, number in lines)
        assert [number for _, number in acted] == [n for n in wanted(device) if n % 2 == 0], device
        assert len({at for at, _ in acted}) == len(acted)
    page: dict[str, Any] = client.get(f"/apps/{instance.rpartition('.')[0]}/tables/dead_letters")
    assert page["rows"] == []


def test_devices_without_a_source_get_each_command_once_though_their_agents_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stations.py").write_text(FLOW, encoding="utf-8")
    write(tmp_path / "orders.csv", "number", ORDERS)
    rows = write(tmp_path / "levels.csv", "level", 30)
    folders = {name: tmp_path / f"acted-{name}" for name in ("orders", "mixed")}
    for folder in folders.values():
        folder.mkdir()
    state = tmp_path / "state"
    given = [f"--set=orders.path={tmp_path / 'orders.csv'}", f"--set=orders.speed={SPEED}"]
    with platform(state):
        client = client_of(state)
        for number, device in enumerate(STATIONS):
            label = ["--label", "site=north"] if number == 0 else []
            gear(state, "device", "add", device, "--local", *label)
        for name, flow in (("orders", "stations:flow"), ("mixed", "stations:mixed")):
            own = [*given, f"--set=pump.folder={folders[name]}"]
            own += [f"--set=levels.path={tmp_path / 'levels.csv'}"] if name == "mixed" else []
            gear(state, "submit", flow, "--devices", "all", "--no-wait", *own)

        def arrived(device: str, instance: str) -> int:
            return len(booked(state, device, instance))

        for device in STATIONS:
            until(partial(arrived, device, "orders.1"), f"the first commands of {device}")
            kill(state, f"device {device}")
        info = client.get("/apps/mixed")
        assert {one["device"]: one["lacks"] for one in info["applied"]} == {
            "cloud-1": ["levels"],
            "station-1": ["orders"],
            "station-2": ["levels", "orders"],
            "station-3": ["levels", "orders"],
        }
        kill(state, "device cloud-1")
        kill(state, "ingest")
        for name, folder in folders.items():
            until_ended(client, name)
            check(state, client, f"{name}.1", folder)
        kept = client.get("/apps/mixed/tables/levels")["rows"]
        assert sorted(kept) == sorted([station, int(level)] for _, station, level in rows)
        log = LogReader(PlatformPlaces(state).log)
        for instance, without in (("orders.1", STATIONS), ("mixed.1", STATIONS[1:])):
            entries = log.entries(instance, "0", 0, log.positions(instance)["0"])
            came = [e.device for e in entries if e.kind is EntryKind.ASSIGNED and e.source == NO_SOURCE]
            assert sorted(came) == sorted(without), "once each, though ingest was killed"
            assert all(clock == END_OF_TIME for clock in entries[-1].clocks.values())
