"""What the simulator has found in ingest alone, told to it batch by batch."""

from __future__ import annotations

import asyncio
from pathlib import Path

from geartrain_cloud.ingest.counters import Counter
from tests.cloud.fleet import TestDevice, make_config, running


def test_a_first_batch_that_comes_twice_before_it_is_durable_is_not_acked_as_batch_0(tmp_path: Path) -> None:
    """A hello opens an epoch whose durable cursor stands at 0: that was sent as an ack, which has no 0, and
    ingest died of it, again and again.
    """

    async def story() -> None:
        async with running(make_config(tmp_path, group_commit_ms=100)) as world:
            device = TestDevice()
            world.net.deliver(device.topic, device.hello())
            await world.net.until(lambda: bool(world.net.welcomes(device)))
            first = device.schemas()
            world.net.deliver(device.topic, first, first)
            await world.net.acked(device)
            await world.counted(Counter.DUPLICATES, 1)
            assert [ack.seq for ack in world.net.acks(device)] == [1]

    asyncio.run(story())
