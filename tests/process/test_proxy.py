"""The fault proxy over a real mosquitto: each fault does what it says, and is in the trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import pytest

from tests.process import link
from tests.process.brokers import Mosquitto
from tests.process.link import Direction
from tests.process.packets import FramingError, Kind, Packet, parse, read_packet
from tests.process.proxy import LOOPBACK, Action, FaultProxy, Rule, seen
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

Body = Callable[[FaultProxy], Awaitable[None]]


def run(folder: Path, body: Body, seed: int = 1) -> FaultProxy:
    """Run a test behind a proxy before a broker of its own; returns the proxy."""

    async def limited() -> FaultProxy:
        async with asyncio.timeout(WAIT_S):
            broker = Mosquitto(folder)
            await broker.start()
            proxy = FaultProxy(broker.port, seed)
            await proxy.start()
            try:
                await body(proxy)
            finally:
                await proxy.stop()
                broker.kill()
            return proxy

    return asyncio.run(limited())


def client(proxy: FaultProxy, name: str, **more: object) -> aiomqtt.Client:
    return aiomqtt.Client(LOOPBACK, proxy.port, identifier=name, **more)  # type: ignore[arg-type]


@asynccontextmanager
async def listening(proxy: FaultProxy) -> AsyncIterator[aiomqtt.Client]:
    """A client that hears all, straight from the broker: no fault is on its way."""
    async with aiomqtt.Client(LOOPBACK, proxy.broker_port, identifier="ear") as ear:
        await ear.subscribe("#", qos=1)
        yield ear


async def heard(ear: aiomqtt.Client, count: int) -> list[bytes]:
    found: list[bytes] = []
    async for one in ear.messages:
        found.append(bytes(one.payload))
        if len(found) == count:
            break
    return found


@pytest.mark.mosquitto
@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
def test_both_versions_pass_unchanged(version: aiomqtt.ProtocolVersion, tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        async with listening(proxy) as ear, client(proxy, "mouth", protocol=version) as mouth:
            for number in range(20):
                await mouth.publish("a/b", bytes([number]) * 1_000 * number, qos=number % 3)
            assert sorted(await heard(ear, 20)) == [bytes([n]) * 1_000 * n for n in range(20)]

    proxy = run(tmp_path, body)
    ups = seen(list(proxy.trace), Kind.PUBLISH, Direction.UP)
    assert {step.topic for step in ups} == {"a/b"}
    assert [bool(step.packet_id) for step in ups] == [n % 3 > 0 for n in range(20)]
    assert set(proxy.counts) == {Action.PASS}
    assert {step.kind for step in proxy.trace} >= {Kind.CONNECT, Kind.CONNACK, Kind.PUBREC, Kind.PUBCOMP}


@pytest.mark.mosquitto
def test_drop_and_duplicate_by_topic(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        publish = frozenset({Kind.PUBLISH})
        proxy.rules = [
            Rule(Action.DROP, 1, publish, Direction.UP, "lost/*"),
            Rule(Action.DUPLICATE, 1, publish, Direction.UP, "twice"),
        ]
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            for topic in ("lost/1", "twice", "lost/2", "once"):
                await mouth.publish(topic, topic.encode(), qos=0)
            assert await heard(ear, 3) == [b"twice", b"twice", b"once"]

    proxy = run(tmp_path, body)
    assert proxy.counts[Action.DROP] == 2
    assert proxy.counts[Action.DUPLICATE] == 1


@pytest.mark.mosquitto
def test_a_lost_puback_is_the_clients_to_wait_for(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        proxy.rules = [Rule(Action.DROP, 1, frozenset({Kind.PUBACK}), Direction.DOWN, times=1)]
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            with pytest.raises(aiomqtt.MqttError):
                await mouth.publish("t", b"1", qos=1, timeout=0.5)
            await mouth.publish("t", b"2", qos=1)
            assert await heard(ear, 2) == [b"1", b"2"]

    assert run(tmp_path, body).counts[Action.DROP] == 1


@pytest.mark.mosquitto
def test_reorder_swaps_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(proxy: FaultProxy) -> None:
        moment_s = link.REORDER_S
        monkeypatch.setattr(link, "REORDER_S", 60.0)  # however long the next one takes to come
        proxy.rules = [Rule(Action.REORDER, 1, frozenset({Kind.PUBLISH}), Direction.UP, "first", 1)]
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            for topic in ("first", "second", "third"):
                await mouth.publish(topic, topic.encode(), qos=0)
            found = await heard(ear, 3)
            assert found.index(b"first") > found.index(b"second")
            monkeypatch.setattr(link, "REORDER_S", moment_s)
            proxy.rules = [Rule(Action.REORDER, 1, topic="alone")]
            await mouth.publish("alone", b"alone", qos=0)
            assert await heard(ear, 1) == [b"alone"]  # it is not held for what never comes

    run(tmp_path, body)


@pytest.mark.mosquitto
def test_delay_lets_others_pass(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        proxy.rules = [Rule(Action.DELAY, 1, topic="slow", delay_s=3.0)]
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            for number in range(5):
                await mouth.publish("slow", b"s%d" % number, qos=0)
            await mouth.publish("quick", b"q", qos=0)
            found = await heard(ear, 6)
            assert sorted(found) == [b"q", b"s0", b"s1", b"s2", b"s3", b"s4"]
            assert found != [b"s0", b"s1", b"s2", b"s3", b"s4", b"q"]

    assert run(tmp_path, body).counts[Action.DELAY] == 5


@pytest.mark.mosquitto
def test_silence_swallows_one_way_only(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            proxy.silence(Direction.DOWN)
            with pytest.raises(aiomqtt.MqttError):
                await mouth.publish("t", b"heard, and no answer comes", qos=1, timeout=0.5)
            assert await heard(ear, 1) == [b"heard, and no answer comes"]
            proxy.heal()
            proxy.silence(Direction.UP)
            await mouth.publish("t", b"never heard", qos=0)
            await asyncio.sleep(0.2)
            proxy.heal()
            await mouth.publish("t", b"heard", qos=0)
            assert await heard(ear, 1) == [b"heard"]

    assert run(tmp_path, body).counts[Action.SILENCE] >= 2


@pytest.mark.mosquitto
def test_stall_keeps_and_releases_in_order(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            proxy.stall()
            for number in range(50):
                await mouth.publish("t", b"%d" % number, qos=0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await heard(ear, 1)
            proxy.heal()
            assert await heard(ear, 50) == [b"%d" % number for number in range(50)]

    run(tmp_path, body)


@pytest.mark.mosquitto
def test_throttle_takes_the_time_that_the_bytes_need(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            proxy.throttle(20_000, Direction.UP)
            began_s = asyncio.get_running_loop().time()
            await mouth.publish("t", bytes(20_000), qos=0)
            assert await heard(ear, 1) == [bytes(20_000)]
            assert asyncio.get_running_loop().time() - began_s >= 0.9

    run(tmp_path, body)


@pytest.mark.mosquitto
def test_cut_and_refuse_break_connections_and_heal(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        async with listening(proxy) as ear:
            async with client(proxy, "mouth") as mouth:
                proxy.rules = [Rule(Action.CUT, 1, frozenset({Kind.PUBLISH}), times=1)]
                with pytest.raises(aiomqtt.MqttError):
                    await mouth.publish("t", b"cut off", qos=1, timeout=5)
            proxy.refuse()
            with pytest.raises(aiomqtt.MqttError):
                async with client(proxy, "mouth", timeout=5):
                    pytest.fail("a connection was taken")
            proxy.refuse(on=False)
            async with client(proxy, "mouth") as mouth:
                await mouth.publish("t", b"back", qos=1)
            assert await heard(ear, 1) == [b"back"]

    assert run(tmp_path, body).counts[Action.CUT] >= 1


@pytest.mark.mosquitto
def test_the_same_seed_chooses_the_same_packets(tmp_path: Path) -> None:
    async def body(proxy: FaultProxy) -> None:
        proxy.rules = [Rule(Action.DROP, 0.5, frozenset({Kind.PUBLISH}), Direction.UP)]
        async with client(proxy, "mouth") as mouth:
            for number in range(40):
                await mouth.publish(f"t/{number}", b"", qos=0)

    def fates(seed: int) -> list[Action]:
        trace = run(tmp_path / str(seed), body, seed).trace
        return [step.action for step in seen(list(trace), Kind.PUBLISH, Direction.UP)]

    chosen = fates(7)
    assert chosen == fates(7)
    assert chosen != fates(8)
    assert {Action.DROP, Action.PASS} == set(chosen)


@pytest.mark.mosquitto
def test_what_is_held_is_bounded_and_comes_whole(tmp_path: Path) -> None:
    size, count = 1 << 20, 32

    async def body(proxy: FaultProxy) -> None:
        async with listening(proxy) as ear, client(proxy, "mouth") as mouth:
            proxy.stall(Direction.UP)
            payloads = [bytes([number]) * size for number in range(count)]
            sending = [mouth.publish("t", payload, qos=0, timeout=WAIT_S) for payload in payloads]
            sent = asyncio.gather(*sending)
            await asyncio.sleep(0.5)
            held = sum(step.size for step in seen(list(proxy.trace), Kind.PUBLISH, Direction.UP))
            assert held < 8 * size  # the rest waits in the client, behind a full socket
            proxy.heal()
            assert await heard(ear, count) == payloads
            await sent

    run(tmp_path, body)


def decoded(data: bytes) -> Packet | None:
    async def fed() -> Packet | None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await read_packet(reader)

    return asyncio.run(fed())


@pytest.mark.parametrize(
    "data",
    [b"\x00\x00", b"\x30\xff\xff\xff\xff\x01", b"\x30\x05\x00", b"\x30\x01\x00", b"\x40\x01\x00", b"\x30"],
)
def test_what_is_no_mqtt_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(FramingError):
        decoded(data)


def test_a_packet_keeps_its_bytes() -> None:
    data = b"\x32\x07\x00\x01t\x12\x34xy"
    packet = decoded(data)
    assert packet == Packet(Kind.PUBLISH, data, "t", 0x1234, 1)
    assert packet.repeated == b"\x3a" + data[1:]
    assert decoded(b"") is None
    connect = parse(b"\x10\x0a", b"\x00\x04MQTT\x05\x02\x00\x3c")
    assert connect.level == 5
