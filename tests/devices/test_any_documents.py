"""Documents of JSON with values of every type through MQTT, Kafka and HTTP: each source reads the same.

A document is written here, number by number, beside the record that it means. A spoiled one has a part that
fits no field: it is a dead letter with its bytes, a code and one sentence that names the field.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Annotated, Any

import msgspec
import pytest

from geartrain import Digits, Record
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.source import Batch
from geartrain_devices.http_poll import HttpPoll
from geartrain_devices.kafka_topic import KafkaTopic
from geartrain_devices.mqtt_topic import MqttTopic
from tests.devices.test_kafka_topic import Cluster
from tests.running_broker import running_broker
from tests.sinks.test_any_values import a_price, a_real, a_text, a_time, a_whole
from tests.waiting import WAIT_S

DOCUMENTS = 200
NANS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Side(Enum):
    BUY = 1
    SELL = "sell"


class Inner(Record):
    name: str
    price: Annotated[Decimal, Digits(18, 9)]


class Every(Record):
    number: int
    text: str | None = None
    whole: int | None = None
    real: float | None = None
    price: Annotated[Decimal, Digits(18, 9)] | None = None
    good: bool | None = None
    at: datetime | None = None
    side: Side | None = None
    raw: bytes | None = None
    words: list[str] | None = None
    counts: dict[str, int] | None = None
    inner: Inner | None = None
    any: Any = None


SPOILED = [
    ("text", '"\\ud800"', {"not_json"}),
    ("text", '"a\\udfffb"', {"not_json"}),
    ("text", "1", {"bad_value"}),
    ("words", '["a", "\\udc00\\ud800"]', {"not_json"}),
    ("whole", "9223372036854775808", {"bad_value"}),
    ("whole", "-9223372036854775809", {"bad_value"}),
    ("whole", "1" * 4_000, {"bad_value"}),
    ("whole", "1" * 5_000, {"bad_value", "not_json"}),
    ("whole", "1.5", {"bad_value"}),
    ("whole", "1e2", {"bad_value"}),
    ("whole", '"7"', {"number_as_text"}),
    ("real", "1e400", {"bad_value"}),
    ("real", "-1e999999999", {"bad_value"}),
    ("real", "1e99999999999999999999", {"bad_value", "not_json"}),
    ("real", "true", {"bad_value"}),
    ("price", "1e-10", {"bad_value"}),
    ("price", "1000000000", {"bad_value"}),
    ("price", "1e999999999", {"bad_value"}),
    ("price", "1e-999999999", {"bad_value"}),
    ("price", "0." + "1" * 38, {"bad_value"}),
    ("price", '"NaN"', {"nan"}),
    ("at", '"0000-12-31T23:59:59Z"', {"bad_value"}),
    ("at", '"0001-01-01T00:00:00+00:01"', {"bad_value"}),
    ("at", '"9999-12-31T23:59:59-00:01"', {"bad_value"}),
    ("at", '"10000-01-01T00:00:00Z"', {"bad_value"}),
    ("at", "1e30", {"bad_value"}),
    ("side", '"HOLD"', {"bad_value"}),
    ("raw", '"%%"', {"bad_value"}),
    ("counts", '{"a": 9223372036854775808}', {"bad_value"}),
    ("inner", '{"name": "a"}', {"missing_value"}),
    ("inner", '{"name": "a", "price": 1e-12}', {"bad_value"}),
    ("any", '{"a": [1e400]}', {"bad_value"}),
    ("any", "[" * 101 + "]" * 101, {"bad_value"}),
    ("any", '{"a": 18446744073709551616}', {"bad_value"}),
]
"""(field, what stands there, the codes that its dead letter may have)."""


def shown_real(value: float, rng: Random) -> str:
    """A float in a form that has it exactly: the shortest, or all of its digits, as -0 for -0.0."""
    return rng.choice([repr(value), format(Decimal(value), "f" if abs(value) < 1e30 else "e")])


def shown_time(value: datetime, rng: Random) -> str:
    shown = value.isoformat(timespec="microseconds")
    return json.dumps(rng.choice([shown, shown.replace("+00:00", "Z"), shown.replace("T", " ")]))


def shown_price(value: Decimal, rng: Random) -> str:
    plain = format(value, "f")
    return rng.choice([plain, f'"{plain}"', f"{value.scaleb(9):f}E-9"])


def shown_text(value: str, rng: Random) -> str:
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def parts_of(rng: Random) -> dict[str, tuple[Any, str]]:
    """By field, a value and the JSON of it."""
    real = next(one for one in iter(lambda: a_real(rng), None) if math.isfinite(one))
    text, price, at, whole = a_text(rng) + rng.choice(["", "\0"]), a_price(rng), a_time(rng), a_whole(rng)
    raw, words = rng.choice([(b"", '""'), (b"\x00\xff\xfe", '"AP/+"')]), [a_text(rng) for _ in range(2)]
    side = rng.choice([(Side.BUY, "1"), (Side.SELL, '"sell"'), (Side.BUY, '"BUY"')])
    counts = {a_text(rng): a_whole(rng) for _ in range(2)}
    shown_counts = ", ".join(f"{shown_text(name, rng)}: {count}" for name, count in counts.items())
    inner = f'{{"price": {shown_price(price, rng)}, "name": {shown_text(text, rng)}}}'
    other = next(one for one in iter(lambda: a_real(rng), None) if math.isfinite(one))
    return {
        "text": (text, shown_text(text, rng)),
        "whole": (whole, str(whole)),
        "real": (real, shown_real(real, rng)),
        "price": (price, shown_price(price, rng)),
        "good": (True, "true"),
        "at": (at, shown_time(at, rng)),
        "side": side,
        "raw": raw,
        "words": (words, json.dumps(words)),
        "counts": (counts, f"{{{shown_counts}}}"),
        "inner": (Inner(text, price), inner),
        "any": ([whole, None, {"": other}], f'[{whole}, null, {{"": {other!r}}}]'),
    }


class Drawn(msgspec.Struct, frozen=True):
    """A document, the record that it means, and where it means none, which field is wrong and how."""

    raw: bytes
    record: Every | None
    field: str = ""
    codes: frozenset[str] = frozenset()


def drawn(*, nan: bool) -> list[Drawn]:
    """Documents; nan: whether NaN and infinity are read."""
    found = []
    for number in range(DOCUMENTS):
        rng = Random(number)
        parts = parts_of(rng)
        for name in rng.sample(sorted(parts), rng.randrange(len(parts))):
            del parts[name]
        wrong, codes = "", frozenset[str]()
        if number < len(SPOILED):
            wrong, shown, allowed = SPOILED[number]
            parts[wrong], codes = (None, shown), frozenset(allowed)
        elif number % 5 == 0:
            name, shown = rng.choice(["real", "any", "price", "whole"]), rng.choice(sorted(NANS))
            parts[name] = (NANS[shown], shown)
            if not nan or name not in ("real", "any"):
                # Without the option a decoder names the word; with it each field says whether it takes it.
                wrong, codes = name if nan else "", frozenset({"nan", "bad_value"} if nan else {"nan"})
        shuffled = rng.sample(sorted(parts), len(parts))
        text = ", ".join([f'"number": {number}', *(f'"{name}": {parts[name][1]}' for name in shuffled)])
        values = {name: value for name, (value, _) in parts.items()}
        record = None if codes else Every(number, **values)
        found.append(Drawn(f"{{{text}}}".encode(), record, wrong, codes))
    return found


def check(documents: Sequence[Drawn], found: Batch) -> None:
    """Each document is the record that it means, or a dead letter that says why it is none."""
    meant = [one.record for one in documents if one.record is not None]
    assert len(found.values) == len(meant)
    for held, wanted in zip(found.values, meant, strict=True):
        assert exactly(held) == exactly(wanted)
    spoiled = [one for one in documents if one.record is None]
    assert [reject.raw for reject in found.rejects] == [one.raw for one in spoiled]
    for reject, one in zip(found.rejects, spoiled, strict=True):
        assert reject.code in one.codes, (reject.code, reject.reason)
        assert reject.code == "not_json" or one.field in reject.reason, reject.reason
        assert "\n" not in reject.reason
        assert len(reject.reason) < 400, reject.reason


def exactly(value: Any) -> Any:
    """A value with its type, floats as their bits, so that NaN and the sign of zero count."""
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, Record):
        return type(value), {name: exactly(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: exactly(one) for name, one in value.items()}
    if isinstance(value, list):
        return [exactly(one) for one in value]
    return type(value), str(value) if isinstance(value, Decimal) else value


async def read(split: Any, rows: int) -> Batch:
    """What a split gives until there are so many rows; numbers tell the order."""
    values: list[Any] = []
    rejects: list[Any] = []
    position = 0
    async with asyncio.timeout(WAIT_S):
        while len(values) + len(rejects) < rows:
            found = await split.read(position, 1_000)
            values, rejects, position = (
                values + list(found.values),
                rejects + list(found.rejects),
                found.position,
            )
            await asyncio.sleep(0.005)
    await split.close()
    return Batch(values, [0] * len(values), list(range(len(values))), position, rejects)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a broker for all tests here: mosquitto where the machine has it."""
    with running_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.port


