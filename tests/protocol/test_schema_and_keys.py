"""Schemas, keys and event times: what a record may be made of, and that it keeps its bits and its order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain import Record
from geartrain.errors import SchemaError
from geartrain.records.batch import child_path
from geartrain.records.event_time import END_OF_TIME, format_time, from_datetime, parse_time, to_datetime
from geartrain.records.keys import decode_key, encode_key
from geartrain.schema import RowCodec, Schema, derive
from tests.reference.interpreter import same_bits


class Full(Record):
    flag: bool
    count: int
    ratio: float
    text: str
    raw: bytes
    when: datetime
    maybe: float | None = None


@dataclass(frozen=True)
class Point:
    x: float
    y: float | None


class Pair(NamedTuple):
    left: str
    right: int


_moments = st.integers(-(10**15), END_OF_TIME).map(to_datetime)
_full = st.builds(
    Full,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    _moments,
    st.one_of(st.none(), st.floats()),
)


@given(st.lists(_full))
def test_records_survive_their_columns_bit_for_bit(values: list[Full]) -> None:
    codec = RowCodec(Full)
    assert codec.conform(values) == (values, []) or any(v != v for f in values for v in (f.ratio, f.maybe))
    back = codec.from_columns(codec.to_columns(values))
    assert len(back) == len(values)
    assert all(same_bits(a, b) for a, b in zip(values, back, strict=True))


def test_dataclasses_named_tuples_and_scalars_are_records_too() -> None:
    for kind, values in ((Point, [Point(1.0, None)]), (Pair, [Pair("a", 1)]), (str, ["a"]), (int, [-1])):
        codec = RowCodec(kind)
        assert codec.conform(values) == (values, [])
        assert codec.from_columns(codec.to_columns(values)) == values


def test_a_value_that_can_be_made_to_fit_is_and_another_is_named() -> None:
    naive = datetime(2020, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None)
    east = datetime(2020, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    fine, ill = Full(True, 1, 2, "a", b"", naive), Full(1, 1, 2.0, "a", b"", east)  # type: ignore[arg-type]
    values, wrong = RowCodec(Full).conform([fine, ill])
    assert same_bits(values[0], Full(True, 1, 2.0, "a", b"", naive.replace(tzinfo=UTC)))
    assert wrong == [(1, "field flag must be bool, got 1")]
    assert RowCodec(datetime).conform([east])[0] == [naive.replace(tzinfo=UTC)]
    assert RowCodec(str).conform(["\ud800"])[1] == [(0, "field value holds text that is not valid Unicode")]
    assert RowCodec(float).conform([None])[1] == [(0, "field value is None but is not optional")]


class Level(IntEnum):
    """An int of a subclass."""

    HIGH = 3


class Text(str):
    """A text of a subclass."""

    __slots__ = ()


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.floats(),
    st.none(),
    st.just(Level.HIGH),
    st.text(max_size=2),
)


@given(st.lists(NUMBERS, max_size=5), st.sampled_from((int, float)))
def test_numbers_are_taken_or_refused_alike_alone_and_among_others(values: list[Any], kind: type) -> None:
    codec = RowCodec(kind)
    found, wrong = codec.conform(values)
    refused = dict(wrong)
    for row, value in enumerate(values):
        [alone], reasons = codec.conform([value])
        assert [reason for _, reason in reasons] == [wrong for at, wrong in refused.items() if at == row]
        fits = isinstance(value, (int, kind)) and type(value) is not bool
        assert (row not in refused) == (fits and (kind is float or -(2**63) <= value < 2**63))
        if fits and row not in refused:
            assert type(found[row]) is type(alone) is kind
            assert same_bits(found[row], kind(value))
            assert same_bits(alone, kind(value))


def test_a_subclass_becomes_the_plain_value_that_it_is() -> None:
    values, wrong = RowCodec(Pair).conform([Pair("a", Level.HIGH)])
    assert (values, type(values[0].right), wrong) == ([Pair("a", 3)], int, [])
    assert RowCodec(str).conform([Text("\ud800")])[1] == [
        (0, "field value holds text that is not valid Unicode")
    ]


def test_a_schema_is_known_by_its_fields_alone() -> None:
    schema = derive(Full)
    again = Schema.from_json(schema.to_json())
    assert again == schema
    assert again.schema_id == schema.schema_id != derive(Point).schema_id


@given(st.text())
def test_a_schema_from_a_device_is_read_or_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(text)


@pytest.mark.parametrize("name", ["_time", "x y", ""])
def test_a_schema_from_a_device_cannot_name_a_system_column(name: str) -> None:
    with pytest.raises(SchemaError, match="not plain"):
        Schema.from_json(f'{{"name":"A","fields":[["{name}","int64",false]],"scalar":false}}')


_part = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(), st.binary())
_keys = st.one_of(_part, st.lists(_part, max_size=3).map(tuple))


@given(_keys)
def test_a_key_is_read_back_from_its_bytes(key: Any) -> None:
    back = decode_key(encode_key(key))
    assert back == key
    assert type(back) is type(key)


@given(st.one_of(*[st.tuples(x, x) for x in (st.integers(-(2**63), 2**63 - 1), st.binary(), st.text())]))
def test_the_order_of_keys_is_the_order_of_their_bytes(pair: tuple[Any, Any]) -> None:
    left, right = pair
    by_value = (left.encode() < right.encode()) if isinstance(left, str) else left < right
    assert (encode_key(left) < encode_key(right)) == by_value
    assert (encode_key((left, 1)) < encode_key((right, 0))) == by_value or left == right


@given(st.binary(max_size=12))
def test_bytes_that_are_no_key_are_refused_or_read(raw: bytes) -> None:
    try:
        key = decode_key(raw)
    except SchemaError:
        return
    assert isinstance(key, (str, int, bool, bytes, tuple))


def test_what_cannot_be_a_key_says_so() -> None:
    for key in (1.5, None, ["a"], (1, None), 2**63, "\ud800"):
        with pytest.raises(SchemaError, match="key"):
            encode_key(key)


@given(st.lists(st.integers(0, 2**40), max_size=3), st.lists(st.integers(0, 2**40), max_size=3))
def test_paths_sort_as_their_indexes(left: list[int], right: list[int]) -> None:
    def path(indexes: list[int]) -> bytes:
        out = b""
        for index in indexes:
            out = child_path(out, index)
        return out

    assert (path(left) < path(right)) == (left < right)


@given(st.integers(-(10**16), END_OF_TIME))
def test_event_times_are_printed_and_read_exactly(time_us: int) -> None:
    text = format_time(time_us)
    assert text.endswith("Z")
    assert parse_time(text) == time_us == from_datetime(to_datetime(time_us))


def test_the_text_form_of_a_time() -> None:
    assert format_time(parse_time("2008-10-10")) == "2008-10-10T00:00:00Z"
    assert format_time(parse_time("2008-10-10T09:30:00.5+02:00")) == "2008-10-10T07:30:00.500000Z"
    with pytest.raises(ValueError, match="'10/10/2008' is not an ISO 8601 date or time"):
        parse_time("10/10/2008")
