"""The connection to a broker that refuses, is silent or goes away: a `NetError` each time, and in time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters import mqtt
from geartrain.adapters.mqtt import AiomqttNet, MqttConnection
from geartrain.errors import DeniedError, HungUpError, NetError
from geartrain.ports.net import Incoming, Net
from geartrain_cloud.certs import SERVER, Fleet
from tests.adapters.scripted_broker import CONNECT, DISCONNECT, SUBSCRIBE, ScriptedBroker, scripted
from tests.ports import free_port
from tests.waiting import WAIT_S

WINDOW = 4


def net_of(broker: ScriptedBroker, reply_timeout_s: float = 5.0, **settings: Any) -> AiomqttNet:
    return AiomqttNet(
        "127.0.0.1", broker.port, reply_timeout_s=reply_timeout_s, inflight_max=WINDOW, **settings
    )


def run(test: Callable[[ScriptedBroker], Coroutine[Any, Any, None]], **answers: object) -> None:
    """Run a test against a scripted broker, within 20 s."""

    async def whole() -> None:
        async with asyncio.timeout(WAIT_S), scripted(**answers) as broker:
            await test(broker)

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for happens in the code under test
        await asyncio.sleep(0.01)


async def first_of(connection: MqttConnection) -> Incoming:
    return await anext(connection.incoming())


async def fails(connection: MqttConnection, why: str) -> None:
    """Every call on a broken connection says why it broke."""
    with pytest.raises(NetError, match=why):
        await connection.publish("a", b"")
    with pytest.raises(NetError, match=why):
        await connection.subscribe("a")
    with pytest.raises(NetError, match=why):
        await first_of(connection)


def test_is_a_net() -> None:
    net: Net = AiomqttNet("127.0.0.1", 1)
    assert str(net) == "127.0.0.1:1"


def test_nobody_listens() -> None:
    port = free_port()

    async def connect() -> None:
        async with AiomqttNet("127.0.0.1", port).connect("agent"):
            raise AssertionError

    with pytest.raises(NetError, match=f"cannot connect to the broker at 127.0.0.1:{port}: .*refused"):
        asyncio.run(connect())


@pytest.mark.parametrize("host", ["", "no such host", "a" * 300, "x.invalid"])
def test_host_that_is_none(host: str) -> None:
    async def connect() -> None:
        async with AiomqttNet(host, 1).connect("agent"):
            raise AssertionError

    with pytest.raises(NetError, match="cannot connect to the broker at"):
        asyncio.run(connect())


@pytest.mark.parametrize(("code", "why"), [(2, "identifier"), (4, "[Bb]ad user"), (5, "authori")])
def test_refused_connect(code: int, why: str) -> None:
    async def test(broker: ScriptedBroker) -> None:
        with pytest.raises(DeniedError, match=f"cannot connect to the broker at 127.0.0.1.*{why}"):
            async with net_of(broker).connect("agent"):
                raise AssertionError
        await broker.closed.wait()

    run(test, connack=code)


def test_a_broker_that_is_not_available_denies_nobody() -> None:
    async def test(broker: ScriptedBroker) -> None:
        with pytest.raises(NetError, match="navailable") as caught:
            async with net_of(broker).connect("agent"):
                raise AssertionError
        assert type(caught.value) is NetError

    run(test, connack=3)


def test_silent_broker_is_given_up_and_its_socket_closed() -> None:
    async def test(broker: ScriptedBroker) -> None:
        start = time.monotonic()
        with pytest.raises(NetError, match="timed out") as caught:
            async with net_of(broker, reply_timeout_s=0.2).connect("agent"):
                raise AssertionError
        assert type(caught.value) is NetError
        assert time.monotonic() - start < 5
        await broker.closed.wait()

    run(test, connack=None)


def test_a_broker_that_does_not_answer_is_said_while_it_is_still_tried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "UNREACHABLE_S", 0.05)

    async def test(broker: ScriptedBroker) -> None:
        with pytest.raises(NetError, match="timed out"):
            async with net_of(broker, reply_timeout_s=0.5).connect("agent"):
                raise AssertionError

    run(test, connack=None)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "geartrain.mqtt"]
    assert said.endswith(" has not answered for 0.05 s: still trying")
    assert said.startswith("the broker at 127.0.0.1:")


def test_connection_that_is_reset_before_the_answer_is_given_up_at_once() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async def reset() -> None:
            await until(lambda: bool(broker.seen))
            broker.cut()

        cutting = asyncio.create_task(reset())
        with pytest.raises(NetError, match="closed before the broker answered") as caught:
            async with net_of(broker, reply_timeout_s=1_000).connect("agent"):
                raise AssertionError
        assert type(caught.value) is HungUpError, "a broker that restarts hangs up, too"
        await cutting

    run(test, connack=None)


def test_connect_that_is_cancelled_leaves_no_socket_behind() -> None:
    async def test(broker: ScriptedBroker) -> None:
        net = net_of(broker, reply_timeout_s=0.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), net.connect("agent"):
                raise AssertionError
        await broker.closed.wait()
        await until(lambda: not net._leftover)

    run(test, connack=None)


def test_who_and_how_is_the_callers_choice() -> None:
    async def test(broker: ScriptedBroker) -> None:
        net = net_of(broker, username="ann", password="secret", keepalive_s=33)
        async with net.connect("device-1/stocks"):
            pass
        (connect,) = [body for kind, body in broker.seen if kind == CONNECT]
        assert connect[:7] == b"\0\4MQTT\4"  # MQTT 3.1.1
        assert connect[7] & 2  # clean session
        assert int.from_bytes(connect[8:10], "big") == 33
        assert connect[10:] == b"\0\x0fdevice-1/stocks\0\3ann\0\6secret"

    run(test)


def test_tls_that_the_broker_does_not_speak() -> None:
    async def test(broker: ScriptedBroker) -> None:
        with pytest.raises(NetError, match="cannot connect to the broker"):
            async with net_of(broker, tls_context=ssl.create_default_context()).connect("agent"):
                raise AssertionError

    async def whole() -> None:
        async def garble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"this is not TLS")
            writer.close()

        server = await asyncio.start_server(garble, "127.0.0.1", 0)
        async with asyncio.timeout(WAIT_S), server:
            await test(ScriptedBroker(port=server.sockets[0].getsockname()[1]))

    asyncio.run(whole())


@pytest.mark.parametrize(("days_ago", "is_denied"), [(30, False), (-30, False), (0, True)])
def test_a_certificate_of_the_broker_that_is_not_trusted(
    tmp_path: Path, days_ago: int, is_denied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One that has expired, or is not valid yet, may be the fault of this machine's clock."""
    ours, theirs = Fleet(tmp_path / "ours"), Fleet(tmp_path / "theirs")
    for fleet in (ours, theirs):
        fleet.init("fleet")
    theirs.issue(SERVER, "localhost", days=10, now=datetime.now(UTC) - timedelta(days=days_ago))
    paths = theirs.paths(SERVER, "localhost")
    shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    shown.load_cert_chain(paths.certificate, paths.key)
    trusting = ssl.create_default_context(cafile=str((theirs if days_ago else ours).ca))

    async def whole() -> NetError:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=shown)
        async with asyncio.timeout(WAIT_S), server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NetError, match="cannot connect to the broker") as caught:
                async with AiomqttNet("localhost", port, tls_context=trusting).connect("agent"):
                    raise AssertionError
            return caught.value

    error = asyncio.run(whole())
    assert isinstance(error, DeniedError) == is_denied
    assert ("clock of this machine" in str(error)) != is_denied
    assert ("whether `ca` and the address" in str(error)) == is_denied
    assert not [record for record in caplog.records if record.name == "mqtt"]


