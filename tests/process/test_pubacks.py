"""`gear-ingest` behind a broker whose pubacks are lost, though all else comes: it does not stand still."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.log.reader import LogReader
from tests.cloud.fleet import TestDevice, prices
from tests.cloud.test_main import CONFIG, linked
from tests.process.brokers import Mosquitto
from tests.process.link import Direction
from tests.process.packets import Kind
from tests.process.proxy import Action, FaultProxy, Rule

BATCHES, PUBACK_S = 40, 1


@contextmanager
def gear_ingest(folder: Path, port: int) -> Iterator[None]:
    path = folder / "ingest.toml"
    text = f"puback_ms = {PUBACK_S * 1_000}\n{CONFIG.format(port=port)}"
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "geartrain_cloud.ingest.main", "--config", str(path)]
    with (folder / "ingest.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


@pytest.mark.slow
def test_ingest_goes_on_where_pubacks_are_lost(tmp_path: Path) -> None:
    """A connection takes 20 publishes without puback: these are more, and each is answered."""
    device = TestDevice()

    async def run() -> None:
        broker = Mosquitto(tmp_path)
        await broker.start()
        proxy = FaultProxy(broker.port, 1)
        proxy.rules = [Rule(Action.DROP, 1, frozenset({Kind.PUBACK}), Direction.DOWN)]
        await proxy.start()
        try:
            with gear_ingest(tmp_path, proxy.port):
                async with linked(device, broker.port) as link:
                    device.schemas()
                    await link.send_until_acked()
                    for count in range(BATCHES):
                        device.quotes(float(count))
                        await link.send_until_acked()  # within 40 s, or it fails
                await asyncio.sleep(1)
        finally:
            await proxy.stop()
            broker.kill()
        assert proxy.counts[Action.DROP] >= BATCHES

    asyncio.run(run())
    assert prices(LogReader(tmp_path / "log")) == [float(count) for count in range(BATCHES)]
    status: dict[str, Any] = json.loads((tmp_path / "log" / "status.json").read_bytes())
    assert status["counters"]["connections_lost"] >= 1
