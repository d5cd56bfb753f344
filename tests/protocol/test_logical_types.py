"""Decimal, enum, nested and untyped fields: each as it was after the wire, the log and a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain import Digits, Flow, Record, Table
from geartrain.errors import FlowError, SchemaError
from geartrain.schema import ColumnBatch, RowCodec, Schema, derive
from geartrain.schema.derive import logicals
from geartrain.testing import TestingSource, run_flow
from geartrain.wire.body import decode_rows, encode_rows
from geartrain.wire.envelope import BatchKind, Header
from geartrain_cloud.log.arrow import from_table, to_table
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import rows

Money = Annotated[Decimal, Digits(12, 2)]


class Side(Enum):
    BUY = 1
    SELL = "sell"


class Point(NamedTuple):
    x: float
    y: float


@dataclass
class Note:
    text: str
    tags: list[str]


class Order(Record):
    price: Money
    side: Side
    fee: Money | None
    other: Side | None
    sizes: list[float]
    by_venue: dict[str, int]
    at: Point | None
    note: Note | None
    extra: Any


money = st.decimals(
    min_value=Decimal("-9999999999.99"), max_value=Decimal("9999999999.99"), places=2, allow_nan=False
)
plain = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3), st.floats(allow_nan=False)
)
orders = st.builds(
    Order,
    money,
    st.sampled_from(Side),
    st.none() | money,
    st.none() | st.sampled_from(Side),
    st.lists(st.floats(allow_nan=False) | st.integers(-9, 9), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
    st.none() | st.builds(Point, st.floats(allow_nan=False), st.floats(allow_nan=False)),
    st.none() | st.builds(Note, st.text(max_size=2), st.lists(st.text(max_size=2), max_size=2)),
    st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=1), inner, max_size=2),
        max_leaves=4,
    ),
)


def travelled(values: list[Any], kind: Any) -> list[Any]:
    """Through the wire, the log's Arrow and back."""
    codec = RowCodec(kind)
    count = len(values)
    batch = ColumnBatch(codec.to_columns(values), [0] * count, ["s"] * count, list(range(count)))
    encoded = encode_rows(codec.schema, batch)
    header = Header(
        BatchKind.DATA, "flow", "device", b"12345678", 2, channel="c", schema_id=codec.schema.schema_id,
        count=count, first_number=encoded.first_number, flags=encoded.flags,
    )  # fmt: skip
    decoded = decode_rows(Schema.from_json(codec.schema.to_json()), header, encoded.body)
    table = to_table(codec.schema, decoded, ["d"] * count, [1] * count, [False] * count, [False] * count)
    return codec.from_columns(from_table(codec.schema, table).fields)


@settings(deadline=None)
@given(st.lists(orders, min_size=1, max_size=4))
def test_a_conformed_record_comes_back_as_it_was(made: list[Order]) -> None:
    conformed, wrong = RowCodec(Order).conform(made)
    assert not wrong
    back = travelled(list(conformed), Order)
    assert back == list(conformed)
    assert [repr(b) for b in back] == [repr(c) for c in conformed]
    assert [(o.price, o.side, o.sizes) for o in back] == [(o.price, o.side, o.sizes) for o in made]


def test_nan_in_a_list_stays_nan() -> None:
    (back,) = travelled([[math.nan, -0.0]], list[float])
    assert math.isnan(back[0])
    assert math.copysign(1, back[1]) == -1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Decimal("0.001"), r"is 0\.001, which does not fit decimal\(12,2\)"),
        (Decimal(10) ** 10, r"does not fit decimal\(12,2\)"),
        (Decimal("NaN"), r"is NaN, and decimal\(12,2\) has neither NaN nor infinity"),
        (Decimal("-Infinity"), "has neither NaN nor infinity"),
        (Decimal("9" * 5_000), "is 9{60}[.]{3}, which does not fit"),
        (1.5, "must be a Decimal, got float"),
    ],
)
def test_a_decimal_that_does_not_fit_is_refused_not_rounded(value: Any, said: str) -> None:
    class Paid(Record):
        price: Money

    _, wrong = RowCodec(Paid).conform([Paid(value)])
    assert len(wrong) == 1
    with pytest.raises(SchemaError, match=said):
        raise SchemaError(wrong[0][1])


def test_schemas_say_what_a_column_means_and_no_class_names() -> None:
    assert [f.type_name for f in derive(Order).fields] == [
        "decimal(12,2)",
        "enum(BUY,SELL)",
        "decimal(12,2) | None",
        "enum(BUY,SELL) | None",
        "nested(list[float])",
        "nested(dict[str,int])",
        "nested({x:float,y:float}) | None",
        "nested({text:str,tags:list[str]}) | None",
        "nested(Any) | None",
    ]
    assert Schema.from_json(derive(Order).to_json()) == derive(Order)


def test_a_decimal_without_digits_says_what_to_write() -> None:
    class Paid(Record):
        price: Decimal

    with pytest.raises(SchemaError, match=r"price: .*Annotated\[Decimal, Digits\(12, 2\)\]"):
        derive(Paid)
    with pytest.raises(FlowError, match="field price"):
        Flow("f").source("s", TestingSource[Paid](), out=Paid)


