"""A broker that takes batches from devices and answers from nobody: ingest does not wait for its pubacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from geartrain_cloud.ingest.counters import Counter
from tests.cloud.fleet import LoopNet, TestDevice, make_config, prices, running

SILENCE_S = 0.4


class PubacklessNet(LoopNet):
    """Each connection takes so many answers, and leaves the next one waiting for room for ever."""

    def __init__(self, room: int, pause_s: float = 0.0) -> None:
        super().__init__()
        self._room, self._pause_s, self._left = room, pause_s, 0

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[LoopNet]:
        async with super().connect(client_id) as connection:
            self._left = self._room
            yield connection

    async def publish(self, topic: str, payload: bytes) -> None:
        if not self._left:
            await asyncio.Event().wait()
        self._left -= 1
        await asyncio.sleep(self._pause_s)
        await super().publish(topic, payload)


def test_a_connection_that_takes_no_answer_any_more_is_made_anew(tmp_path: Path) -> None:
    net, device = PubacklessNet(room=2), TestDevice()

    async def run() -> None:
        config = make_config(tmp_path, silence_ms=int(SILENCE_S * 1_000))
        async with running(config, net) as world:
            net.deliver(device.topic, device.hello(), device.schemas())
            for count in range(1, 4):
                net.deliver(device.topic, device.quotes(float(count)))
                while not any(ack.seq == device.seq for ack in net.acks(device)):
                    await asyncio.sleep(SILENCE_S / 4)
                    net.deliver(device.topic, device.payload(device.seq))  # as devices do without an ack
            assert net.connections >= 2
            assert world.ingest.counter(Counter.CONNECTIONS_LOST) == net.connections - 1
            assert prices(world.reader) == [1.0, 2.0, 3.0]

    asyncio.run(run())


def test_a_connection_that_takes_answers_slowly_is_kept(tmp_path: Path) -> None:
    """Each comes in time, though all of them together take longer than that."""
    devices = [TestDevice(f"device-{n}") for n in range(12)]
    net = PubacklessNet(room=1_000, pause_s=SILENCE_S / 4)

    async def run() -> float:
        names = tuple(device.name for device in devices)
        async with running(make_config(tmp_path, names, silence_ms=int(SILENCE_S * 1_000)), net):
            began_s = time.monotonic()
            for device in devices:
                net.deliver(device.topic, device.hello(), device.schemas(), device.quotes(1.0))
            for device in devices:
                await net.acked(device)
            assert net.connections == 1
            return time.monotonic() - began_s

    assert asyncio.run(run()) > 2 * SILENCE_S
