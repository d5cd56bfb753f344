"""What a fleet's broker refuses: whoever has no good certificate, and whoever wants another's topics."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from geartrain.adapters.mqtt import AiomqttNet, MqttConnection
from geartrain.errors import DeniedError, NetError
from geartrain.wire.topics import (
    ack_topic,
    desired_topic,
    downack_topic,
    flow_down_topic,
    reported_filter,
    reported_topic,
    up_filter,
    up_topic,
)
from geartrain_client.cli import main
from geartrain_cloud.certs import CLOUD, DEVICE
from tests.security.fleet import Secured, net_of, secured
from tests.waiting import WAIT_S, Wait

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

FLOW = "stocks"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as found:
        yield found


async def refused(net: AiomqttNet, kind: type[NetError] = DeniedError) -> str:
    """The sentence with which a connection, or the first use of it, is refused."""
    with pytest.raises(kind) as caught:
        async with asyncio.timeout(WAIT_S), net.connect("someone") as connection:
            await connection.subscribe("geartrain/v1/00/d1/stocks/ack")
    return str(caught.value)


def test_who_has_a_certificate_is_let_in(broker: Secured) -> None:
    async def come() -> list[list[tuple[str, bytes]]]:
        async with AsyncExitStack() as stack:
            ingest = await opened(stack, broker.net(CLOUD, "ingest"), up_filter())
            d1 = await opened(stack, broker.net(DEVICE, "d1"), ack_topic("d1", FLOW))
            await d1.publish(up_topic("d1", FLOW), b"rows")
            await d1.drain()
            return await heard([ingest], b"rows")

    assert asyncio.run(come()) == [[(up_topic("d1", FLOW), b"rows")]]


def test_no_certificate_no_tls_and_a_password_are_refused(broker: Secured) -> None:
    table = broker.table(DEVICE, "d1")
    anonymous = {name: table[name] for name in ("address", "tls", "ca")}
    assert "(certificate required)" in asyncio.run(refused(net_of(anonymous)))
    assert "broker" in asyncio.run(refused(AiomqttNet("127.0.0.1", broker.port), NetError))
    named = AiomqttNet(
        "localhost",
        broker.port,
        username="cloud:ingest",
        password="",
        tls_context=ssl.create_default_context(cafile=str(broker.fleet.ca)),
    )
    assert "broker" in asyncio.run(refused(named))


def test_another_authority_and_an_expired_certificate_are_refused(broker: Secured) -> None:
    assert "(unknown ca)" in asyncio.run(refused(broker.net(DEVICE, "d1", broker.strangers)))
    assert "(certificate expired)" in asyncio.run(refused(broker.net(DEVICE, "old")))


def test_a_client_refuses_a_broker_of_another_authority_or_of_another_name(broker: Secured) -> None:
    table = broker.table(DEVICE, "d1")
    said = asyncio.run(refused(net_of(table | {"ca": str(broker.strangers.ca)})))
    assert "its certificate is not trusted" in said
    said = asyncio.run(refused(net_of(table | {"address": f"127.0.0.2:{broker.port}"}), NetError))
    assert "127.0.0.2" in said
    said = asyncio.run(refused(net_of({n: table[n] for n in ("tls", "certificate", "key", "address")})))
    assert "its certificate is not trusted" in said  # the system knows nothing of this authority


def test_the_certificate_of_the_broker_does_not_make_a_client(broker: Secured) -> None:
    assert "broker" in asyncio.run(refused(broker.net("server", "localhost")))


async def heard(connections: list[MqttConnection], until: bytes) -> list[list[tuple[str, bytes]]]:
    """What each of the connections hears, the first until `until` comes, and the others for as long."""
    got: list[list[tuple[str, bytes]]] = [[] for _ in connections]

    async def listen(index: int) -> None:
        async for incoming in connections[index].incoming():
            got[index].append((incoming.topic, incoming.payload))
            if index == 0 and incoming.payload == until:
                return

    others = [asyncio.create_task(listen(index)) for index in range(1, len(connections))]
    async with asyncio.timeout(WAIT_S):
        await listen(0)
    await asyncio.sleep(1)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return got


async def opened(stack: AsyncExitStack, net: AiomqttNet, *filters: str) -> MqttConnection:
    connection = await stack.enter_async_context(net.connect("someone"))
    for topic_filter in filters:
        await connection.subscribe(topic_filter)
    return connection


def test_nobody_hears_what_is_not_for_him(broker: Secured) -> None:
    wide: tuple[str, ...] = ("#", "+/#", "$SYS/#", "geartrain/#", up_filter(), ack_topic("d1", FLOW))
    wide += (flow_down_topic("d1", FLOW), "geartrain/v1/+/+/+/ack", "geartrain/v1/+/+/+/downack")

    async def spy() -> list[list[tuple[str, bytes]]]:
        async with AsyncExitStack() as stack:
            d1 = await opened(
                stack, broker.net(DEVICE, "d1"), ack_topic("d1", FLOW), flow_down_topic("d1", FLOW)
            )
            thief = await opened(stack, broker.net(DEVICE, "thief"), *wide)
            ingest = await opened(stack, broker.net(CLOUD, "ingest"), up_filter(), *wide)
            down = await opened(stack, broker.net(CLOUD, "down"), "geartrain/v1/+/+/+/downack", *wide)
            await d1.publish(up_topic("d1", FLOW), b"rows")
            await d1.publish(downack_topic("d1", FLOW), b"answer")
            await d1.drain()
            await down.publish(flow_down_topic("d1", FLOW), b"order")
            await down.drain()
            await ingest.publish(ack_topic("d1", FLOW), b"ack")
            await ingest.drain()
            return await heard([d1, thief, ingest, down], b"ack")

    d1, thief, ingest, down = asyncio.run(spy())
    assert sorted(d1) == sorted([(ack_topic("d1", FLOW), b"ack"), (flow_down_topic("d1", FLOW), b"order")])
    assert thief == []
    assert set(ingest) == {(up_topic("d1", FLOW), b"rows")}
    assert set(down) == {(downack_topic("d1", FLOW), b"answer")}


def test_nobody_sends_what_is_not_his(broker: Secured) -> None:
    """mosquitto pubacks what it throws away; so each says something allowed last, which must come alone."""
    topics = [
        up_topic("d1", FLOW),
        downack_topic("d1", FLOW),
        ack_topic("d1", FLOW),
        flow_down_topic("d1", FLOW),
        up_topic("d2", FLOW),
        ack_topic("d2", FLOW),
        flow_down_topic("d2", FLOW),
        "geartrain/v1/anything",
        "$SYS/broker/version",
    ]

    async def forge() -> dict[str, list[tuple[str, bytes]]]:
        async with AsyncExitStack() as stack:
            ears = {
                "d1": await opened(
                    stack, broker.net(DEVICE, "d1"), ack_topic("d1", FLOW), flow_down_topic("d1", FLOW)
                ),
                "ingest": await opened(stack, broker.net(CLOUD, "ingest"), up_filter()),
                "down": await opened(stack, broker.net(CLOUD, "down"), "geartrain/v1/+/+/+/downack"),
            }
            for kind, name in ((DEVICE, "d2"), (CLOUD, "ingest"), (CLOUD, "down")):
                forger = await opened(stack, broker.net(kind, name))
                for topic in topics:
                    await forger.publish(topic, name.encode())
                await forger.drain()
            await ears["d1"].publish(up_topic("d1", FLOW), b"end")
            await ears["d1"].drain()
            ingest, d1, down = await heard([ears["ingest"], ears["d1"], ears["down"]], b"end")
            return {"d1": d1, "ingest": ingest, "down": down}

    got = asyncio.run(forge())
    assert got["ingest"] == [(up_topic("d2", FLOW), b"d2"), (up_topic("d1", FLOW), b"end")]
    assert got["d1"] == [(ack_topic("d1", FLOW), b"ingest"), (flow_down_topic("d1", FLOW), b"down")]
    assert got["down"] == []


def test_a_control_lane_is_that_of_its_device_and_of_control_alone(broker: Secured) -> None:
    lanes = (desired_topic("d1"), reported_topic("d1"))
    wide = ("#", "geartrain/v1/+/+/desired", reported_filter())

    async def come() -> list[list[tuple[str, bytes]]]:
        async with AsyncExitStack() as stack:
            d1 = await opened(stack, broker.net(DEVICE, "d1"), desired_topic("d1"))
            control = await opened(stack, broker.net(CLOUD, "control"), reported_filter())
            spies = [
                await opened(stack, broker.net(kind, name), *wide)
                for kind, name in ((DEVICE, "thief"), (CLOUD, "ingest"), (CLOUD, "down"))
            ]
            for spy in spies:
                for topic in lanes:
                    await spy.publish(topic, b"forged")
                await spy.drain()
            await d1.publish(desired_topic("d1"), b"forged")
            await d1.publish(reported_topic("d2"), b"forged")
            await d1.publish(reported_topic("d1"), b"reported")
            await d1.drain()
            await control.publish(reported_topic("d1"), b"forged")
            await control.publish(desired_topic("d1"), b"desired")
            await control.drain()
            return await heard([d1, control, *spies], b"desired")

    d1, control, *spies = asyncio.run(come())
    assert d1 == [(desired_topic("d1"), b"desired")]
    assert control == [(reported_topic("d1"), b"reported")]
    assert spies == [[], [], []]


def test_who_knows_the_id_of_another_cannot_push_it_out(broker: Secured) -> None:
    async def push() -> list[list[tuple[str, bytes]]]:
        async with AsyncExitStack() as stack:
            ingest = await opened(stack, broker.net(CLOUD, "ingest"), up_filter())
            d1 = await opened(stack, broker.net(DEVICE, "d1"), ack_topic("d1", FLOW))
            await opened(stack, broker.net(DEVICE, "thief"), ack_topic("thief", FLOW))  # under the same id
            await d1.publish(up_topic("d1", FLOW), b"rows")
            await d1.drain()
            return await heard([ingest], b"rows")

    assert asyncio.run(push()) == [[(up_topic("d1", FLOW), b"rows")]]


def test_what_is_larger_than_any_batch_ends_the_connection(broker: Secured) -> None:
    async def flood() -> None:
        async with broker.net(DEVICE, "d1").connect("d1") as connection:
            await connection.publish(up_topic("d1", FLOW), bytes(3 << 20))
            await connection.drain()

    with pytest.raises(NetError):
        asyncio.run(flood())


def test_a_revoked_certificate_is_refused_and_its_successor_is_not(broker: Secured, tmp_path: Path) -> None:
    broker.fleet.issue(DEVICE, "lost")
    kept = {
        name: Path(str(broker.table(DEVICE, "lost")[name])).read_bytes() for name in ("certificate", "key")
    }
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    stolen = broker.table(DEVICE, "lost") | {name: str(tmp_path / name) for name in kept}

    async def come(net: AiomqttNet) -> None:
        async with net.connect("lost") as connection:
            await connection.subscribe(ack_topic("lost", FLOW))

    asyncio.run(come(net_of(stolen)))
    broker.fleet.revoke(DEVICE, "lost")
    broker.fleet.issue(DEVICE, "lost")
    broker.reload()
    for _ in range(20):  # its alert is never lost
        assert "(certificate revoked)" in asyncio.run(refused(net_of(stolen)))
    asyncio.run(come(broker.net(DEVICE, "lost")))
    asyncio.run(come(broker.net(DEVICE, "d1")))


def test_a_revocation_counts_from_the_brokers_next_hangup_and_ends_no_open_connection(
    broker: Secured, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/security.md, and SIGHUP instead of a restart."""
    broker.fleet.issue(DEVICE, "open")
    table, certs = broker.table(DEVICE, "open"), ["--certs", str(broker.fleet.folder)]
    stolen = net_of(table)

    async def come() -> None:
        async with stolen.connect("again") as connection:
            await connection.subscribe(ack_topic("open", FLOW))

    async def revoked() -> str:
        """What the connection after the list is read is told; it is read soon after the signal."""
        wait = Wait("a revoked certificate to be refused")
        while True:
            try:
                await come()
            except NetError as error:
                return str(error)
            wait.check()
            await asyncio.sleep(0.05)

    async def stay() -> list[list[tuple[str, bytes]]]:
        async with AsyncExitStack() as stack:
            ingest = await opened(stack, broker.net(CLOUD, "ingest"), up_filter())
            running = await opened(stack, stolen)
            assert main(["certs", "revoke", "device", "open", *certs]) == 0
            config = [
                "broker",
                "config",
                "localhost",
                "--listen",
                f"127.0.0.1:{broker.port}",
                "--user",
                "root",
            ]
            assert main([*config, "--output", str(broker.folder), *certs]) == 0
            await come()  # a list that the broker has not read refuses nobody
            broker.process.send_signal(signal.SIGHUP)
            assert "broker" in await revoked()
            await running.publish(up_topic("open", FLOW), b"still here")
            await running.drain()
            return await heard([ingest], b"still here")

    assert asyncio.run(stay()) == [[(up_topic("open", FLOW), b"still here")]]
    assert "send the broker a SIGHUP" in capsys.readouterr().out
    broker.reload()
    assert "broker" in asyncio.run(refused(stolen))
    asyncio.run(come_as(broker, "d2"))


async def come_as(broker: Secured, device: str) -> None:
    async with broker.net(DEVICE, device).connect("fine") as connection:
        await connection.subscribe(ack_topic(device, FLOW))