async def is_subscribed(split: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not split._connector.is_connected:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("nan", [False, True])
def test_messages_of_mqtt_mean_what_they_say(port: int, nan: bool) -> None:
    documents = drawn(nan=nan)

    async def story() -> Batch:
        (split,) = MqttTopic[Every](topic="in/+", port=port, nan=nan).open("d1", "s", Every)
        reading = asyncio.create_task(read(split, len(documents) + 1))
        async with AiomqttNet("127.0.0.1", port).connect("writer") as connection:
            await is_subscribed(split)
            for number, one in enumerate(documents):
                await connection.publish(f"in/{number}", one.raw)
            await connection.publish("in/last", b'{"number": -1}')
            await connection.drain()
        return await reading

    check([*documents, Drawn(b"", Every(-1))], asyncio.run(story()))


@pytest.mark.parametrize("nan", [False, True])
def test_messages_of_kafka_mean_what_they_say(nan: bool) -> None:
    documents, cluster = drawn(nan=nan), Cluster()
    cluster.say(0, *(one.raw for one in documents))

    async def story() -> Batch:
        source = KafkaTopic[Every](brokers=cluster.brokers, topic="rows", nan=nan)
        (split,) = source.open("cloud-1", "rows", Every)
        return await read(split, len(documents))

    check(documents, asyncio.run(story()))


class Answering(BaseHTTPRequestHandler):
    """Answers each body once, then nothing."""

    server: Any

    def do_GET(self) -> None:
        body = self.server.bodies.pop(0) if self.server.bodies else b""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        return


@pytest.fixture
def answered() -> Iterator[Callable[[list[bytes], dict[str, Any]], Batch]]:
    """What `HttpPoll` reads of these answers; options: of the source, and `rows` to wait for."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def answer(bodies: list[bytes], options: dict[str, Any]) -> Batch:
        rows = options.pop("rows")

        async def story() -> Batch:
            url = f"http://127.0.0.1:{server.server_port}/"
            (split,) = HttpPoll[Every](url=url, every_s=0.001, **options).open("d1", "s", Every)
            return await read(split, rows)

        server.bodies = list(bodies)
        return asyncio.run(story())

    yield answer
    server.shutdown()
    thread.join(WAIT_S)
    server.server_close()


@pytest.mark.parametrize("nan", [False, True])
def test_answers_of_http_mean_what_they_say(answered: Any, nan: bool) -> None:
    documents = drawn(nan=nan)
    check(documents, answered([one.raw for one in documents], {"nan": nan, "rows": len(documents)}))


@pytest.mark.parametrize("nan", [False, True])
def test_a_list_within_an_answer_of_http_means_what_each_part_says(answered: Any, nan: bool) -> None:
    """A part that no decoder reads would make a dead letter of the whole list, so it has none."""
    documents = [one for one in drawn(nan=nan) if one.record is not None or "not_json" not in one.codes]
    documents = [one for one in documents if nan or "nan" not in one.codes or one.field]
    body = b'{"found": [' + b", ".join(one.raw for one in documents) + b"]}"
    found = answered([body], {"nan": nan, "items": "found", "rows": len(documents)})
    assert len(found.rejects) == sum(one.record is None for one in documents)
    raws = [reject.raw for reject in found.rejects]  # written anew, so with other spaces
    numbers = [json.loads(raw, parse_constant=str)["number"] for raw in raws]
    spoiled = [one for one in documents if one.record is None]
    assert numbers == [json.loads(one.raw, parse_constant=str)["number"] for one in spoiled]
    again = [msgspec.structs.replace(one, raw=raw) for one, raw in zip(spoiled, raws, strict=True)]
    check([one for one in documents if one.record is not None] + again, found)
