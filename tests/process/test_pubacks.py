"""`gear-ingest` and the downlink behind a broker whose pubacks are lost, though all else comes.

Neither stands still.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.flow.loading import load_flow
from geartrain.operators.deal import Deal
from geartrain.planning import make_plan
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.wire.topics import ROOT
from geartrain_cloud.downlink.downlink import Downlink
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_cloud.downlink.writer import DownChannel, OutboxWriter
from geartrain_cloud.log.reader import LogReader
from geartrain_examples.control_loop.flow import Minute
from tests.cloud.fleet import FLOW, TestDevice, prices
from tests.cloud.test_main import CONFIG, linked
from tests.process.brokers import Mosquitto
from tests.process.link import Direction
from tests.process.packets import Kind
from tests.process.proxy import Action, FaultProxy, Rule
from tests.rosters import document, put_flow
from tests.waiting import WAIT_S

BATCHES, PUBACK_S = 40, 1


@contextmanager
def running_ingest(folder: Path, device: TestDevice, port: int) -> Iterator[None]:
    path = folder / "ingest.toml"
    path.write_text(f"puback_ms = {PUBACK_S * 1_000}\n{CONFIG.format(port=port)}", encoding="utf-8")
    put_flow(folder / "log", FLOW, document({"quotes": (device.name,)}))
    command = [sys.executable, "-m", "geartrain_cloud.ingest.main", "--config", str(path)]
    with (folder / "ingest.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(timeout=WAIT_S) == 0


@asynccontextmanager
async def without_pubacks(folder: Path) -> AsyncIterator[tuple[Mosquitto, FaultProxy]]:
    broker = Mosquitto(folder)
    await broker.start()
    proxy = FaultProxy(broker.port, 1)
    proxy.rules = [Rule(Action.DROP, 1, frozenset({Kind.PUBACK}), Direction.DOWN)]
    await proxy.start()
    try:
        yield broker, proxy
    finally:
        await proxy.stop()
        broker.kill()


@pytest.mark.slow
@pytest.mark.mosquitto
def test_ingest_goes_on_where_pubacks_are_lost(tmp_path: Path) -> None:
    """A connection takes 20 publishes without puback: these are more, and each is answered."""
    device = TestDevice()

    async def run() -> None:
        async with without_pubacks(tmp_path) as (broker, proxy):
            with running_ingest(tmp_path, device, proxy.port):
                async with linked(device, broker.port) as link:
                    device.schemas()
                    await link.send_until_acked()
                    for count in range(BATCHES):
                        device.quotes(float(count))
                        await link.send_until_acked()  # within 40 s, or it fails
                await asyncio.sleep(1)
        assert proxy.counts[Action.DROP] >= BATCHES

    asyncio.run(run())
    assert prices(LogReader(tmp_path / "log")) == [float(count) for count in range(BATCHES)]
    status: dict[str, Any] = json.loads((tmp_path / "log" / "status.json").read_bytes())
    assert status["counters"]["connections_lost"] >= 1


@pytest.mark.slow
@pytest.mark.mosquitto
def test_the_sender_goes_on_where_pubacks_are_lost(tmp_path: Path) -> None:
    """More devices than a connection takes publishes without puback: each is asked where it stands."""
    devices = {f"tank-{number:02}" for number in range(BATCHES)}
    outbox = tmp_path / "outbox.sqlite"
    fill_outbox(outbox, sorted(devices))

    async def run() -> None:
        asked = set[str]()
        async with (
            without_pubacks(tmp_path) as (broker, proxy),
            AiomqttNet("127.0.0.1", broker.port).connect("devices") as connection,
        ):
            await connection.subscribe(f"{ROOT}/#")
            net = AiomqttNet("127.0.0.1", proxy.port, puback_timeout_s=PUBACK_S)
            downlink = Downlink(
                net, SystemClock(), SystemRandomness(), lambda flow, path: SqliteOutbox(path, flow)
            )
            downlink.follow({"control_loop": outbox})
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
                group.create_task(downlink.run())
                async for incoming in connection.incoming():
                    asked.add(incoming.topic)
                    if len(asked) == len(devices):
                        break
                downlink.stop()
        assert {device for device in devices if any(device in topic for topic in asked)} == devices

    asyncio.run(run())


def fill_outbox(path: Path, devices: list[str]) -> None:
    """One command for each device, as a driver writes it."""
    plan = make_plan(load_flow("geartrain_examples.control_loop.flow:flow").graph(), "edge")
    (channel,) = plan.down
    deal = plan.graph[channel.id].operator
    assert isinstance(deal, Deal)
    channels = {channel.id: DownChannel(deal, RowCodec(channel.kind), "keyed", is_timed=False)}
    outbox = OutboxWriter(
        path, plan.graph.name, channels, lambda: devices, lambda query, ends: 0, SystemRandomness()
    )
    outbox.attach("keyed", "checkpoint", has_run=False)
    minutes = [Minute(device, datetime(2026, 1, 1, tzinfo=UTC), 6.0) for device in devices]
    count = len(minutes)
    rows = ColumnBatch(
        RowCodec(Minute).to_columns(minutes), [0] * count, ["means"] * count, list(range(count)), None
    )
    outbox.write("keyed", 0, {}, {channel.id: [rows]})
    outbox.close()