def test_a_damaged_column_is_an_error_in_one_sentence() -> None:
    codec = RowCodec(Side)
    with pytest.raises(SchemaError, match=r"enum\(BUY,SELL\) holds 'HOLD'"):
        codec.from_columns([["HOLD"]])
    with pytest.raises(SchemaError, match="holds something else"):
        RowCodec(list[int]).from_columns([[b"\xc1"]])


def test_a_record_that_a_step_makes_is_checked_like_any_other() -> None:
    def halve(order: Order) -> Order:
        return Order(order.price / 2, order.side, None, None, [1], {}, None, None, {1, 2})

    flow = Flow("orders")
    first = Order(Decimal(3), Side.BUY, None, None, [], {}, None, None, None)
    odd = Order(Decimal("3.01"), Side.BUY, None, None, [], {}, None, None, None)
    source = TestingSource[Order](items=((1, first), (2, odd)))
    flow.source("orders", source, out=Order).map(halve).sink("all", Table("t"))
    results = run_flow(flow)
    assert [(o.price, o.sizes, o.extra) for _, o in results.tables["all"]] == [
        (Decimal("1.50"), [1.0], [1, 2])
    ]
    assert [letter.step for letter in results.dead_letters] == ["halve"]


def test_a_table_shows_what_a_person_would_write(tmp_path: Path) -> None:
    tables = SqliteTables(tmp_path / "t.sqlite")
    codec = RowCodec(Order)
    tables.declare("all", Table("orders"), codec.schema)
    order = Order(
        Decimal("1.5"), Side.SELL, None, None, [math.inf, 2.0], {"x": 1}, Point(1.0, 2.0), None, "a"
    )
    values, _ = codec.conform([order])
    tables.write("q", 0, {}, {"all": [ColumnBatch(codec.to_columns(values), [5], ["s"], [0])]})
    tables.close()
    assert rows(tmp_path / "t.sqlite", "orders") == [
        {
            "price": "1.50",
            "side": "SELL",
            "fee": None,
            "other": None,
            "sizes": [None, 2.0],
            "by_venue": {"x": 1},
            "at": [1.0, 2.0],
            "note": None,
            "extra": "a",
        }
    ]


def nested(levels: int) -> Any:
    """Lists and dictionaries in turn, so many within one another."""
    value: Any = "inmost"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


class Tree(Record):
    name: str
    parts: list[Tree] = msgspec.field(default_factory=list)


def tree(levels: int) -> Tree:
    found = Tree("leaf")
    for _ in range(levels):
        found = Tree("branch", [found])
    return found


@pytest.mark.parametrize(
    ("kind", "value", "levels"),
    [(Any, nested, 100), (dict[str, Any], nested, 99), (list[Tree], lambda levels: [tree(levels)], 48)],
)
def test_what_is_nested_deeper_than_every_store_reads_is_refused(
    kind: Any, value: Callable[[int], Any], levels: int
) -> None:
    """A tree has two levels for each of its own, and a leaf and the list around it three."""
    assert len(travelled([value(levels)], kind)) == 1
    (logical,) = logicals(kind)
    assert logical is not None
    assert logical.fit(value(levels)) == value(levels)
    for deeper in (levels + 2, 5_000):
        with pytest.raises(SchemaError, match="it is nested deeper than 100 levels"):
            logical.fit(value(deeper))


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (list[str], ["\ud800"], "it holds text that is not valid Unicode"),
        (dict[str, int], {"\udfff": 1}, "it holds text that is not valid Unicode"),
        (dict[str, int], {"a": 2**64}, "it holds an int beyond 64 bits, or a time"),
        (list[str], ["a", 1], "its part at [1] has another type"),
        (dict[str, int], {"a": 0.5}, "its part at [...] has another type"),
        (list[str], "a", "it has another type"),
        (Any, [object()], "it holds an object that is no text, number, time"),
    ],
)
def test_a_nested_value_that_does_not_fit_is_refused_in_our_words(kind: Any, value: Any, why: str) -> None:
    (logical,) = logicals(kind)
    assert logical is not None
    with pytest.raises(SchemaError) as raised:
        logical.fit(value)
    assert why in str(raised.value)
    assert "`" not in str(raised.value)


class Plain(Record):
    real: float = 0.0
    at: datetime | None = None
    whole: int = 0


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"real": 10**400}, "is beyond a float of 64 bits"),
        ({"real": -(10**5_000)}, "field real = a int that is too long to write is beyond a float"),
        ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "lies outside of the years 1 to"),
        ({"at": datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=1)))}, "of the years 1 to 9999"),
        ({"whole": 10**5_000}, "field whole = a int that is too long to write does not fit into 64 bits"),
    ],
)
def test_a_number_or_time_that_no_column_holds_names_its_field(values: dict[str, Any], why: str) -> None:
    ((_, reason),) = RowCodec(Plain).conform([Plain(**values)])[1]
    assert reason.startswith(f"field {next(iter(values))} = ")
    assert why in reason
    assert len(reason) < 200
