"""A false `partitioned_by`: counted, named with both devices, in bounded memory, and nothing else changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.system import SystemClock
from geartrain.records.record import Record
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_client.cli import main
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.domains import STRAYS_MAX, Domains
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.streams import DeviceStream
from geartrain_cloud.inspecting.devices import describe_devices
from geartrain_cloud.log.reader import LogReader
from tests.cloud.fleet import FLOW, QUOTE, TestDevice, make_config, running
from tests.rosters import document, put_flow

DEVICES = ("device-1", "device-2")


def claiming(folder: Path, fields: Mapping[str, str]) -> IngestConfig:
    """Two devices, whose flow claims that each value of a field lives on one of them."""
    config = make_config(folder, DEVICES)
    put_flow(folder, FLOW, document({"quotes": DEVICES}, partitioned_by=fields))
    return config


def quotes(device: TestDevice, *symbols: str) -> bytes:
    numbers = list(range(device.number, device.number + len(symbols)))
    device.number += len(symbols)
    times = [device.time + 10 * (n + 1) for n in range(len(symbols))]
    device.time = times[-1]
    columns: list[list[Any]] = [list(symbols), [1.0] * len(symbols)]
    rows = ColumnBatch(columns, times, [device.name] * len(symbols), numbers)
    return device.rows("quotes", QUOTE.schema, rows)


def run(config: IngestConfig, first: tuple[str, ...], second: tuple[str, ...]) -> dict[str, Any]:
    """Let two devices send quotes of these symbols, one device after the other; returns the status."""

    async def work() -> None:
        one, two = TestDevice(), TestDevice("device-2", b"epoch--2")
        async with running(config) as world:
            for device, symbols in ((one, first), (two, second)):
                world.net.deliver(device.topic, device.schemas(), quotes(device, *symbols))
                await world.net.acked(device)

    asyncio.run(work())
    found: dict[str, Any] = json.loads((config.log / "status.json").read_bytes())
    return found


def test_a_value_from_two_devices_is_counted_and_named_and_logged_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(
        claiming(tmp_path, {"quotes": "symbol"}), ("AAPL", "IBM", "AAPL"), ("MSFT", "IBM", "IBM", "\x1b[2J")
    )
    assert status["flows"][FLOW]["misplaced"] == [
        {"field": "symbol", "value": "IBM", "devices": ["device-1", "device-2"], "rows": 2}
    ]
    counters = LogReader(tmp_path).counters()
    assert counters["misplaced_records"] == 2
    assert counters["records_logged"] == 7, "nothing is kept out of the log"
    assert "symbol 'IBM' came from device-1 and from device-2" in caplog.text
    one, two = describe_devices(tmp_path)
    assert one["misplaced"] == two["misplaced"] == status["flows"][FLOW]["misplaced"]
    assert main(["log", "devices", "--state", str(tmp_path)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("alarm")]
    (alarm,) = said
    assert alarm.startswith(
        "alarm: flow stocks: symbol 'IBM' came from the devices device-1 and device-2 (2 rows"
    )
    assert 'its source says partitioned_by="symbol": give each symbol to one device, or leave' in alarm


@pytest.mark.parametrize(
    ("fields", "second"),
    [
        ({"quotes": "symbol"}, ("MSFT", "GOOG")),  # the claim holds
        ({}, ("AAPL", "IBM")),  # there is none
        ({"quotes": "street"}, ("AAPL", "IBM")),  # the channel does not carry the field
    ],
)
def test_no_alarm_without_a_false_claim(
    tmp_path: Path, fields: dict[str, str], second: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(claiming(tmp_path, fields), ("AAPL", "IBM"), second)
    assert status["flows"][FLOW]["misplaced"] == []
    assert status["counters"]["misplaced_records"] == 0
    assert main(["log", "devices", "--state", str(tmp_path)]) == 0
    assert "alarm" not in capsys.readouterr().out


class Pass(Record):
    street: str | None
    car: int


PASS = RowCodec(Pass)


class Watched:
    """Domains over two channels of one flow that share the field `street`."""

    def __init__(self, values_max: int = 100) -> None:
        told = document(
            {"passes": ("a", "b"), "loops": ("a", "b")},
            partitioned_by={"passes": "street", "loops": "street"},
        )
        self.counters = Counters({})
        self.domains = Domains(
            {"traffic": FollowedFlow.of(told)}, self.counters, Alarm(SystemClock()), values_max
        )

    def send(self, device: str, channel: str, *streets: str | None) -> None:
        columns: list[list[Any]] = [list(streets), list(range(len(streets)))]
        rows = ColumnBatch(columns, [0] * len(streets), [device] * len(streets), list(range(len(streets))))
        stream = DeviceStream(device, "traffic", (channel,), (channel,))
        self.domains.watch(stream, channel, PASS.schema, rows)

    @property
    def misplaced(self) -> int:
        return self.counters[Counter.MISPLACED_RECORDS]


def test_two_sources_share_a_domain() -> None:
    world = Watched()
    world.send("a", "passes", "main", "side", None)
    world.send("b", "loops", "other", None)
    assert world.misplaced == 0, "a null is no value"
    world.send("b", "loops", "main", "other", "main")
    assert world.misplaced == 2
    world.send("a", "loops", "other")
    assert world.misplaced == 3
    assert [(one["value"], one["devices"], one["rows"]) for one in world.domains.strays("traffic")] == [
        ("main", ["a", "b"], 2),
        ("other", ["b", "a"], 1),
    ]
    assert world.domains.strays("stocks") == []


def test_memory_is_bounded_whatever_is_sent() -> None:
    world = Watched(values_max=100)
    for start in range(0, 1_000, 50):
        world.send("a", "passes", *(f"street {n}" for n in range(start, start + 50)))
    homes = world.domains._homes["traffic", "street"]
    assert len(homes) == 100
    assert world.counters[Counter.PARTITION_VALUES_FORGOTTEN] == 900
    world.send("b", "passes", "street 3", "street 999")
    assert world.misplaced == 1, "street 3 was forgotten, street 999 was not"
    world.send("a", "passes", *(f"{n:05}{'x' * 10_000}" for n in range(100)))
    assert sum(len(str(value)) for value in homes) < 100 * 100
    world.send("b", "passes", *(f"{n:05}{'x' * 10_000}" for n in range(100)))
    assert world.misplaced == 101
    strays = world.domains.strays("traffic")
    assert len(strays) == STRAYS_MAX
    assert max(len(one["value"]) for one in strays) <= 64


def test_text_of_a_device_is_escaped() -> None:
    world = Watched()
    world.send("a", "passes", "\x1b[2Jmain")
    world.send("b", "passes", "\x1b[2Jmain")
    assert world.domains.strays("traffic")[0]["value"] == "\\x1b[2Jmain"
