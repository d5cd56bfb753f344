"""A hello that comes late: it is offered another ordinal, and closes nothing that began after it."""

from __future__ import annotations

from pathlib import Path

from geartrain.ports import SplitProgress
from geartrain.wire.envelope import Offer
from tests.cloud.fleet import FLOW, Running, TestDevice, prices
from tests.cloud.test_protocol import play


def offers(world: Running, device: TestDevice) -> list[Offer]:
    """What the hellos of an epoch were offered."""
    return [c for c in world.net.controls(device) if isinstance(c, Offer) and c.epoch == device.epoch]


def test_a_late_hello_opens_nothing(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        never = TestDevice(epoch=b"never---")
        world.net.deliver(device.topic, device.hello(1), device.schemas(), device.quotes(1.0))
        await world.net.acked(device)
        world.net.deliver(device.topic, never.hello(1))
        await world.net.until(lambda: bool(offers(world, never)))
        assert offers(world, never) == [Offer(FLOW, never.epoch, 2, 1)]
        world.net.deliver(device.topic, device.quotes(2.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0]
    counters = reader.counters()
    assert (counters["epochs_opened"], counters["offers_sent"], counters["hellos"]) == (1, 1, 2)
    assert reader.cursors(FLOW)[0].ordinal == 1


def test_who_takes_the_offer_is_welcomed_and_who_took_it_before_is_not_closed_by_an_older_one(
    tmp_path: Path,
) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.hello(1), device.schemas(), device.quotes(1.0))
        await world.net.acked(device)
        lost, fresh = TestDevice(epoch=b"epoch--2"), TestDevice(epoch=b"epoch--3")
        world.net.deliver(fresh.topic, fresh.hello(1))
        await world.net.until(lambda: bool(offers(world, fresh)))
        world.net.deliver(fresh.topic, fresh.hello(2), fresh.hello(2))
        await world.net.until(lambda: bool(world.net.welcomes(fresh)))
        assert world.net.welcomes(fresh)[0].positions == {("quotes", "device-1"): SplitProgress(1, 10)}
        # The spool that was offered the same ordinal, and never heard so, is gone; its hello was slow.
        world.net.deliver(lost.topic, lost.hello(2))
        await world.net.until(lambda: bool(offers(world, lost)))
        assert offers(world, lost)[0].ordinal == 3
        fresh.time, fresh.number = 10, 1
        world.net.deliver(fresh.topic, fresh.schemas(), fresh.quotes(2.0))
        await world.net.acked(fresh)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0]
    assert (reader.cursors(FLOW)[0].ordinal, reader.cursors(FLOW)[0].epoch) == (2, b"epoch--3")