def test_leaving_the_block_disconnects() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            await connection.publish("a", b"1")
        await broker.closed.wait()
        assert broker.seen[-1] == (DISCONNECT, b"")
        await fails(connection, "was closed")

    run(test)


def test_refused_subscription_is_an_error_and_the_connection_lives() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            with pytest.raises(DeniedError, match=r"refuses the subscription to a/b .* \(ACL\)"):
                await connection.subscribe("a/b")
            broker.suback = 0
            await connection.subscribe("a/b")
            await connection.publish("a", b"1")
            await until(lambda: broker.published() == [b"1"])

    run(test, suback=0x80)


def test_subscription_that_is_not_answered_breaks_the_connection() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker, reply_timeout_s=0.2).connect("agent") as connection:
            with pytest.raises(NetError, match=r"subscribing to a failed: .*timed out") as caught:
                await connection.subscribe("a")
            assert type(caught.value) is NetError
            await fails(connection, "subscribing to a failed")
        await broker.closed.wait()

    run(test, suback=None)


def test_broker_that_hangs_up_on_a_subscription_is_told_from_one_that_is_away() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker, reply_timeout_s=0.5).connect("agent") as connection:
            subscribing = asyncio.create_task(connection.subscribe("a"))
            await until(lambda: broker.seen[-1][0] == SUBSCRIBE)
            broker.cut()
            with pytest.raises(HungUpError, match="the connection was lost"):
                await subscribing

    run(test, suback=None)


