"""An urgent flow beside another's backlog, on one device: how long an alarm takes from birth to ingest's ack.

Both flows are apps of one real parent, each a process of its own, before a real broker and ingest. alone:
only the urgent one runs; beside: another reads and sends as fast as it can; beside, not urgent: as beside,
where nobody gives way. They take turns, so that what disturbs one disturbs all.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.control.states import App
from geartrain.wire.codec import decode_control, decode_envelope, decode_header
from geartrain.wire.envelope import Ack
from geartrain.wire.topics import ack_topic, up_topic
from geartrain_cloud.broker import choose_broker, wait_until_ready
from tests.bench.harness import ROOT, SIZE, Work, scaled
from tests.bench.urgent_flows import SECOND_US
from tests.edge.device_parent import Device, Platform
from tests.rosters import document, put_flow

ROUNDS = 5 if SIZE > 0.01 else 1
ALARMS = scaled(2_000, least=100) // ROUNDS
"""Of each way and round."""
SETTLE_S, CALM_S = 1.0, 1.5
TARGET = 1.5


WAYS = {
    "alone": (True, ["alarms"]),
    "beside": (True, ["alarms", "bulk"]),
    "beside, not urgent": (False, ["alarms", "bulk"]),
}
"""Whether the alarms are urgent, and what runs."""


def app(flow: str) -> App:
    """One of the two flows."""
    return App(f"{flow}.1", f"tests.bench.urgent_flows:{flow}", cut="cloud")


def test_an_urgent_flow_beside_a_backlog(tmp_path: Path) -> None:
    took: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    with running(tmp_path, {"alarms.1": ("pressed",), "bulk.1": ("sensed",)}) as device:
        device.run(lambda platform: _story(platform, device, took))
    ways = {name: iter(rounds) for name, rounds in took.items()}
    work = Work(
        f"alarms beside a backlog, birth to ack, p95 of {ALARMS} a round (less is better)",
        "ms",
        {name: partial(_next_p95, rounds) for name, rounds in ways.items()},
        "alone",
        goals={"beside": {"alone": TARGET}},
    )
    for name, rounds in took.items():
        every = list(chain.from_iterable(rounds))
        work.notes.append(
            f"{name}: p50 {statistics.median(every):.1f} ms, p95 {_p95(every):.1f} ms, {len(every)}"
        )
    work.run(rounds=ROUNDS)
    assert all(len(one) >= ALARMS for rounds in took.values() for one in rounds)


def _next_p95(rounds: Iterator[list[float]]) -> float:
    return _p95(next(rounds))


def _p95(took: list[float]) -> float:
    return statistics.quantiles(took, n=20)[-1]


async def _story(platform: Platform, device: Device, took: dict[str, list[list[float]]]) -> None:
    head = device.file.read_text().partition("[apps")[0]
    async with asyncio.TaskGroup() as group:
        meters = {name: Meter(device, f"{name}.1") for name in ("alarms", "bulk")}
        watching = [group.create_task(meter.run()) for meter in meters.values()]
        for _ in range(ROUNDS):
            for way, (is_urgent, names) in WAYS.items():
                urgent = "[apps.alarms]\nurgent = true\n" if is_urgent else ""
                device.file.write_text(head + urgent)
                platform.want(*map(app, names))
                parent = device.start()
                before = {name: meters[name].acked for name in names}
                await platform.until(partial(_have_moved, meters, before))
                await asyncio.sleep(SETTLE_S)
                took[way].append(await meters["alarms"].measure(ALARMS))
                parent.kill()
                await asyncio.to_thread(parent.communicate)
                await _until_calm(meters)
        for task in watching:
            task.cancel()


async def _until_calm(meters: Mapping[str, Meter]) -> None:
    """Wait until ingest has dealt with what was on its way, so that the next way does not wait for it."""
    acked = -1
    for _ in range(40):
        before, acked = acked, sum(meter.acked for meter in meters.values())
        if before == acked:
            return
        await asyncio.sleep(CALM_S)
    raise AssertionError("ingest does not come to rest")


def _have_moved(meters: Mapping[str, Meter], before: Mapping[str, int]) -> bool:
    return all(meters[name].acked > acked for name, acked in before.items())


class Meter:
    """Hears what one app publishes and what ingest answers, and tells how long each alarm took."""

    def __init__(self, device: Device, name: str) -> None:
        self._net, self._topics = (
            AiomqttNet(*device.address),
            (up_topic("truck-1", name), ack_topic("truck-1", name)),
        )
        self._born: dict[int, tuple[int, int]] = {}
        self._took: list[float] = []
        self.acked = 0

    async def measure(self, count: int) -> list[float]:
        """How long so many of the next alarms take, milliseconds."""
        self._took = []
        async with asyncio.timeout(60 + count / 5):
            while len(self._took) < count:  # noqa: ASYNC110 - what is waited for is in other processes
                await asyncio.sleep(0.05)
        return self._took[:]

    async def run(self) -> None:
        """Listen until cancelled."""
        up, ack = self._topics
        async with self._net.connect(f"meter-{up}") as connection:
            await connection.subscribe(up)
            await connection.subscribe(ack)
            async for incoming in connection.incoming():
                if incoming.topic == up:
                    self._sent(incoming.payload)
                elif isinstance(control := decode_control(incoming.payload), Ack):
                    self._heard(control)

    def _sent(self, payload: bytes) -> None:
        header = decode_header(decode_envelope(payload).header)
        if header.count:
            self._born.setdefault(header.seq, (header.watermarks.get("pressed", 0), header.count))

    def _heard(self, ack: Ack) -> None:
        now_us = time.time() * SECOND_US
        for seq in [seq for seq in self._born if seq <= ack.seq]:
            born_us, count = self._born.pop(seq)
            self.acked += count
            self._took += [(now_us - born_us) / 1_000] * count


@contextmanager
def running(folder: Path, flows: Mapping[str, Sequence[str]]) -> Iterator[Device]:
    """A broker, ingest and a device; flows: by instance, its source and the channels behind that, or none."""
    broker = choose_broker("auto", folder)
    started: list[subprocess.Popen[Any]] = []
    device = None
    try:
        started.append(subprocess.Popen(broker.command))
        wait_until_ready(broker.host, broker.port, timeout_s=60)
        device = Device(folder, broker.address)
        for name, (source, *channels) in flows.items():
            above = {(channels or [source])[0]: (source,)}
            put_flow(folder / "log", name, document({source: ("truck-1",)}, above, bounded=False))
        config = folder / "ingest.toml"
        config.write_text(f'log = "{folder / "log"}"\nbroker = "{broker.address}"\n')
        ingest = [sys.executable, "-m", "geartrain_cloud.ingest.main", "--config", str(config)]
        started.append(subprocess.Popen(ingest, cwd=ROOT, stderr=subprocess.DEVNULL))
        yield device
    finally:
        for process in [*([] if device is None else device.parents), *reversed(started)]:
            process.kill()
            process.wait()
