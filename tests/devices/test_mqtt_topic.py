"""MQTT as sensors speak it: payloads of every kind, retained messages, and ids that no two clients share."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from geartrain import Record
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.errors import HungUpError, SourceError
from geartrain.flow.loading import load_flow
from geartrain.ports.net import Incoming
from geartrain.runtime.local import LocalRun
from geartrain.source import Batch
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.broker.ready import wait_until_ready
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.last_payloads import LastPayloads
from geartrain_devices.mqtt_topic import EMPTY, RETAINED, TAKEN_OVER, MqttTopic, TopicSplit
from geartrain_devices.payloads import Payloads
from tests.waiting import WAIT_S


class State(Record):
    room: str
    value: str


class Level(Record):
    room: str
    value: float


class Raw(Record):
    value: bytes


class Noted(Record):
    room: str
    note: str | None = None


ROOM = {"room": "$topic[1]"}
AT_VALUE = ROOM | {"value": "$value"}


@pytest.mark.parametrize(
    ("kind", "payload", "fields", "raw", "record"),
    [
        (State, "json", AT_VALUE, b"online", State("a", "online")),
        (State, "json", AT_VALUE, b'"ON"', State("a", "ON")),
        (State, "json", AT_VALUE, b"21.5", State("a", "21.5")),
        (State, "json", AT_VALUE, b"1e400", State("a", "1e400")),
        (State, "json", AT_VALUE, b"true", State("a", "true")),
        (Noted, "json", ROOM | {"note": "$value"}, b"007", Noted("a", "007")),
        (State, "text", ROOM, b"online", State("a", "online")),
        (State, "text", AT_VALUE, b'"ON"', State("a", '"ON"')),
        (State, "text", AT_VALUE, b" {broken", State("a", " {broken")),
        (Noted, "text", ROOM | {"note": "$value"}, "grün".encode(), Noted("a", "grün")),
        (Level, "number", ROOM, b"21.5", Level("a", 21.5)),
        (Level, "number", AT_VALUE, b" +007.50\n", Level("a", 7.5)),
        (Level, "number", ROOM, b".5", Level("a", 0.5)),
        (Raw, "bytes", {}, b"\x00\xff", Raw(b"\x00\xff")),
        (float, "number", {}, b"-3", -3.0),
        (str, "text", {}, b"on", "on"),
    ],
)
def test_each_kind_of_payload_is_read(
    kind: Any, payload: Any, fields: dict[str, str], raw: bytes, record: Any
) -> None:
    assert Payloads("source s", kind, payload, "", ValueOptions(), fields).read("home/a/state", raw) == (
        None,
        record,
    )


@pytest.mark.parametrize(
    ("kind", "payload", "fields", "raw", "code", "why"),
    [
        (Level, "json", AT_VALUE, b"online", "not_json", "it is 'online'; set payload = \"text\""),
        (Level, "json", ROOM, b"21.5", "missing_value", "the whole payload is a number, '21.5', which fits"),
        (State, "json", AT_VALUE, b'{"value": 1', "truncated", "it is not JSON"),
        (Level, "json", ROOM, b'{"value": "\xff"}', "not_utf8", "byte 12 (0xff): set encoding"),
        (State, "json", AT_VALUE, b"a\xff", "not_utf8", "byte 2 (0xff): set encoding"),
        (State, "text", AT_VALUE, b"a\xff", "not_utf8", "byte 2 (0xff): set encoding"),
        (State, "text", AT_VALUE, b"abc\0defg", "not_text", "holds a NUL at its byte 4"),
        (Level, "number", ROOM, b"21,5", "not_a_number", "it is no number such as 21.5: it is '21,5'"),
        (Level, "number", ROOM, b"NaN", "nan", "it is 'NaN': set nan = true"),
        (Level, "number", ROOM, b" -inf ", "nan", "it is '-inf': set nan = true"),
        (Level, "number", ROOM, b"9" * 2_000, "not_a_number", "it is no number such as 21.5"),
    ],
)
def test_a_payload_that_is_no_record_says_which_option_reads_it(
    kind: Any, payload: Any, fields: dict[str, str], raw: bytes, code: str, why: str
) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the sentence is looked at below
        Payloads("source s", kind, payload, "", ValueOptions(), fields).read("home/a/state", raw)
    assert why in str(raised.value)
    assert getattr(raised.value, "code", "not_a_record") == code


def test_marks_and_encodings_of_payloads_are_read() -> None:
    for raw, encoding in (
        (b'\xef\xbb\xbf{"value": 1}', ""),
        ('{"value": 1}'.encode("utf-16"), ""),
        ('{"value": 1}'.encode("utf-16-le"), "utf-16-le"),
    ):
        payloads = Payloads("source s", Level, "json", "", ValueOptions(), ROOM, encoding)
        assert payloads.read("home/a/state", raw) == (None, Level("a", 1.0))
    text = Payloads("source s", State, "text", "", ValueOptions(), ROOM, "latin-1")
    assert text.read("home/a/state", "grün".encode("latin-1")) == (None, State("a", "grün"))


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (State, {"payload": "text", "time": "at"}, 'time = "at" cannot be read where payload = "text"'),
        (State, {"payload": "text", "fields": {"value": "v"}}, 'fields.value = "v" cannot be read'),
        (Noted, {"payload": "text"}, 'no field has the payload: set fields.NAME = "$value"'),
        (State, {"payload": "number"}, 'set payload = "text", or have the field be a float'),
        (State, {"fields": {"room": "$topic"}}, 'fields.room = "$topic" is the list of all levels'),
        (State, {"client_id": "a\0"}, "client_id holds a NUL"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(kind: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(SourceError) as raised:
        MqttTopic(topic="home/+/state", **options).open("d1", "s", kind)
    assert why in str(raised.value)


class Broker:
    """A net whose sessions each send what they are given, and then end, or stay."""

    def __init__(self, *sessions: list[Incoming], stays: bool = True) -> None:
        self._sessions, self._stays = list(sessions), stays
        self.ids: list[str] = []

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[Broker]:
        self.ids.append(client_id)
        yield self

    async def subscribe(self, topic: str) -> None:
        return None

    async def incoming(self) -> AsyncIterator[Incoming]:
        for one in self._sessions.pop(0) if self._sessions else []:
            yield one
        if self._stays and not self._sessions:
            await asyncio.Event().wait()
        raise HungUpError("the broker has closed the connection")


def topic_of(net: Any, retained: str = "once") -> TopicSplit:
    payloads = Payloads("source s", Level, "json", "", ValueOptions(), AT_VALUE)
    return TopicSplit("d1", "s", net, "home/+/temp", payloads, retained)


async def read_until(split: TopicSplit, enough: Callable[[Batch], bool], limit: int = 100) -> Batch:
    """All that reads give, as one batch, until it is enough."""
    values: list[Any] = []
    rejects: list[Any] = []
    counts: dict[str, int] = {}
    notes: dict[bytes, bytes | None] = {}
    at = 0
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await split.read(at, limit)
            at = found.position
            values += found.values
            rejects += found.rejects
            notes |= found.notes
            for name, count in found.counts.items():
                counts[name] = counts.get(name, 0) + count
            whole = Batch(values, [], [], at, rejects, counts=counts, notes=notes)
            if enough(whole):
                return whole
            await asyncio.sleep(0.005)


def heard(split: TopicSplit, enough: Callable[[Batch], bool], limit: int = 100) -> Batch:
    async def run() -> Batch:
        try:
            return await read_until(split, enough, limit)
        finally:
            await split.close()

    return asyncio.run(run())


KEPT = Incoming("home/kitchen/temp", b"20.5", True)
LIVE = Incoming("home/kitchen/temp", b"20.5")
LAST = Incoming("home/hall/temp", b"1", True)


def test_a_retained_message_is_one_record_over_broken_connections_and_restarts() -> None:
    first = heard(topic_of(Broker([KEPT], [KEPT, LAST])), lambda found: len(found.values) == 2)
    assert first.values == [Level("kitchen", 20.5), Level("hall", 1.0)]
    assert first.counts == {RETAINED: 1}
    again = topic_of(Broker([KEPT, LAST, Incoming("home/attic/temp", b"3", True)]))
    again.take_notes({key: value for key, value in first.notes.items() if value is not None})
    found = heard(again, lambda found: bool(found.values))
    assert (found.values, found.counts) == ([Level("attic", 3.0)], {RETAINED: 2})


def test_what_was_heard_live_is_known_when_it_comes_retained() -> None:
    found = heard(topic_of(Broker([LIVE, LIVE], [KEPT, LAST])), lambda found: len(found.values) == 3, limit=1)
    assert found.values == [Level("kitchen", 20.5)] * 2 + [Level("hall", 1.0)], "what is live always counts"
    assert found.counts == {RETAINED: 1}


def test_another_value_that_was_retained_meanwhile_is_a_record() -> None:
    newer = Incoming("home/kitchen/temp", b"21", True)
    found = heard(topic_of(Broker([KEPT], [newer], [newer, LAST])), lambda found: len(found.values) == 3)
    assert found.values == [Level("kitchen", 20.5), Level("kitchen", 21.0), Level("hall", 1.0)]


@pytest.mark.parametrize(
    ("retained", "values", "counts"),
    [
        ("ignore", [Level("kitchen", 20.5)], {RETAINED: 3}),
        ("always", [Level("kitchen", 20.5)] * 3 + [Level("hall", 1.0)], {}),
    ],
)
def test_retained_messages_are_ignored_or_all_taken(
    retained: str, values: list[Level], counts: dict[str, int]
) -> None:
    split = topic_of(Broker([KEPT], [KEPT, LAST, LIVE]), retained)
    found = heard(split, lambda found: len(found.values) + sum(found.counts.values()) == 4)
    assert (sorted(found.values, key=str), found.counts) == (sorted(values, key=str), counts)


def test_a_broken_retained_message_is_one_dead_letter() -> None:
    broken = Incoming("home/kitchen/temp", b"{", True)
    found = heard(topic_of(Broker([broken], [broken, LAST])), lambda found: bool(found.values))
    assert [reject.raw for reject in found.rejects] == [b"{"]


def test_an_empty_payload_is_no_data_and_frees_its_topic() -> None:
    cleared = Incoming("home/kitchen/temp", b"")
    found = heard(topic_of(Broker([KEPT, cleared], [KEPT])), lambda found: len(found.values) == 2)
    assert (found.rejects, found.counts) == ([], {EMPTY: 1})


def test_the_topic_that_has_not_changed_for_longest_is_forgotten_first() -> None:
    last, kept = LastPayloads(topics_max=2), dict[bytes, bytes]()
    for topic, payload in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1")):
        for key, value in last.remember(topic, payload).items():
            if value is None:
                del kept[key]
            else:
                kept[key] = value
    restored = LastPayloads(topics_max=2)
    restored.restore(kept)
    for memory in (last, restored):
        assert [memory.is_last(*one) for one in (("a", b"2"), ("b", b"1"), ("c", b"1"))] == [
            True,
            False,
            True,
        ]
    assert len(restored.remember("d", b"1")) == 2
    assert not restored.is_last("a", b"2")


def test_a_session_that_is_taken_over_is_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    net = Broker(stays=False)
    split = topic_of(net)
    split.name_client("source7")
    found = heard(split, lambda found: TAKEN_OVER in found.counts)
    assert found.counts == {TAKEN_OVER: 1}
    assert set(net.ids) == {"source7"}
    assert "session_taken_over: each of the last 3 sessions was ended within 60 s" in caplog.text
    assert "the same id, source7: see the broker's log" in caplog.text


def test_an_id_of_the_users_own_stands_above_that_of_the_agent() -> None:
    (own,) = MqttTopic[Level](topic="t", client_id="thing-7", fields=AT_VALUE).open("d1", "s", Level)
    assert isinstance(own, TopicSplit)
    own.name_client("source7")
    assert own.client_id == "thing-7"


PAGE = (Path(__file__).parents[2] / "docs" / "sources" / "mqtt.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(.+?)` \| `(.*?)` \| `(room=.*?)` \|$", re.MULTILINE)


class Whole(Record):
    room: str
    value: bytes


def arguments(text: str) -> dict[str, Any]:
    """The keyword arguments of a call, as they are written."""
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}


def test_each_row_of_the_page_is_read_as_it_says() -> None:
    rows = ROW.findall(PAGE)
    assert len(rows) >= 9
    for sent, options, record in rows:
        given, value = arguments(options), arguments(record)
        kind: Any = {str: State, float: Level, bytes: Whole}[type(value["value"])]
        source = MqttTopic[Any](topic="home/+/state", **given)
        payloads = Payloads("source s", kind, source.payload, "", source, source.fields)
        assert payloads.read("home/a/state", sent.encode()) == (None, kind(**value)), sent


def test_the_flow_of_the_page_runs_against_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rooms.py").write_text(PAGE.split("```python\n# rooms.py\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    choice = choose_broker("amqtt", tmp_path)
    graph = load_flow("rooms:flow").graph().with_options({"climate": {"port": choice.port}})
    process = subprocess.Popen(choice.command, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(choice.host, choice.port, timeout_s=WAIT_S)
        found, counts = asyncio.run(_rooms(graph, choice.port))
    finally:
        process.kill()
        process.wait()
        sys.modules.pop("rooms", None)
    assert found == [("kitchen", 20.5), ("hall", 21.0)]
    assert counts == {}


async def _rooms(graph: Any, port: int) -> tuple[list[Any], dict[str, int]]:
    """The warm rooms, of one that was retained and of others that are published to whoever listens."""
    found: list[Any] = []

    def going() -> bool:
        return len(found) < 2

    async with asyncio.timeout(WAIT_S), aiomqtt.Client("127.0.0.1", port) as sender:
        await sender.publish("home/kitchen/climate", b'{"temperature": 20.5}', qos=1, retain=True)
        run = LocalRun(graph, clock=SystemClock(), randomness=SystemRandomness())
        async for output in run.outputs(going=going):
            rooms = [one for batch in output.batches.get("warm_out", []) for one in batch.values]
            found += [(one.room, one.celsius) for one in rooms]
            if rooms and len(found) == 1:
                await sender.publish("home/attic/climate", b'{"temperature": 3}', qos=1)
                await sender.publish("home/hall/climate", b'{"temperature": 21}', qos=1)
    return found, run.progress.counts
