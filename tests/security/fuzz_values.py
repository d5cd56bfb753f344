"""Values as sources get them: payloads of MQTT, JSON, times, registers of Modbus, answers of HTTP.

Readers of `tests.security.fuzz`. The check is equality with what another way gives: Python's own `json`,
`Decimal` and `datetime`, and `struct` over bytes that are put in order one by one. What that way reads and
the source refuses is a failure as much as another value is.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from http.client import HTTPConnection, HTTPResponse
from random import Random
from typing import Annotated, Any
from urllib.request import HTTPDefaultErrorHandler, HTTPErrorProcessor, HTTPHandler, OpenerDirector, Request

from geartrain import Digits, Record
from geartrain_devices.http_requests import NoAnswerError, ask
from geartrain_devices.json_fields import JsonFields
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.modbus_registers import Layout, Register, parse_register
from geartrain_devices.no_record import NOT_A_RECORD, NoRecordError, code_of
from geartrain_devices.payloads import Payloads
from geartrain_devices.text_bytes import coding_of
from geartrain_devices.written_times import NoTimeError, TimeOptions, Times
from tests.security.measured import Memory, Outcome
from tests.security.spoil import SEED, inputs, spoiled


class Valued(Record):
    """A value of each kind that JSON has; `amount` is exact."""

    amount: Annotated[Decimal, Digits(18, 9)] | None = None
    count: int | None = None
    level: float | None = None
    name: str | None = None


def _refused(error: ValueError, data: object) -> None:
    """Fail for a refusal without a code of its own."""
    if code_of(error) == NOT_A_RECORD:
        raise AssertionError(f"{data!r} is refused without a code: {error}")


def json_values(numbers: range) -> Outcome:
    """Documents with numbers and texts: each value is that which Python's own decoder reads exactly."""
    good = (
        b'{"amount": 123456789.123456789, "count": 9007199254740993, "level": 0.1, "name": "a\\u00e9\\n"}',
        b'{"count": -9223372036854775808, "level": 1e308, "amount": -0.000000001}',
        b'{"level": 5e-324, "name": "gr\xc3\xb6\xc3\x9fe", "more": [1, {"x": null}], "count": 0}',
        b' {"amount": 1E+2, "amount": 7, "level": 12345678901234567890, "name": ""}\n',
        b'{"name": "\\ud83d\\ude00", "level": -0.0, "count": null}',
    )
    fields = JsonFields("source s", Valued, "", ValueOptions(), {})
    memory, refused = Memory(numbers), 0
    for number, data in inputs(good, numbers, spoiled):
        memory.look(number)
        meant = _meant(data)
        try:
            _, found = fields.read(data)
        except ValueError as error:
            _refused(error, data)
            refused += 1
            found = None
        if not _is_same(found, meant):
            raise AssertionError(f"{data!r} is {found}, and means {meant}")
    return Outcome("json_values", len(numbers) - refused, refused, memory.growth_bytes())


