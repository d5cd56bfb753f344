"""The connection to real brokers: what is published arrives in order, and a killed one is a `NetError`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.errors import NetError
from geartrain.ports.net import Connection, Incoming
from geartrain.wire.limits import LIMITS
from geartrain.wire.topics import ack_topic, up_filter, up_topic
from tests.adapters.conftest import RunningBroker
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test within 60 s."""

    async def whole() -> None:
        async with asyncio.timeout(WAIT_S):
            await test

    asyncio.run(whole())


async def receive(connection: Connection, count: int) -> list[Incoming]:
    received = connection.incoming()
    return [await anext(received) for _ in range(count)]


def test_batches_go_up_and_acks_come_down(real_broker: RunningBroker) -> None:
    net = AiomqttNet(real_broker.host, real_broker.port)
    up, ack = up_topic("device-1", "stocks"), ack_topic("device-1", "stocks")
    batches = [b"%d" % number for number in range(300)] + [bytes(LIMITS.payload_bytes_max), b""]

    async def test() -> None:
        async with net.connect("ingest") as ingest, net.connect("device-1") as agent:
            await ingest.subscribe(up_filter())
            await agent.subscribe(ack)
            arriving = asyncio.create_task(receive(ingest, len(batches)))
            for batch in batches:
                await agent.publish(up, batch)
            assert await arriving == [Incoming(up, batch) for batch in batches]
            await ingest.publish(ack, b"ack")
            assert await receive(agent, 1) == [Incoming(ack, b"ack")]

    run(test())
    assert net.counters == {"incoming_dropped": 0}


def test_killed_broker_breaks_both_ways(real_broker: RunningBroker) -> None:
    net = AiomqttNet(real_broker.host, real_broker.port)

    async def test() -> None:
        async with net.connect("agent") as agent:
            await agent.subscribe("a")
            reading = asyncio.create_task(receive(agent, 1))
            await asyncio.sleep(0.1)
            real_broker.process.kill()
            with pytest.raises(NetError, match="the connection was lost"):
                await reading
            with pytest.raises(NetError, match="the connection was lost"):
                await agent.publish("a", b"")
        with pytest.raises(NetError, match="cannot connect"):
            async with net.connect("agent"):
                raise AssertionError

    run(test())


def test_a_task_that_subscribes_is_cancelled_at_whatever_turn_of_the_loop(
    real_broker: RunningBroker,
) -> None:
    """The library waits for answers with `asyncio.wait_for`, which loses cancellations on Python 3.11."""
    net = AiomqttNet(real_broker.host, real_broker.port)

    async def subscribe_for_ever(agent: Connection) -> None:
        while True:
            await agent.subscribe("a")

    async def test() -> None:
        async with net.connect("agent") as agent:
            for turns in range(60):
                task = asyncio.create_task(subscribe_for_ever(agent))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()

    run(test())


def test_client_of_the_same_name_takes_over(real_broker: RunningBroker) -> None:
    net = AiomqttNet(real_broker.host, real_broker.port)

    async def test() -> None:
        async with net.connect("device-1") as first:
            await first.subscribe("a")
            # mosquitto hangs up on the first, amqtt lets it be: the second has to work in both cases.
            async with net.connect("device-1") as second:
                await second.subscribe("a")
                await second.publish("a", b"mine")
                assert await receive(second, 1) == [Incoming("a", b"mine")]

    run(test())


def test_session_is_clean(real_broker: RunningBroker) -> None:
    net = AiomqttNet(real_broker.host, real_broker.port)

    async def test() -> None:
        async with net.connect("device-1") as first:
            await first.subscribe("a")
        async with net.connect("other") as other, net.connect("device-1") as again:
            await other.publish("a", b"while away")
            await again.subscribe("b")
            await again.publish("b", b"now")
            assert await receive(again, 1) == [Incoming("b", b"now")]

    run(test())
