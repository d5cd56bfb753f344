"""Two `gear-ingest` processes share a fleet by buckets, on one broker and log; a third fences the first."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from geartrain.records.event_time import END_OF_TIME
from geartrain_client.cli import main
from geartrain_cloud.broker import choose_broker, wait_until_ready
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.verify import verify_log
from tests.cloud.fleet import FLOW, TestDevice
from tests.cloud.test_main import linked
from tests.cloud.test_partitions import flow_clock, named
from tests.rosters import document, put_flow
from tests.waiting import WAIT_S, Wait

CONFIG = """
buckets = "{buckets}"
broker = "127.0.0.1:{port}"
[log]
folder = "log"
partitions = 3
"""
LOW, HIGH = "00-15", "16-3f"


class Ingests:
    """Processes on one log."""

    def __init__(self, folder: Path, port: int, devices: list[str]) -> None:
        self.folder, self.port, self.devices = folder, port, devices
        put_flow(folder / "log", FLOW, document({"quotes": devices}))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, buckets: str, name: str) -> subprocess.Popen[bytes]:
        path = self.folder / f"{name}.toml"
        text = CONFIG.format(buckets=buckets, port=self.port)
        path.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "geartrain_cloud.ingest.main", "--config", str(path)]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        self.processes.append(process)
        return process

    def status(self, buckets: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "log" / f"status-{buckets}.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found


@pytest.fixture
def ingests(tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]) -> Iterator[Ingests]:
    broker = choose_broker(broker_kind, tmp_path / "broker")
    process = subprocess.Popen(broker.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = Ingests(tmp_path, broker.port, [named(0, 3), named(1, 3), named(1, 3, 1)])
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        yield found
    finally:
        for one in (*found.processes, process):
            one.kill()
            one.wait()


def wait(until: Callable[[], bool]) -> None:
    wait = Wait("what the ingests come to")
    while not until():
        wait.check()
        time.sleep(0.05)


def sent(device: TestDevice, port: int, acked: int = 0) -> int:
    """Send what is not acked; returns the term in the last ack."""

    async def run() -> int:
        async with linked(device, port, acked) as link:
            await link.send_until_acked()
            return link.acks[-1].term

    return asyncio.run(run())


@pytest.mark.slow
def test_two_share_a_fleet_and_a_newer_one_puts_an_end_to_the_first(
    ingests: Ingests, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = TestDevice(ingests.devices[0]), TestDevice(ingests.devices[1])
    third = TestDevice(ingests.devices[2])
    low, high = ingests.start(LOW, "low"), ingests.start(HIGH, "high")
    wait(lambda: all(ingests.status(buckets).get("connected") for buckets in (LOW, HIGH)))
    terms = set()
    for device in (first, second, third):
        device.schemas()
        device.quotes(*(float(number) for number in range(100)))
        terms.add(sent(device, ingests.port))
    assert terms == {1, 2}
    reader = LogReader(ingests.folder / "log")
    wait(lambda: flow_clock(reader) == 1_000)  # the partition without a device follows the other process

    def listed() -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["log", "devices", "--state", str(ingests.folder), "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    assert [(one["device"], one["seq"]) for one in listed()] == [(n, 2) for n in sorted(ingests.devices)]
    wait(lambda: all(one["last_contact"] for one in listed()))

    newer = ingests.start(LOW, "newer")
    assert low.wait(WAIT_S) == 3
    (sentence,) = [
        line
        for line in (ingests.folder / "low.log").read_text().splitlines()
        if line.startswith("gear-ingest: ")
    ]
    assert "another ingest has taken the ledger" in sentence
    assert "partition 0" in sentence
    for device in (first, second, third):
        device.quotes(100.0)
        device.end()
        assert (sent(device, ingests.port, acked=2) == 3) == (device is first)
    wait(lambda: flow_clock(reader) == END_OF_TIME)
    for process in (newer, high):
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    newest = reader.positions(FLOW)
    found = {
        key: [p for e in reader.entries(FLOW, key, 0, newest[key]) if e.count for p in _prices(reader, e)]
        for key in reader.keys()  # noqa: SIM118 (no mapping)
    }
    assert found["0"] == [float(number) for number in range(101)]
    assert sorted(found["1"]) == sorted(found["0"] * 2)
    assert found["2"] == []
    assert reader.counters()["records_logged"] == 303
    assert verify_log(reader.folder).damages == []


def _prices(reader: LogReader, entry: Any) -> list[Any]:
    return reader.table(entry).column("price").to_pylist()
