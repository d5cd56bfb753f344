"""Sensors that speak MQTT, and services that are asked over HTTP: a real broker and a real server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from geartrain import Record, Source
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.errors import NetError, SourceError
from geartrain.ports.net import Incoming
from geartrain.source import Reject, Split
from geartrain_cloud.broker.choice import choose_broker
from geartrain_devices.http_poll import HttpPoll
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.live import BUFFER_MAX, LiveBufferSplit
from geartrain_devices.mqtt_topic import MqttTopic, TopicSplit
from geartrain_devices.payloads import Payloads
from geartrain_devices.simulated import SimulatedSensor
from tests.ports import free_port
from tests.waiting import WAIT_S, Wait


class Reading(Record):
    room: str
    celsius: float


class Silent(SimulatedSensor[Reading]):
    pass


class Steady(SimulatedSensor[Reading]):
    def make(self, random: Any, number: int, device: str) -> Reading:
        return Reading("a", 20.0)


def opened(source: Source[Any]) -> Any:
    (split,) = source.open("d1", "readings", Reading)
    return split


async def wait_for(
    split: Split, count: int, position: int = 0
) -> tuple[list[Any], list[int], list[Reject], int]:
    """Read until `count` rows have come, for 20 s at the most."""
    values: list[Any] = []
    numbers: list[int] = []
    rejects: list[Reject] = []
    wait = Wait("rows of the source")
    while len(values) + len(rejects) < count:
        wait.check((values, rejects))
        poll = await split.read(position, 100)
        values += poll.values
        numbers += poll.numbers
        rejects += poll.rejects
        position = poll.position
        await asyncio.sleep(0.01)
    return values, numbers, rejects, position


class Broker:
    """A broker's process that can be stopped and started at one port."""

    def __init__(self, folder: Path) -> None:
        self.choice = choose_broker("auto", folder)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.choice.command, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        wait = Wait("a connection to the broker")
        net = AiomqttNet(self.choice.host, self.choice.port)
        while True:
            try:
                async with net.connect("sensor") as connection:
                    yield connection
                    return
            except NetError:
                wait.check()
                await asyncio.sleep(0.05)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    found = Broker(tmp_path)
    found.start()
    yield found
    found.stop()


def test_what_sensors_publish_becomes_records(broker: Broker) -> None:
    source: MqttTopic[Reading] = MqttTopic(
        topic="home/+/climate",
        port=broker.choice.port,
        time="at",
        time_unit="ms",
        fields={"room": "$topic[1]", "celsius": "t"},
    )

    async def run() -> None:
        split = opened(source)
        try:
            async with broker.connected() as connection:
                await split.read(0, 1)
                await until_heard(split, connection)
                await connection.publish("home/kitchen/climate", b'{"at": 1500, "t": 20.5}')
                await connection.publish("home/hall/climate", b'{"t": 20.5}')
                await connection.publish("home/hall/climate", b"\xff\xfe")
                values, numbers, rejects, position = await wait_for(split, 3, 1_000)
            assert (values, numbers, position) == ([Reading("kitchen", 20.5)], [1_000], 1_003)
            assert ["it has no time at at" in rejects[0].reason, rejects[1].raw] == [True, b"\xff\xfe"]
            broker.stop()
            broker.start()
            async with broker.connected() as connection:
                await until_heard(split, connection)
                await connection.publish("home/attic/climate", b'{"at": 1, "t": 1}')
                values, _, _, _ = await wait_for(split, 1)
            assert values == [Reading("attic", 1.0)]
        finally:
            await split.close()

    asyncio.run(run())


async def until_heard(split: Split, connection: Any) -> None:
    """Publish until the source has subscribed, and take away what it heard."""
    wait = Wait("the source to have subscribed")
    while not (await split.read(0, 100)).rejects:
        wait.check()
        await connection.publish("home/nowhere/climate", b"hello?")
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    await split.read(0, 1_000)


def test_a_payload_that_is_no_object_and_has_no_time(broker: Broker) -> None:
    source: MqttTopic[float] = MqttTopic(topic="t", port=broker.choice.port, fields={"value": "$value"})

    async def run() -> None:
        (split,) = source.open("d1", "readings", float)
        async with broker.connected() as connection:
            await split.read(0, 1)
            before = time.time_ns() // 1_000
            wait = Wait("a row of the source")
            while not (poll := await split.read(0, 100)).values:
                wait.check()
                await connection.publish("t", b"21.5")
                await asyncio.sleep(0.05)
        assert poll.values[0] == 21.5
        assert before <= poll.times[0] <= time.time_ns() // 1_000
        await split.close()

    asyncio.run(run())


def test_what_a_connection_drops_is_told_by_a_dead_letter() -> None:
    net = FloodedNet()

    async def run() -> None:
        split = TopicSplit("d1", "s", net, "t", PAYLOADS, "once")  # type: ignore[arg-type]
        await split.read(0, 10)
        async with asyncio.timeout(WAIT_S):
            await net.heard.wait()
        poll = await split.read(0, 10)
        bad = 'at its byte 1 (0xff): set encoding to that of the text, such as encoding = "cp1252"'
        assert [reject.reason for reject in poll.rejects] == [
            f"d1/s: topic t: it is not UTF-8 text, {bad}",
            "d1/s: 5 records were dropped here, because the queue of the connection was full",
        ]
        await split.close()

    asyncio.run(run())