def _meant(data: bytes) -> Valued | None:
    """What a document says by Python's own decoder, None where it is no such record."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
        document = json.loads(
            text,
            parse_float=Decimal,
            parse_int=lambda digits: Decimal(digits) if digits == "-0" else int(digits),
            parse_constant=lambda _: 1 // 0,
            object_pairs_hook=_object,
        )
        json.dumps(document, default=str, ensure_ascii=False).encode()
    except (ValueError, ArithmeticError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    amount, count, level, name = (document.get(key) for key in ("amount", "count", "level", "name"))
    try:
        return Valued(_amount(amount), _count(count), _level(level), _name(name))
    except (ValueError, ArithmeticError):
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, of which each value counts as read, also one whose name comes again."""
    json.dumps(pairs, default=str, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    return dict(pairs)


def _amount(value: Any) -> Decimal | None:
    if isinstance(value, str):
        if not re.fullmatch(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?\s*", value):
            raise ValueError(value)
        value = Decimal(value.strip())
    if value is None:
        return None
    if type(value) not in (int, Decimal):
        raise ValueError(value)
    scaled = Decimal(value).as_tuple()
    places = int(scaled.exponent) + 9
    digits = "".join(map(str, scaled.digits)).lstrip("0")
    if digits and (places > 18 or len(digits) + places > 18 or (places < 0 and digits[places:].strip("0"))):
        raise ValueError(value)
    return Decimal(value)


def _count(value: Any) -> int | None:
    if type(value) is Decimal and str(value) in ("-0", "-0E+0"):
        value = 0
    if value is not None and (type(value) is not int or not -(2**63) <= value < 2**63):
        raise ValueError(value)
    return value


def _level(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, Decimal):
        raise ValueError(value)
    found = float(value)
    if math.isinf(found):
        raise ValueError(value)
    return found


def _name(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(value)
    return value


def _is_same(found: Valued | None, meant: Valued | None) -> bool:
    if found is None or meant is None:
        return found is meant
    signs = [
        math.copysign(1.0, one.level or 1.0) if one.level != 0 else str(one.level) for one in (found, meant)
    ]
    return found == meant and signs[0] == signs[1]


def payloads(numbers: range) -> Outcome:
    """Payloads of MQTT as texts, numbers and bytes, in several encodings: nothing is lost or changed."""
    good = [
        text.encode(name)
        for text in ("21.5", "+07.50", "-1e3", " .5 ", "größe", '{"a": 1}', "NaN", "12345678901234567890.5")
        for name in ("utf-8", "utf-8-sig", "utf-16", "cp1252")
    ]
    memory, refused = Memory(numbers), 0
    for number, data in inputs(good, numbers, spoiled):
        memory.look(number)
        try:
            _WAYS[number % len(_WAYS)](data, ("", "", "cp1252", "utf-16-le")[number // 3 % 4])
        except NoRecordError as error:
            _refused(error, data)
            refused += 1
    return Outcome("payloads", len(numbers) - refused, refused, memory.growth_bytes())


def _payloads(kind: Any, payload: Any, encoding: str) -> Payloads:
    return Payloads("source s", kind, payload, "", ValueOptions(), {}, encoding)


_ENCODINGS = ("", "cp1252", "utf-16-le")
_TEXTS = {encoding: _payloads(str, "text", encoding) for encoding in _ENCODINGS}
_NUMBERS = {
    encoding: _payloads(Annotated[Decimal, Digits(18, 9)], "number", encoding) for encoding in _ENCODINGS
}
_BYTES = _payloads(bytes, "bytes", "")


def _check_bytes(data: bytes, _: str) -> None:
    if (found := _BYTES.read("a/b", data)[1]) != data:
        raise AssertionError(f"{data!r} is {found!r}")


def _check_text(data: bytes, encoding: str) -> None:
    found, coding = _TEXTS[encoding].read("a/b", data)[1], coding_of(data, encoding)
    if coding.mark + found.encode(coding.name) != data:
        raise AssertionError(f"{data!r} is {found!r}")


def _check_number(data: bytes, encoding: str) -> None:
    try:
        coding = coding_of(data, encoding)
        text = data[len(coding.mark) :].decode(coding.name).strip(" \t\r\n\x0b\f")
        meant = _amount(Decimal(text)) if re.fullmatch(r"[0-9.eE+-]+", text) else None
    except (ValueError, InvalidOperation):
        meant = None
    try:
        found = _NUMBERS[encoding].read("a/b", data)[1]
    except ValueError:
        if meant is not None:
            raise AssertionError(f"{data!r} is refused, and means {meant}") from None
        raise
    if found != meant:
        raise AssertionError(f"{data!r} is {found}, and means {meant}")


_WAYS = (_check_bytes, _check_text, _check_number)


def times(numbers: range) -> Outcome:
    """Texts of times: each has the time that the calendar gives, and what the grammar has not is refused."""
    good = (
        b"2024-02-29T12:30:00Z",
        b"2024-01-01 12:30:00,25",
        b"2016-12-31T23:59:60.5Z",
        b"2017-01-01T00:59:60+01:00",
        b"2024-12-31t24:00:00z",
        b"20240101T123000.123456789-0330",
        b"0001-01-01T00:00 +00:53:28",
        b" 9999-12-31 23:59:59.999999999 UTC\r\n",
        b"2024-01-01",
    )
    reader = Times("source s", TimeOptions())
    memory, refused = Memory(numbers), 0
    for number, data in inputs(good, numbers, spoiled):
        memory.look(number)
        text = data.decode("latin-1")
        meant = _moment(text)
        try:
            found = reader.of_text(text)
        except NoTimeError:
            refused += 1
            found = None
        if found != meant:
            raise AssertionError(f"{text!r} is {found}, and means {meant}")
    return Outcome("times", len(numbers) - refused, refused, memory.growth_bytes())


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(
    r"(\d{4})(-?)(\d\d)\2(\d\d)(?:([Tt ])(\d\d)(?:(:?)(\d\d)(?:\7(\d\d)(?:[.,](\d{1,18}))?)?)"
    r"( ?UTC|[Zz]| ?([+-])(\d\d)(?:(:?)(\d\d)(?:(:)(\d\d))?)?)?)?",
    re.ASCII,
)


def _moment(text: str) -> int | None:
    """Microseconds since 1970 UTC by the calendar of Python and the grammar of docs/sources/times.md; None
    where a text is none of it.
    """
    found = _TIME.fullmatch(text.strip(" \t\r\n"))
    if found is None:
        return None
    dash, between, colon, offset_colon, last_colon = (found[at] for at in (2, 5, 7, 14, 16))
    if bool(dash) != bool(colon) and between is not None:
        return None
    if not dash and (between is None or between == " "):
        return None
    if last_colon and not offset_colon:
        return None
    hour, minute, second = (int(found[at] or 0) for at in (6, 8, 9))
    east = [int(found[at] or 0) for at in (13, 15, 17)]
    micros = int((found[10] or "0")[:6].ljust(6, "0"))
    is_midnight = hour == 24 and minute == second == micros == 0
    if (hour > 23 and not is_midnight) or minute > 59 or second > 60 or east[0] > 23 or max(east[1:]) > 59:
        return None
    try:
        day = datetime(int(found[1]), int(found[3]), int(found[4]), tzinfo=UTC)
    except ValueError:
        return None
    shown = (day - _EPOCH) + timedelta(
        hours=hour, minutes=minute, seconds=min(second, 59), microseconds=micros
    )
    ahead = timedelta(hours=east[0], minutes=east[1], seconds=east[2])
    moment = shown + ahead if found[12] == "-" else shown - ahead
    of_day = moment % timedelta(days=1)
    if second == 60:
        if of_day < timedelta(hours=23, minutes=59, seconds=59):
            return None
        moment += timedelta(seconds=1)
    us = moment // timedelta(microseconds=1)
    first, end = ((datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1), _END_US)
    return us if first <= us < end else None


_END_US = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH + timedelta(days=1)) // timedelta(microseconds=1)

_KINDS = {
    "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q", "int64": "q", "float32": "f",
    "float64": "d",
}  # fmt: skip
_PLACES: dict[int, dict[str, tuple[int, ...]]] = {
    # By size and order: which byte of an answer is the next of the number, highest first.
    2: {"abcd": (0, 1), "badc": (1, 0)},
    4: {"abcd": (0, 1, 2, 3), "cdab": (2, 3, 0, 1), "badc": (1, 0, 3, 2), "dcba": (3, 2, 1, 0)},
    8: {
        "abcd": (0, 1, 2, 3, 4, 5, 6, 7),
        "cdab": (6, 7, 4, 5, 2, 3, 0, 1),
        "badc": (1, 0, 3, 2, 5, 4, 7, 6),
        "dcba": (7, 6, 5, 4, 3, 2, 1, 0),
    },
}


def registers(numbers: range) -> Outcome:
    """Answers of Modbus of any bytes: each register is in the field that names it, as `struct` reads it."""
    memory, refused = Memory(numbers), 0
    for number in numbers:
        memory.look(number)
        rng = Random(SEED + number)
        layout, expected, answer = _layout(rng)
        try:
            found = layout.values(answer)
        except ValueError as error:
            _refused(error, answer)
            refused += 1
            continue
        for name, (raw, code) in expected.items():
            value = found.pop(name)
            if code == "text":
                text = raw.split(b"\0")[0].rstrip(b" ")
                coding = coding_of(text)
                is_same = coding.mark + str(value).encode(coding.name) == text
            elif code == "?":
                is_same = value is bool(raw[0])
            else:
                is_same = isinstance(value, int | float) and _packed(code, value) == _packed(
                    code, struct.unpack(f">{code}", raw)[0]
                )
            if not is_same:
                raise AssertionError(f"input {number}: {name} is {value!r}, of the bytes {raw!r} as {code}")
        if found:
            raise AssertionError(f"input {number}: {found} was not asked for")
    return Outcome("registers", len(numbers) - refused, refused, memory.growth_bytes())


def _packed(code: str, value: float) -> bytes:
    return struct.pack(f">{code}", value)


def _layout(rng: Random) -> tuple[Layout, dict[str, tuple[bytes, str]], bytes]:
    """Some registers, the bytes of each in the order of the number with what reads them, and an answer."""
    made: dict[str, Register] = {}
    expected: dict[str, tuple[bytes, str]] = {}
    at, answer = rng.randrange(60_000), b""
    for _ in range(rng.randrange(1, 6)):
        name = f"f{at}"
        if rng.random() < 0.3:
            size = 2 * rng.randrange(1, 6)
            raw = sent = spoiled(rng, [b"Pro3EM-1", b"AB\0C", b"a b ", "größe".encode()])[:size].ljust(
                size, b"\0"
            )
            made[name], code = parse_register("r", f"holding {at} text {size // 2}"), "text"
        else:
            kind, code = rng.choice([*_KINDS.items()])
            size = struct.calcsize(f">{code}")
            order = rng.choice(sorted(_PLACES[size]))
            sent = rng.randbytes(size)
            raw = bytes(sent[place] for place in _PLACES[size][order])
            made[name] = parse_register("r", f"holding {at} {kind} order {order}")
        expected[name] = (raw, code)
        answer, at = answer + sent, at + size // 2
    return Layout(made), expected, answer


def answers(numbers: range) -> Outcome:
    """Answers of HTTP: a body is all of what the server sent, or there is a reason in words of ours."""
    good = (
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\nETag: "a"\r\n\r\n{"value": 20}',
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=cp1252\r\n\r\n{"value": 20}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{"valu\r\n7;x=y\r\ne": 20}\r\n0\r\n\r\n',
        b"HTTP/1.1 204 No Content\r\nDate: Fri, 27 Nov 2026 14:00:00 GMT\r\n\r\n",
        b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\n\r\nnot now",
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
    )
    memory, refused = Memory(numbers), 0
    for number, data in inputs(good, numbers, spoiled):
        memory.look(number)
        opener = OpenerDirector()
        for handler in (_Answering(data), HTTPErrorProcessor(), HTTPDefaultErrorHandler()):
            opener.add_handler(handler)
        try:
            found = ask(opener, "http://gateway.example/values", {"If-None-Match": '"a"'}, 1_000)
        except NoAnswerError as error:
            refused += 1
            if _FOREIGN.search(str(error)):
                raise AssertionError(f"{data!r} is refused in another's words: {error}") from None
            continue
        if found is not None and found.body not in _bodies(data):
            raise AssertionError(f"{data!r} is {found.body!r}")
    return Outcome("answers", len(numbers) - refused, refused, memory.growth_bytes())


_FOREIGN = re.compile(
    r"Errno|IncompleteRead|Error\(|object|<class|urlopen|invalid literal|line too long", re.IGNORECASE
)


def _bodies(data: bytes) -> Iterator[bytes]:
    """What the body of an answer may be: by its length, by its chunks, or all behind its head."""
    text = data.decode("latin-1")  # a byte is a character
    for end in re.finditer(r"\r?\n\r?\n", text):
        rest = text[end.end() :]
        lengths = re.findall(r"\n[^\n]*content-length:\s*\+?([0-9]+)", text[: end.start()], re.IGNORECASE)
        whole = [int(length) for length in lengths if len(length) < 7 and len(rest) >= int(length)]
        for body in (rest, *(rest[:length] for length in whole), _unchunked(rest)):
            yield body.encode("latin-1")
    yield b""


def _unchunked(rest: str) -> str:
    body = ""
    while (found := re.match(r"\s*([0-9a-fA-F]+)\s*?(?:;[^\n]*)?\n", rest)) and int(found[1], 16):
        size = int(found[1], 16)
        body, rest = body + rest[found.end() :][:size], rest[found.end() + size + 2 :]
    return body


class _Answering(HTTPHandler):
    """Gives these bytes as the answer of any server."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def http_open(self, req: Request) -> HTTPResponse:
        """The answer, as `urllib` reads it from a connection."""
        data = self._data

        class Connection(HTTPConnection):
            """One whose bytes are there already."""

            def connect(self) -> None:
                """Take them for what came."""
                self.sock = _Bytes(data)

        return self.do_open(Connection, req)


class _Bytes:
    """What of a socket is used, over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def sendall(self, _: bytes) -> None:
        """Take the request."""

    def makefile(self, _: str, *__: Any) -> io.BytesIO:
        """What came."""
        return io.BytesIO(self._data)

    def close(self) -> None:
        """Nothing is open."""
