"""The broker: subscriptions, its faults, and connections that break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from geartrain.errors import NetError
from geartrain.ports import Connection
from geartrain_simulation.machine.broker import INBOX_MAX, SimBroker, matches
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.net import SimNet
from geartrain_simulation.machine.world import Process, World

PUBLISHES = 200


@pytest.mark.parametrize(
    ("topic_filter", "topic", "taken"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/+/c", "a/b/c", True),
        ("a/#", "a/b/c", True),
        ("#", "a", True),
        ("a/b/c", "a/b", False),
    ],
)
def test_topic_filters(topic_filter: str, topic: str, taken: bool) -> None:
    assert matches(topic_filter, topic) is taken


def exchange(faults: Faults, seed: int = 1, trouble: Callable[[SimBroker], None] | None = None) -> list[int]:
    """The numbers that a subscriber gets of those that a publisher sends, one each 10 ms."""
    world = World(seed)
    broker = SimBroker(world, faults)
    got: list[int] = []

    async def listen(process: Process) -> None:
        while True:
            try:
                async with SimNet(process, broker).connect("listener") as connection:
                    await connection.subscribe("numbers/+")
                    async for one in connection.incoming():
                        assert one.topic == "numbers/a"
                        got.append(int(one.payload))
            except NetError:
                await asyncio.sleep(0.05)

    async def publish(process: Process) -> None:
        await asyncio.sleep(0.1)
        async with SimNet(process, broker).connect("publisher") as connection:
            for number in range(PUBLISHES):
                await connection.publish("numbers/a", str(number).encode())
                await connection.publish("letters/a", b"not asked for")
                await asyncio.sleep(0.01)

    async def story() -> None:
        world.node("listener", listen).start()
        publisher = world.node("publisher", publish)
        publisher.start()
        if trouble is not None:
            world.later(1, trouble, broker)
        await publisher.finished
        await asyncio.sleep(20)

    world.run(story())
    world.close()
    return got


def test_without_faults_all_arrives_in_order() -> None:
    assert exchange(Faults()) == list(range(PUBLISHES))


def test_drop() -> None:
    got = exchange(Faults(drop=0.2))
    assert PUBLISHES * 0.4 < len(got) < PUBLISHES * 0.9
    assert got == sorted(set(got))


def test_duplicate() -> None:
    got = Counter(exchange(Faults(duplicate=0.2)))
    assert set(got) == set(range(PUBLISHES))
    assert max(got.values()) > 1


def test_reorder() -> None:
    got = exchange(Faults(reorder=0.2))
    assert got != sorted(got)
    assert sorted(got) == list(range(PUBLISHES))


def test_damage_flips_one_bit() -> None:
    world = World(1)
    broker = SimBroker(world, Faults(damage=1.0, damage_filter="bad/#"))
    got: list[tuple[str, bytes]] = []

    async def main(process: Process) -> None:
        async with SimNet(process, broker).connect("client") as connection:
            await connection.subscribe("#")
            for topic in ("good/a", "bad/a", "bad/b"):
                await connection.publish(topic, bytes(100))
                one = await anext(connection.incoming())
                got.append((one.topic, one.payload))

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await node.finished

    world.run(story())
    world.close()
    ones = [int.from_bytes(payload).bit_count() for _, payload in got]
    assert ones == [0, 1, 1]
    assert broker.counters == {"damage": 2}


def test_a_cut_loses_what_is_under_way_and_is_survived() -> None:
    faults = Faults(latency_s_max=0.001)
    got = exchange(faults, trouble=lambda broker: broker.cut("listener", 0.3))
    lost = set(range(PUBLISHES)) - set(got)
    assert 5 < len(lost) < 50
    assert max(lost) - min(lost) == len(lost) - 1


def test_silence_loses_without_a_word() -> None:
    got = exchange(Faults(), trouble=lambda broker: broker.silence("publisher", 0.5))
    lost = set(range(PUBLISHES)) - set(got)
    assert 20 < len(lost) < 80
    assert max(lost) - min(lost) == len(lost) - 1


def check_client_survives(world: World, act: Callable[[Connection, SimBroker], object]) -> None:
    broker = SimBroker(world)

    async def main(process: Process) -> None:
        async with SimNet(process, broker).connect("client") as connection:
            await connection.subscribe("a")
            act(connection, broker)
            with pytest.raises(NetError, match="the connection to the broker is gone"):
                await connection.publish("a", b"")
            with pytest.raises(NetError, match="the connection to the broker is gone"):
                await connection.subscribe("b")
            with pytest.raises(NetError, match="the connection to the broker is gone"):
                await anext(connection.incoming())
        with pytest.raises(NetError):
            async with SimNet(process, broker).connect("client"):
                pass
        await asyncio.sleep(5)
        async with SimNet(process, broker).connect("client") as connection:
            await connection.publish("a", b"")

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await node.finished

    world.run(story())


def test_a_crash_of_the_broker_breaks_connections_until_it_is_back(world: World) -> None:
    check_client_survives(world, lambda connection, broker: broker.crash(3))


def test_a_cut_breaks_the_connections_of_one_node(world: World) -> None:
    check_client_survives(world, lambda connection, broker: broker.cut("n", 3))


def test_a_waiting_reader_hears_of_the_break(world: World) -> None:
    broker = SimBroker(world)

    async def main(process: Process) -> None:
        async with SimNet(process, broker).connect("client") as connection:
            world.later(1, broker.crash, 1)
            with pytest.raises(NetError, match="the broker is down"):
                await anext(connection.incoming())

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await node.finished

    world.run(story())


def test_a_second_client_of_one_id_throws_the_first_out(world: World) -> None:
    broker = SimBroker(world)

    async def main(process: Process) -> None:
        net = SimNet(process, broker)
        async with net.connect("same") as first, net.connect("same") as second:
            with pytest.raises(NetError, match="another client took the id same"):
                await first.publish("a", b"")
            await second.publish("a", b"")

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await node.finished

    world.run(story())


def test_the_dead_are_disconnected_and_what_waits_for_a_slow_client_is_bounded(world: World) -> None:
    broker = SimBroker(world)

    async def sleeper(process: Process) -> None:
        async with SimNet(process, broker).connect("sleeper") as connection:
            await connection.subscribe("a")
            await asyncio.sleep(1_000)

    async def publisher(process: Process) -> None:
        await asyncio.sleep(1)
        async with SimNet(process, broker).connect("publisher") as connection:
            for _ in range(INBOX_MAX + 5):
                await connection.publish("a", b"")
            await asyncio.sleep(1)
            assert broker.counters == {"overflow": 5}
            world.nodes["sleeper"].crash()
            await connection.publish("a", b"")
            await asyncio.sleep(0.01)
            assert broker.counters == {"overflow": 5}

    async def story() -> None:
        world.node("sleeper", sleeper, restart_s=(10, 10)).start()
        node = world.node("publisher", publisher)
        node.start()
        await node.finished

    world.run(story())