@pytest.mark.parametrize("wrong", ["", "a/#/b", "a+"])
def test_filter_that_is_none(wrong: str) -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            with pytest.raises(NetError, match="subscribing to"):
                await connection.subscribe(wrong)

    run(test)


def test_publish_waits_for_no_puback_but_for_the_window() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            for number in range(WINDOW):
                await connection.publish("a", b"%d" % number)
            waiting = asyncio.create_task(connection.publish("a", b"last"))
            await until(lambda: len(broker.published()) == WINDOW)
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await broker.acknowledge(1)
            await waiting
            await until(lambda: broker.published() == [b"0", b"1", b"2", b"3", b"last"])

    run(test, puback=False)


def test_publishes_of_many_tasks_keep_their_order() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            await asyncio.gather(*(connection.publish("a", b"%d" % number) for number in range(50)))
            await until(lambda: len(broker.published()) == 50)
            assert broker.published() == [b"%d" % number for number in range(50)]

    run(test)


def test_puback_that_does_not_come_breaks_the_connection() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker, puback_timeout_s=0.3).connect("agent") as connection:
            for _ in range(WINDOW):
                await connection.publish("a", b"")
            with pytest.raises(NetError, match=r"a publish failed: .*timed out"):
                await connection.publish("a", b"")
            await fails(connection, "a publish failed")

    run(test, puback=False)


def test_cut_wakes_all_that_wait() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            waiting = [asyncio.create_task(connection.publish("a", b"")) for _ in range(3 * WINDOW)]
            reading = asyncio.create_task(first_of(connection))
            await until(lambda: len(broker.published()) == WINDOW)
            broker.cut()
            outcomes = await asyncio.gather(*waiting, reading, return_exceptions=True)
            assert outcomes[:WINDOW] == [None] * WINDOW
            assert [type(outcome) for outcome in outcomes[WINDOW:]] == [NetError] * (2 * WINDOW + 1)
            assert "the connection was lost" in str(outcomes[-1])
            await fails(connection, "the connection was lost")

    run(test, puback=False)


def test_broker_that_answers_no_ping_is_given_up() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker, keepalive_s=1).connect("agent") as connection:
            with pytest.raises(NetError, match="the connection was lost"):
                await first_of(connection)

    run(test, pings=False)


def test_topic_that_cannot_be_published_breaks_the_connection() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            await connection.publish("a/+", b"")
            with pytest.raises(NetError, match=r"a publish failed: .*wildcards"):
                await first_of(connection)

    run(test)