PAYLOADS = Payloads("source s", Reading, "json", "", ValueOptions(), {})


class FloodedNet:
    """A connection that gives one publish, and has dropped others."""

    def __init__(self) -> None:
        self.counters = {"incoming_dropped": 0}
        self.heard = asyncio.Event()

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[FloodedNet]:
        yield self

    async def subscribe(self, topic: str) -> None:
        self.counters["incoming_dropped"] = 5

    async def incoming(self) -> AsyncIterator[Incoming]:
        yield Incoming("t", b"\xff")
        self.heard.set()
        await asyncio.Event().wait()


class Service(BaseHTTPRequestHandler):
    answers: ClassVar[list[tuple[int, bytes]]] = []

    def do_GET(self) -> None:
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        return


def test_new_answers_of_a_service_become_records() -> None:
    one = json.dumps({"data": [{"room": "a", "t": 1, "at": 1}, {"room": "b", "t": 2, "at": 2}]}).encode()
    two = json.dumps({"data": [{"room": "c", "t": 3, "at": 3}]}).encode()
    Service.answers = [(200, one), (200, one), (500, b"no"), (200, b'{"oops": 1}'), (200, two)]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/readings"
    source: HttpPoll[Reading] = HttpPoll(
        url=url, every_s=0.01, items="data", time="at", fields={"celsius": "t"}
    )

    async def run() -> None:
        split = opened(source)
        values, numbers, rejects, _ = await wait_for(split, 4)
        assert values == [Reading("a", 1.0), Reading("b", 2.0), Reading("c", 3.0)]
        assert numbers == [0, 1, 3]
        assert rejects[0].raw == b'{"oops": 1}'
        await split.close()

    try:
        asyncio.run(run())
    finally:
        server.shutdown()
        server.server_close()


def test_a_service_that_is_not_there_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{free_port()}/"

    async def run() -> None:
        split = opened(HttpPoll(url=url, every_s=0.01))
        wait = Wait("a second try of the service")
        while caplog.text.count("does not answer") < 2:
            wait.check()
            assert not (await split.read(0, 10)).rejects
            await asyncio.sleep(0.01)
        await split.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (MqttTopic(), "has no topic"),
        (MqttTopic(topic="a/#/b"), "topic = 'a/#/b' is no topic filter: # is the last level"),
        (MqttTopic(topic="a/b#"), "# is the last level, as in sensors/#"),
        (MqttTopic(topic="a+/b"), "is no topic filter: \\+ is a whole level"),
        (MqttTopic(topic="a\0"), "holds a NUL"),
        (MqttTopic(topic="x" * 70_000), "longer than 65535 bytes"),
        (MqttTopic(topic="a", host=""), "host is empty: name the broker"),
        (MqttTopic(topic="a", ca="x.pem"), "sources.readings.ca is for TLS: write tls = true beside it"),
        (MqttTopic(topic="a", time_unit="h"), "time_unit = 'h' must be one of s, ms, us"),
        (MqttTopic(topic="a", fields={"x": "y"}), "there is no field 'x'; its fields: room, celsius"),
        (HttpPoll(url="file:///etc/passwd"), "must begin with"),
        (HttpPoll(url="http://"), "url = 'http://' is no address, such as http://127.0.0.1:8080/readings"),
        (HttpPoll(url="http://host:port/"), "is no address"),
        (HttpPoll(url="http://host/a b"), "is no address"),
        (HttpPoll(url="http://host/\n"), "is no address"),
        (Silent(), "source readings: Silent must define make"),
        (Steady(start="soon"), "source readings: start: 'soon' is not an ISO 8601 date"),
        (Steady(start="0001-01-01"), "start = '0001-01-01' is not in the years 100 to 2199"),
        (Steady(speed="fast"), "speed = 'fast' must be a number above 0"),
        (Steady(speed=float("nan")), "speed = nan must be a number above 0"),
        (Steady(period_ms=0), "period_ms must be 1 or more"),
        (HttpPoll(url="http://x", every_s=0), "every_s = 0 must be above 0"),
        (HttpPoll(url="http://x", items="a["), "items: 'a\\[' is not a path"),
    ],
)
def test_mistakes_in_options_are_one_sentence(source: Source[Any], why: str) -> None:
    with pytest.raises(SourceError, match=why):
        opened(source)


def test_what_the_buffer_cannot_hold_is_dropped_with_a_letter() -> None:
    async def nothing(split: LiveBufferSplit) -> None:
        return None

    def read(raw: bytes) -> tuple[int, int]:
        return 1, len(raw)

    async def run() -> None:
        split = LiveBufferSplit("d1", "s", nothing)
        for _ in range(BUFFER_MAX + 7):
            split.push(b"x", read)
        poll = await split.read(0, BUFFER_MAX)
        assert (len(poll.values), poll.rejects) == (BUFFER_MAX, [])
        (reject,) = (await split.read(poll.position, 10)).rejects
        assert "7 records were dropped here" in reject.reason
        await split.close()

    asyncio.run(run())
