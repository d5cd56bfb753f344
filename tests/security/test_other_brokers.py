"""Sensors' topics and a flow's sink over mutual TLS, on a real mosquitto that asks for certificates."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain import Record
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.errors import SourceError
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.sinks import MqttSink
from geartrain_cloud.certs import CLOUD, DEVICE
from geartrain_cloud.sinks import mqtt
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.mqtt import MqttTopics
from geartrain_devices.mqtt_topic import MqttTopic
from tests.security.fleet import SERVER_NAME, Secured, secured
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

TOPICS = """
user d1
topic readwrite home/#
topic read alerts/#
user d2
topic readwrite home/#
user cloud:ingest
topic write alerts/#
"""


class Reading(Record):
    room: str
    celsius: float


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("others"), TOPICS) as found:
        yield found


def keys(table: dict[str, object]) -> dict[str, Any]:
    return {name: table[name] for name in ("tls", "ca", "certificate", "key")}


def source(broker: Secured, **options: Any) -> MqttTopic[Reading]:
    fields = {"room": "$topic[1]", "celsius": "t"}
    return MqttTopic(topic="home/+/climate", host=SERVER_NAME, port=broker.port, fields=fields, **options)


async def read(split: Any, publisher: AiomqttNet, patience_s: float = WAIT_S) -> list[Any]:
    """What the source gives while somebody publishes, until it gives something."""
    deadline_s = time.monotonic() + patience_s
    try:
        async with publisher.connect("sensor") as connection:
            while time.monotonic() < deadline_s:
                poll = await split.read(0, 100)
                if poll.values:
                    return list(poll.values)
                await connection.publish("home/hall/climate", b'{"t": 20.5}')
                await asyncio.sleep(0.05)
        return []
    finally:
        await split.close()


def test_a_source_reads_over_mutual_tls(broker: Secured) -> None:
    (split,) = source(broker, **keys(broker.table(DEVICE, "d1"))).open("d1", "readings", Reading)
    found = asyncio.run(read(split, broker.net(DEVICE, "d2")))
    assert found[0] == Reading("hall", 20.5)


@pytest.mark.parametrize("shown", ["nothing", "plain", "a stranger's", "another broker's"])
def test_a_source_without_the_right_certificates_reads_nothing_and_says_so(
    broker: Secured, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = broker.table(DEVICE, "d1")
    options = {
        "nothing": {"tls": True, "ca": table["ca"]},
        "plain": {},
        "a stranger's": keys(broker.table(DEVICE, "d1", broker.strangers)),
        "another broker's": keys(table) | {"ca": str(broker.strangers.ca)},
    }[shown]
    (split,) = source(broker, **options).open("d1", "readings", Reading)
    with caplog.at_level(logging.WARNING, "geartrain.devices"):
        assert asyncio.run(read(split, broker.net(DEVICE, "d2"), 1.5)) == []
    assert "source d1/readings: " in caplog.text
    assert "Traceback" not in caplog.text


def test_files_of_a_source_that_cannot_be_used_are_one_sentence(broker: Secured, tmp_path: Path) -> None:
    table = keys(broker.table(DEVICE, "d1"))
    open_key = tmp_path / "open.key"
    open_key.write_bytes(Path(table["key"]).read_bytes())
    open_key.chmod(0o644)
    for options, sentence in (
        (
            table | {"key": str(open_key)},
            f"sources.readings.key: {open_key} can be read by others (mode 0644)",
        ),
        (table | {"key": ""}, "sources.readings.certificate and sources.readings.key belong together"),
        (table | {"ca": str(tmp_path / "no")}, "sources.readings.ca: "),
        (table | {"tls": False}, "sources.readings.ca is for TLS: write tls = true beside it"),
        (
            table | {"key": str(broker.fleet.paths(DEVICE, "d2").key)},
            "does not fit sources.readings.key",
        ),
    ):
        with pytest.raises(SourceError) as caught:
            source(broker, **options).open("d1", "readings", Reading)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def sinks(table: dict[str, object], port: int) -> MqttTopics:
    given = keys(table)
    given["private_key"] = given.pop("key")
    sink = MqttSink("alerts", topic="alerts/{room}", host=SERVER_NAME, port=port, **given)
    made = MqttTopics("house")
    made.declare("alerts", sink, RowCodec(Reading).schema)
    made.declare("more", sink, RowCodec(Reading).schema)
    return made


def write(made: MqttTopics) -> None:
    codec = RowCodec(Reading)
    rows = ColumnBatch(codec.to_columns([Reading("hall", 30.0)]), [1], ["s"], [1])
    made.write("q", 0, {}, {"alerts": [rows], "more": [rows]})


def test_a_sink_publishes_over_mutual_tls(broker: Secured) -> None:
    async def hear() -> list[tuple[str, float]]:
        async with broker.net(DEVICE, "d1").connect("listener") as connection:
            await connection.subscribe("alerts/#")
            made = sinks(broker.table(CLOUD, "ingest"), broker.port)
            await asyncio.to_thread(write, made)
            got = []
            async with asyncio.timeout(WAIT_S):
                async for came in connection.incoming():
                    got.append((came.topic, json.loads(came.payload)["celsius"]))
                    if len(got) == 2:
                        break
            return got

    assert asyncio.run(hear()) == [("alerts/hall", 30.0)] * 2


def test_a_sink_without_the_right_certificate_fails_its_micro_batch(
    broker: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "_PAUSE_S", 0.01)
    monkeypatch.setattr(mqtt, "_ATTEMPTS", 2)
    made = sinks(broker.table(DEVICE, "d1", broker.strangers), broker.port)
    with pytest.raises(TableError, match=f"the broker {SERVER_NAME}:{broker.port} of a sink stays away"):
        write(made)


def test_files_of_a_sink_that_cannot_be_used_are_one_sentence(broker: Secured, tmp_path: Path) -> None:
    table = broker.table(CLOUD, "ingest")
    for changed, sentence in (
        ({"key": str(tmp_path / "no")}, "steps.alerts.private_key: .* cannot be read"),
        ({"key": ""}, r"steps\.alerts\.certificate and steps\.alerts\.private_key belong together"),
        ({"tls": False}, r"steps\.alerts\.ca is for TLS"),
    ):
        with pytest.raises(TableError, match=sentence):
            sinks(table | changed, broker.port)
