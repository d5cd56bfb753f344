"""Values of every type through a real broker of MQTT: in the message, and in its topic."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.sinks import MqttSink
from geartrain_cloud.sinks.mqtt import TOPIC_BYTES_MAX
from geartrain_cloud.sinks.tables import rows
from tests.running_broker import running_broker
from tests.sinks.test_any_values import Every, a_record, fields, in_json, same
from tests.sinks.test_stores import Pair, columns, tables_of
from tests.waiting import WAIT_S

SEEDS = range(60)
HOSTILE = (
    "\0", "\x01", "\x7f", "\x80", "\x9f", "\ufdd0", "\ufdef", "\ufffe", "\uffff", "\U0001fffe", "\U0010ffff",
    "$SYS", "$share", "$", "+", "#", "/", "//", "a/#", "", " ", "\ufeff", "\u2028", "é" * 100, "x" * 60_000,
)  # fmt: skip


def level_of(text: str) -> str:
    """A text as the first level of a topic, by the categories of Unicode."""
    found = ""
    for one in text:
        is_none = ord(one) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(one) <= 0xFDEF
        found += "_" if is_none or one in "/+#" or unicodedata.category(one) == "Cc" else one
    return f"_{found[1:]}" if found.startswith("$") else found or "_"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a broker for all tests here: mosquitto where the machine has it."""
    with running_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.port


def heard(port: int, folder: Path, sink: MqttSink, kind: Any, records: list[Any]) -> list[tuple[str, Any]]:
    """(topic, message) of what a listener to all topics hears while the records are written."""

    def write() -> None:
        tables = tables_of(folder, sink, kind=kind)
        tables.attach("q", "c", has_run=False)
        tables.write("q", 0, {"c": 1}, {"sink0": [columns(kind, *enumerate(records))]})
        tables.close()

    async def listen() -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        async with asyncio.timeout(WAIT_S), AiomqttNet("127.0.0.1", port).connect("listener") as connection:
            await connection.subscribe("#")
            writing = asyncio.create_task(asyncio.to_thread(write))
            async for message in connection.incoming():
                found.append((message.topic, json.loads(message.payload)))
                if len(found) == len(records):
                    break
            await writing
        return found

    return asyncio.run(listen())


def test_messages_have_every_value_and_topics_a_level_for_it(tmp_path: Path, port: int) -> None:
    records = [a_record(number, Random(number)) for number in SEEDS]
    sink = MqttSink("all", topic="{text}/{maybe_whole}/{price}", port=port)
    found = heard(port, tmp_path, sink, Every, records)
    for topic, message in found:
        record = records[message["number"]]
        same(message, fields(record, in_json))
        levels = topic.split("/")
        assert levels[1:] == [str(record.maybe_whole), format(record.price, "f")]
        assert levels[0] == level_of(record.text)


def test_what_a_broker_would_refuse_or_hide_becomes_a_line_in_a_topic(tmp_path: Path, port: int) -> None:
    records = [Pair(text, float(number)) for number, text in enumerate(HOSTILE)]
    found = heard(port, tmp_path, MqttSink("all", topic="{symbol}/x", port=port), Pair, records)
    topics = {message["symbol"]: topic for topic, message in found}
    assert set(topics) == set(HOSTILE)
    assert topics == {text: f"{level_of(text)}/x" for text in HOSTILE}
    assert [topics[text] for text in ("$SYS", "a/#", "")] == ["_SYS/x", "a__/x", "_/x"]


def test_a_topic_that_is_too_long_is_a_dead_letter(tmp_path: Path, port: int) -> None:
    texts = ["x" * (TOPIC_BYTES_MAX - 2), "x" * (TOPIC_BYTES_MAX - 1), "ä" * (TOPIC_BYTES_MAX // 2), "last"]
    tables = tables_of(tmp_path, MqttSink("all", topic="{symbol}/x", port=port), kind=Pair)
    tables.attach("q", "c", has_run=False)
    batch = columns(Pair, *enumerate(Pair(text, 0.0) for text in texts))
    assert tables.write("q", 0, {"c": 1}, {"sink0": [batch]})
    tables.close()
    reason = "its topic {symbol}/x takes 65536 bytes, and MQTT takes 65535: put shorter fields into the topic"
    letters = rows(tmp_path / "tables.sqlite", "dead_letters", canonical=True)
    assert [(one["code"], one["reason"]) for one in letters] == [("too_large", f"{reason} of the sink")] * 2
    assert [bytes.fromhex(one["raw"])[:14] for one in letters] == [
        b'{"symbol":"xxx',
        b'{"symbol":"\xc3\xa4\xc3',
    ]