@pytest.mark.parametrize(
    ("settings", "size", "kept"),
    [
        ({"incoming_max": 10}, 1, 10),
        ({"incoming_bytes_max": 1_000}, 100, 10),
        ({"incoming_bytes_max": 9}, 90, 1),
    ],
)
def test_what_arrives_unread_is_bounded_and_drops_are_counted(
    settings: dict[str, int], size: int, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The drops are said once, with their number, and not once a message."""

    async def test(broker: ScriptedBroker) -> None:
        net = net_of(broker, **settings)
        async with net.connect("agent") as connection:
            for number in range(1, 31):
                broker.send(b"a", number.to_bytes(1, "big") * size, number)
            await until(lambda: net.counters["incoming_dropped"] == 30 - kept)
            received = connection.incoming()
            assert [(await anext(received)).payload[0] for _ in range(kept)] == list(range(1, kept + 1))
            broker.send(b"a", b"x" * size, 31)
            assert (await anext(received)).payload == b"x" * size

    run(test)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [sentence for sentence in said if "1 messages dropped since the last time" in sentence] == said
    assert len(said) == 1


@pytest.mark.parametrize("topic", [b"\xff\xfe", b"a/+", b"#"])
def test_topic_that_is_none_ends_the_connection(topic: bytes) -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            broker.send(topic, b"", 1)
            with pytest.raises(NetError, match="the connection was lost"):
                await first_of(connection)

    run(test)


def test_bytes_that_are_no_mqtt_end_the_connection() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with net_of(broker).connect("agent") as connection:
            broker._send(0xF0, b"what is this?")
            with pytest.raises(NetError, match="the connection was lost"):
                await first_of(connection)

    run(test)


SLOW_CONNECT = """
import asyncio, gc, logging, socket, sys, time
from geartrain.adapters.mqtt import AiomqttNet

logging.basicConfig(level=logging.INFO)
before_s, after_s, stop_s, then_s, port = map(float, sys.argv[1:])
connect = socket.create_connection

def slow(*given, **named):
    time.sleep(before_s)
    made = connect(*given, **named)
    time.sleep(after_s)
    return made

async def story():
    async def work():
        async with AiomqttNet("127.0.0.1", int(port)).connect("agent"):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(stop_s)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(then_s)

socket.create_connection = slow
asyncio.run(story())
gc.collect()
"""


@pytest.mark.parametrize(
    "pauses", ["0.2 0 0.05 0", "0 0.2 0.05 0", "0.1 0.1 0.05 0.1", "0 0.2 0.05 0.4", "0 0 0.002 0"]
)
@pytest.mark.parametrize("connack", [0, None])
def test_a_stop_while_connecting_leaves_nothing_behind(pauses: str, connack: int | None) -> None:
    """In a process that ends then, because that is when its loop closes under what was left."""

    async def test(broker: ScriptedBroker) -> None:
        command = [sys.executable, "-c", SLOW_CONNECT, *pauses.split(), str(broker.port)]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await process.communicate()
        assert process.returncode == 0
        lines = said.decode().splitlines()
        assert [line for line in lines if not line.startswith("INFO:geartrain.mqtt:")] == []

    run(test, connack=connack)


def test_a_connection_that_ends_after_its_connect_was_cancelled_raises_nothing() -> None:
    """The loop may call back once more for a socket whose connect nobody waits for."""

    async def test() -> None:
        client = mqtt._Client("127.0.0.1", 1)
        client._connected.cancel()
        client._on_disconnect(None, None, None, "gone")
        assert client._connected.cancelled()
        assert not client.lost.done()

    asyncio.run(test())


def test_a_socket_that_is_gone_before_its_writes_are_watched_raises_nothing() -> None:
    """Paho closes it in the thread of the connect, and hands over what it has left."""

    async def test() -> None:
        client, closed = mqtt._Client("127.0.0.1", 1), socket.socket()
        closed.close()
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        for sock in (None, closed):
            client._on_socket_register_write(client._client, None, sock)
        await asyncio.sleep(0.01)
        assert errors == []

    asyncio.run(test())
