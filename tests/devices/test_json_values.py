"""Values of JSON: numbers exactly as they are written, and a reason that says what to do for the rest."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geartrain import Digits, Record
from geartrain_devices.http_poll import _records
from geartrain_devices.json_fields import JsonFields, decode_document
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.no_record import NoRecordError


class Color(Enum):
    """A member has another value than its name."""

    RED = "r"
    BLUE = "b"


class Part(Record):
    """What is nested."""

    size: float
    price: Decimal | None = None


class Everything(Record):
    """Each type that a field may have."""

    amount: Annotated[Decimal, Digits(18, 9)] | None = None
    level: float | None = None
    count: int | None = None
    good: bool | None = None
    name: str | None = None
    raw: bytes | None = None
    at: datetime | None = None
    color: Color | None = None
    parts: list[Part] | None = None
    sizes: dict[str, float] | None = None
    pair: tuple[int, str] | None = None
    either: list[int | str] | None = None
    anything: Any = None


def read(text: str | bytes, kind: Any = Everything, **options: Any) -> Any:
    raw = text.encode() if isinstance(text, str) else text
    return JsonFields("source s", kind, "", ValueOptions(**options), {}).read(raw)[1]


def reason(text: str | bytes, kind: Any = Everything, **options: Any) -> tuple[str, str]:
    with pytest.raises(NoRecordError) as refused:
        read(text, kind, **options)
    return refused.value.code, str(refused.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("123456789.123456789", "123456789.123456789"),
        ('"123456789.123456789"', "123456789.123456789"),
        ("999999999.999999999", "999999999.999999999"),
        ("0.1", "0.100000000"),
        ("123456789.000000001", "123456789.000000001"),
        ("1e3", "1000.000000000"),
        ("-0.0", "0E-9"),
        ("5", "5.000000000"),
    ],
)
def test_a_decimal_number_is_what_is_written(written: str, meant: str) -> None:
    assert repr(read(f'{{"amount": {written}}}').amount) == f"Decimal('{meant}')"


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**9) + 1, max_value=10**9 - 1)
)
def test_any_decimal_number_passes_through_json_unchanged(number: Decimal) -> None:
    for written in (f"{number:f}", f'"{number:f}"', str(number)):
        assert read(f'{{"amount": {written}}}').amount == number


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(5e-324)
@example(1.7976931348623157e308)
@example(0.1 + 0.2)
@example(2.2250738585072011e-308)
def test_any_float_passes_through_json_to_the_last_bit(number: float) -> None:
    document = f'{{"level": {number!r}, "parts": [{{"size": {number!r}}}], "anything": [{number!r}]}}'
    got = read(document)
    assert got.parts is not None
    for found in (got.level, got.parts[0].size, got.anything[0]):
        assert found.hex() == number.hex()


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
@example(2**53 + 1)
def test_any_whole_number_of_64_bits_passes_through_json(number: int) -> None:
    got = read(f'{{"count": {number}, "anything": {number}, "either": [{number}]}}')
    assert (got.count, got.anything, got.either) == (number, number, [number])


def test_what_is_nested_is_read_by_its_type() -> None:
    got = read(
        '{"parts": [{"size": 1, "price": 0.10}, {"size": 2.5}], "sizes": {"a": 1}, "pair": [1, "x"], '
        '"either": ["x", 1], "raw": "aGk=", "color": "b", "at": "2024-01-01 00:00+01", "good": true}'
    )
    assert got.parts == [Part(1.0, Decimal("0.10")), Part(2.5)]
    assert (got.sizes, got.pair, got.either, got.raw) == ({"a": 1.0}, (1, "x"), ["x", 1], b"hi")
    assert (got.color, got.at, got.good) == (Color.BLUE, datetime(2023, 12, 31, 23, tzinfo=UTC), True)


@pytest.mark.parametrize(
    ("written", "code", "why"),
    [
        (
            '{"level": "317.3988"}',
            "number_as_text",
            "field level is the text '317.3988', and must be a number: set numbers_as_text",
        ),
        (
            '{"count": "5"}',
            "number_as_text",
            "field count is the text '5', and must be a whole number: set numbers_as_text",
        ),
        ('{"level": "hot"}', "bad_value", "field level is the text 'hot', and must be a number"),
        ('{"level": true}', "bad_value", "field level is true, and must be a number"),
        ('{"level": [1]}', "bad_value", "field level is a list, and must be a number"),
        ('{"level": 1e400}', "bad_value", "field level is 1E+400, which is beyond a float of 64 bits"),
        ('{"level": "NaN"}', "nan", "field level is the text 'NaN': set nan = true"),
        ('{"count": 1.5}', "bad_value", "field count is 1.5, and must be a whole number"),
        (
            '{"count": 9223372036854775808}',
            "bad_value",
            "field count is 9223372036854775808, which does not fit into 64 bits",
        ),
        ('{"good": 1}', "bad_value", "field good is 1, and must be true or false"),
        ('{"name": 5}', "bad_value", "field name is 5, and must be a text"),
        ('{"raw": "?"}', "bad_value", "field raw is the text '?', and must be bytes as base64"),
        ('{"at": 5}', "bad_value", 'field at is 5: set time_unit = "s"'),
        ('{"at": "noon"}', "bad_value", "field at: 'noon' is not an ISO 8601 date or time"),
        ('{"color": "green"}', "bad_value", "field color is the text 'green', and must be one of 'r', 'b'"),
        ('{"amount": 0.0000000001}', "bad_value", "field amount is 1E-10, which does not fit decimal(18,9)"),
        ('{"amount": {}}', "bad_value", "field amount is an object, and must be a decimal number"),
        (
            '{"parts": [{"size": 1}, {"size": "x"}]}',
            "bad_value",
            "field parts[1].size is the text 'x', and must be a number",
        ),
        ('{"parts": [{}]}', "missing_value", "field parts[0] has no size"),
        ('{"parts": {}}', "bad_value", "field parts is an object, and must be a list"),
        ('{"sizes": {"a": null}}', "missing_value", "field sizes.a is null, and must be a number"),
        ('{"pair": [1]}', "bad_value", "field pair is a list, and must be of the type tuple[int,str]"),
        (
            '{"anything": [18446744073709551616]}',
            "bad_value",
            "field anything[0] is 18446744073709551616, which does not fit",
        ),
    ],
)
def test_the_reason_says_where_what_and_what_to_do(written: str, code: str, why: str) -> None:
    found = reason(written)
    assert found[0] == code
    assert found[1].startswith(why)


class Needed(Record):
    """A field without a default, deep in the document."""

    celsius: float


def test_what_is_missing_is_named_by_its_path() -> None:
    fields = JsonFields("source s", Needed, "", ValueOptions(), {"celsius": "state.values[0]"})
    for raw, why in (
        (b'{"state": {}}', "it has no state.values[0]: say in fields where field celsius stands"),
        (b'{"state": {"values": [null]}}', "field celsius is null"),
        (b'{"state": {"values": ["x"]}}', "field celsius, at state.values[0], is the text 'x'"),
        (b"5", "it is 5, and must be an object with state.values[0]"),
    ):
        with pytest.raises(NoRecordError, match=re.escape(why)):
            fields.read(raw)


def test_an_option_reads_numbers_that_are_written_as_texts() -> None:
    got = read('{"level": "317.3988", "count": " 5 ", "amount": "1.5", "name": "7"}', numbers_as_text=True)
    assert (got.level, got.count, got.amount, got.name) == (317.3988, 5, Decimal("1.5"), "7")
    assert reason('{"level": "1_0"}', numbers_as_text=True)[0] == "bad_value"
    assert reason('{"level": "0x10"}', numbers_as_text=True)[0] == "bad_value"
    assert reason('{"level": ""}', numbers_as_text=True)[0] == "bad_value"


def test_an_option_reads_what_is_no_finite_number() -> None:
    code, why = reason('{"level": NaN}')
    assert (code, why) == (
        "nan",
        "it is not JSON: it holds NaN at byte 11, which is no JSON: set nan = true to read it",
    )
    for written, meant in (("Infinity", math.inf), ("-Infinity", -math.inf), ('"inf"', math.inf)):
        got = read(f'{{"level": {written}, "amount": 123456789.123456789, "anything": [0.1]}}', nan=True)
        assert (got.level, got.amount, got.anything) == (meant, Decimal("123456789.123456789"), [0.1])
    assert math.isnan(read('{"level": NaN}', nan=True).level)
    assert reason('{"level": NaN, "count": NaN}', nan=True)[1].startswith(
        "field count is nan, and must be a whole"
    )
    assert reason('{"level": NaN,}', nan=True)[1].startswith("it is not JSON: it has a comma before }")


@pytest.mark.parametrize(
    ("raw", "code", "why"),
    [
        (b"", "truncated", "is empty"),
        (b"{", "truncated", "ends after 1 bytes in the middle of a document"),
        (b'{"a": "x', "truncated", "ends after 8 bytes in the middle of a text"),
        (b'{"a": tru', "truncated", "ends after 9 bytes in the middle of a document"),
        (b'{"a": 1,}', "not_json", "has a comma before }, at byte 9"),
        (b"{'a': 1}", "not_json", "has a text in single quotes at byte 2, as Python prints a dict"),
        (b'{"a": None}', "not_json", "has None at byte 7, as Python prints it"),
        (
            b'{"a": 1}{"a": 2}',
            "not_json",
            "goes on behind the end of a document, at byte 9: write each document",
        ),
        (b'{"a": 1} # x', "not_json", "has a comment at byte 10"),
        (b"{a: 1}", "not_json", "has the name a at byte 2 without double quotes"),
        (b'{"a": .5}', "not_json", "has .5 at byte 7, which is not how JSON writes a number"),
        (b'{"a": 01}', "not_json", "has 01 at byte 7"),
        (b'{"a" 1}', "not_json", "has 1 at byte 6, where : is meant"),
        (b'{"a": "\x01"}', "not_json", "has the control character 0x01 at byte 8 within a text"),
        (b'{"a": "\\x"}', "not_json", "has the escape \\x at byte 8"),
        (b'{"a": "\\ud800"}', "not_json", "holds half of a surrogate pair"),
        (b'{"a": "\\ud83d\\ude00\\udc00"}', "not_json", "holds half of a surrogate pair"),
        (
            b'{"a": "\\ud83d\\ude00 \\\\ud800", "b": ' + b"1" * 5_000 + b"}",
            "not_json",
            "holds a number that is too",
        ),
        (b"[" * 2000 + b"]" * 2000, "not_json", "is nested deeper than 500 levels"),
        (b"hello", "not_json", "has hello at byte 1"),
    ],
)
def test_what_is_no_json_is_named_by_its_first_fault(raw: bytes, code: str, why: str) -> None:
    with pytest.raises(NoRecordError) as refused:
        decode_document(raw)
    assert refused.value.code == code
    assert str(refused.value).startswith(f"it is not JSON: it {why}")


class Priced(Record):
    """The record of the page."""

    id: int
    celsius: float | None = None
    price: Annotated[Decimal, Digits(18, 9)] | None = None


def test_the_page_of_json_says_which_option_reads_what() -> None:
    page = Path(__file__).parents[2] / "docs" / "sources" / "json.md"
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", page.read_text(), re.MULTILINE)
    assert len(rows) > 10
    for document, advice in rows:
        option = re.fullmatch(r"`(\w+) = ([^`]+)`", advice)
        options = {} if option is None else {option[1]: json.loads(option[2])}
        paths = options.pop("fields", {})
        plain = JsonFields("source s", Priced, "", ValueOptions(), {})
        if advice != "none is needed":
            named = "." if option is None else option[1]
            with pytest.raises(NoRecordError, match=named):
                plain.read(document.encode())
        if option is not None or advice == "none is needed":
            told = JsonFields("source s", Priced, "", ValueOptions(**options), paths)
            assert isinstance(told.read(document.encode())[1], Priced)


damage = st.tuples(
    st.integers(0, 60),
    st.integers(0, 3),
    st.sampled_from([*"{}[],:\"'\\NaTfn0.-+e#/x ", "", "\xe9", "\0"]),
)
documents = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=6,
)


def _refuse(name: str) -> None:
    raise ValueError(name)


@given(documents, st.lists(damage, max_size=2))
def test_a_document_is_read_or_has_a_fault(value: Any, damages: list[tuple[int, int, str]]) -> None:
    """What the standard library reads is read, but NaN and halves of characters; the rest is refused."""
    text = json.dumps(value, ensure_ascii=False)
    for at, size, other in damages:
        text = text[:at] + other + text[at + size :]
    raw = text.encode()
    try:
        meant = msgspec.json.encode(json.loads(raw, parse_float=Decimal, parse_constant=_refuse))
    except ValueError:
        meant = None
    try:
        found = msgspec.json.encode(decode_document(raw))
    except NoRecordError as error:
        found = None
        said = str(error)
    else:
        said = "it is not JSON: it "
    assert found == meant
    assert said.startswith("it is not JSON: it ")


def test_the_elements_of_an_answer_keep_their_numbers_as_they_are_written() -> None:
    answer = b'{"all": [{"amount": 123456789.123456789}, {"amount": 0.1, "level": -0.0}, {"level": NaN}]}'
    first, second, third = (read(one, nan=True) for one in _records(answer, ("all",), takes_nan=True))
    assert (first.amount, second.amount) == (Decimal("123456789.123456789"), Decimal("0.1"))
    assert math.copysign(1, second.level) == -1
    assert math.isnan(third.level)
    assert _records(answer, ("all",)) == [answer], "without the option the answer is one dead letter"


@pytest.mark.parametrize("document", ["93", "true", "null", '"text"', "[1]", "[]"])
def test_what_is_no_object_is_no_record_of_which_each_field_may_be_null(document: str) -> None:
    code, why = reason(document)
    assert code == "missing_value"
    assert why.startswith("it is "), why
    assert "must be an object with amount" in why, why
    assert read("{}") == Everything()
