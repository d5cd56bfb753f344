"""Joins by short stories: which records meet, when a pair leaves, what is held, what a crash changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from geartrain import Flow, KeyedStream, Record, Stream
from geartrain.declarations.windows import global_window, session, sliding, tumbling
from geartrain.errors import FlowError, PlacementError
from geartrain.planning import choose_cut, legal_cuts
from geartrain.records.event_time import END_OF_TIME
from geartrain.testing import ABORT, RunAbortedError, Saved, TestingSink, TestingSource, run_flow
from tests.reference.errors import INTEGER_DIVIDED

ALL_SIZES = pytest.mark.parametrize("rows_max", [1, 2, 256])


class Order(Record):
    item: str
    count: int


class Price(Record):
    item: str
    cents: int


def us(count: int) -> timedelta:
    return timedelta(microseconds=count)


def bill(order: Order, price: Price) -> str:
    return f"{order.count} {order.item} at {price.cents}"


def ask(order: Order, price: Price | None) -> str:
    return bill(order, price) if price is not None else f"{order.count} {order.item}: no price"


def shop(
    orders: list[Any], prices: list[Any]
) -> tuple[Flow, KeyedStream[Any, Order], KeyedStream[Any, Price]]:
    flow = Flow("shop")
    left: TestingSource[Order] = TestingSource(items=orders, name="o")
    right: TestingSource[Price] = TestingSource(items=prices, name="p")
    asked = flow.source("orders", left, out=Order, partitioned_by="item").key_by("item")
    priced = flow.source("prices", right, out=Price, partitioned_by="item").key_by("item")
    return flow, asked, priced


NUTS, BOLTS = Order("nut", 7), Order("bolt", 2)


@ALL_SIZES
def test_an_interval_join_pairs_what_is_near_in_time(rows_max: int) -> None:
    flow, orders, prices = shop(
        [(10, NUTS), (20, BOLTS), (30, NUTS)],
        [(8, Price("nut", 1)), (15, Price("nut", 2)), (16, Price("nut", 3)), (22, Price("bolt", 4))],
    )
    bills = orders.join("bills", prices, bill, lower=us(-2), upper=us(5))
    bills.sink("out", out := TestingSink("out"))
    saved = Saved()
    run_flow(flow, saved, rows_max=rows_max)
    assert sorted(out.records) == [(10, "7 nut at 1"), (15, "7 nut at 2"), (22, "2 bolt at 4")]
    assert saved.state == {}


@ALL_SIZES
@pytest.mark.parametrize(
    ("bounds", "leaves"), [((-2, 5), 15), ((-9, -4), 10), ((0, END_OF_TIME), END_OF_TIME - 1)]
)
def test_a_left_record_that_met_nobody_leaves_when_nobody_can_come(
    rows_max: int, bounds: tuple[int, int], leaves: int
) -> None:
    flow, orders, prices = shop([(10, NUTS), (40, BOLTS)], [(7, Price("nail", 1)), (99, Price("nail", 1))])
    asked = orders.join("asked", prices, ask, lower=us(bounds[0]), upper=us(bounds[1]), how="left")
    asked.filter(lambda text: "nut" in text, name="nuts").sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    assert out.records == [(leaves, "7 nut: no price")]


@ALL_SIZES
def test_a_window_join_pairs_what_shares_a_window(rows_max: int) -> None:
    flow, orders, prices = shop(
        [(-1, NUTS), (0, BOLTS), (9, NUTS)],
        [(-10, Price("nut", 1)), (0, Price("nut", 2)), (9, Price("bolt", 3)), (10, Price("nut", 4))],
    )
    asked = orders.join("asked", prices, ask, within=tumbling(us(10)), how="left")
    asked.sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    assert sorted(out.records) == [(-1, "7 nut at 1"), (9, "2 bolt at 3"), (9, "7 nut at 2")]


@ALL_SIZES
def test_a_left_record_alone_in_its_window_leaves_with_it(rows_max: int) -> None:
    flow, orders, prices = shop([(3, NUTS)], [(12, Price("nut", 1))])
    asked = orders.join("asked", prices, ask, within=tumbling(us(10), offset=us(1)), how="left")
    asked.sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    assert out.records == [(10, "7 nut: no price")]


@ALL_SIZES
def test_a_pair_that_shares_several_windows_leaves_once(rows_max: int) -> None:
    flow, orders, prices = shop([(5, NUTS)], [(t, Price("nut", t)) for t in (-5, -4, 0, 5, 13, 14, 15)])
    orders.join("bills", prices, bill, within=sliding(us(10), us(5))).sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    assert sorted(out.records) == [
        (5, "7 nut at 0"),
        (5, "7 nut at 5"),
        (13, "7 nut at 13"),
        (14, "7 nut at 14"),
    ]


def test_a_record_between_two_windows_meets_nobody() -> None:
    flow, orders, prices = shop([(1, NUTS), (7, NUTS)], [(1, Price("nut", 1)), (7, Price("nut", 2))])
    orders.join("bills", prices, bill, within=sliding(us(5), us(10))).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert out.records == [(1, "7 nut at 1")]


def test_the_global_window_pairs_all_of_a_key() -> None:
    flow, orders, prices = shop([(1, NUTS), (700, NUTS)], [(5, Price("nut", 1)), (9, Price("bolt", 2))])
    orders.join("bills", prices, bill, within=global_window()).sink("out", out := TestingSink("out"))
    run_flow(flow)
    assert sorted(out.records) == [(5, "7 nut at 1"), (700, "7 nut at 1")]


def test_a_function_that_raises_makes_a_dead_letter_of_the_pair() -> None:
    def share(order: Order, price: Price) -> float:
        return order.count / price.cents

    flow, orders, prices = shop([(1, NUTS)], [(2, Price("nut", 0)), (3, Price("nut", 2))])
    orders.join("share", prices, share, lower=us(0), upper=us(5)).sink("out", out := TestingSink("out"))
    (letter,) = run_flow(flow).dead_letters
    assert out.records == [(3, 3.5)]
    assert (letter.step, letter.reason) == ("share", "ZeroDivisionError: division by zero")
    assert letter.raw == b'{"left":{"item":"nut","count":7},"right":{"item":"nut","cents":0}}'


@ALL_SIZES
def test_a_join_goes_on_after_a_crash(rows_max: int) -> None:
    orders = [(10, NUTS), ABORT, (20, BOLTS), (30, NUTS)]
    prices = [(12, Price("nut", 1)), ABORT, (13, Price("nut", 2)), ABORT, (31, Price("bolt", 3))]
    flow, left, right = shop(orders, prices)
    left.join("asked", right, ask, lower=us(0), upper=us(5), how="left").sink("out", TestingSink("out"))
    saved = Saved()
    for _ in range(3):
        with pytest.raises(RunAbortedError):
            run_flow(flow, saved, rows_max=rows_max)
    assert sorted(run_flow(flow, saved, rows_max=rows_max).tables["out"]) == [
        (12, "7 nut at 1"),
        (13, "7 nut at 2"),
        (25, "2 bolt: no price"),
        (35, "7 nut: no price"),
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "say when two records meet: within=tumbling"),
        (
            {"within": tumbling(us(1)), "lower": us(0), "upper": us(1)},
            "say when two records meet: within=tumbling",
        ),
        ({"lower": us(2), "upper": us(1)}, "lower=.* is after upper=.*: exchange them"),
        ({"lower": us(0)}, "say when two records meet"),
        ({"within": tumbling(us(1)), "upper": us(0)}, "say when two records meet"),
        ({"lower": 1, "upper": 2}, "lower=1 must be a datetime.timedelta"),
        (
            {"within": session(us(1))},
            "within=Session.* must be a tumbling, sliding, global or calendar window",
        ),
        (
            {"within": global_window(), "how": "left"},
            "how='left' needs a tumbling or calendar window, or lower=",
        ),
        ({"within": tumbling(us(1)), "how": "right"}, "how='right' must be 'inner' or 'left'"),
    ],
)
def test_a_wrong_join_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    _, orders, prices = shop([], [])
    with pytest.raises(FlowError, match=f"^flow shop, step 'bills': {sentence}"):
        orders.join("bills", prices, bill, **options)


def test_a_join_of_streams_of_one_domain_may_stand_on_the_device() -> None:
    flow, orders, prices = shop([], [])
    orders.join("bills", prices, bill, lower=us(0), upper=us(1)).sink("out", TestingSink("out"))
    assert "bills" in choose_cut(flow.graph(), "edge").edge


def priced(order: Order, table: Mapping[Any, Price]) -> str:
    return bill(order, table[order.item]) if order.item in table else f"{order.item}: {list(table)}"


def broadcast(orders: list[Any], prices: list[Any]) -> tuple[Flow, Stream[str]]:
    flow, asked, offers = shop(orders, prices)
    return flow, asked.broadcast("priced", offers, priced, key="item")


@ALL_SIZES
def test_broadcast_gives_each_record_the_table_of_its_time(rows_max: int) -> None:
    flow, bills = broadcast(
        [(1, NUTS), (5, NUTS), (6, BOLTS), (9, NUTS)],
        [(2, Price("nut", 1)), (5, Price("nut", 2)), (6, Price("nail", 9)), (9, Price("nut", 3))],
    )
    bills.sink("out", out := TestingSink("out"))
    run_flow(flow, rows_max=rows_max)
    # At 5, 6 and 9 the price is of the same time, and counts from then on, though "o" is before "p".
    nuts = [(1, "nut: []"), (5, "7 nut at 2"), (9, "7 nut at 3")]
    assert sorted(out.records) == sorted([*nuts, (6, "bolt: ['nut', 'nail']")])


@ALL_SIZES
def test_broadcast_goes_on_after_a_crash(rows_max: int) -> None:
    orders = [(1, NUTS), ABORT, (5, NUTS), (8, BOLTS)]
    prices = [(0, Price("nut", 1)), ABORT, (4, Price("nut", 2)), ABORT, (7, Price("bolt", 3))]
    flow, bills = broadcast(orders, prices)
    bills.sink("out", TestingSink("out"))
    saved = Saved()
    for _ in range(3):
        with pytest.raises(RunAbortedError):
            run_flow(flow, saved, rows_max=rows_max)
    found = run_flow(flow, saved, rows_max=rows_max).tables["out"]
    assert sorted(found) == [(1, "7 nut at 1"), (5, "7 nut at 2"), (8, "2 bolt at 3")]


def test_broadcast_keeps_of_its_table_what_may_still_be_read() -> None:
    flow, bills = broadcast([(100, NUTS)], [(t, Price("nut", t)) for t in range(100)])
    bills.sink("out", out := TestingSink("out"))
    saved = Saved()
    run_flow(flow, saved)
    assert out.records == [(100, "7 nut at 99")]
    ((at, cell),) = saved.state.items()
    assert at == ("priced", b"t")
    assert len(cell) < 50


def test_a_small_record_without_a_key_and_a_function_that_raises_are_dead_letters() -> None:
    def first(order: Order, table: Mapping[int, Price]) -> int:
        return table[order.count].cents

    flow, asked, offers = shop([(5, NUTS), (6, BOLTS)], [(1, Price("nut", 0)), (2, Price("bolt", 2))])
    bills = asked.broadcast("first", offers, first, key=lambda price: 4 // price.cents)
    bills.sink("out", out := TestingSink("out"))
    letters = run_flow(flow).dead_letters
    assert out.records == [(6, 2)]
    assert sorted((x.step, x.reason) for x in letters) == [
        ("first", "KeyError: 7"),
        ("first_key", INTEGER_DIVIDED),
    ]


def test_a_broadcast_stands_in_the_cloud() -> None:
    flow, bills = broadcast([], [])
    bills.sink("out", TestingSink("out"))
    assert all("priced" not in cut.edge for cut in legal_cuts(flow.graph()))
    with pytest.raises(FlowError, match="a broadcast step always stands on the cloud tier"):
        bills.at("edge")
    with pytest.raises(PlacementError, match="priced"):
        choose_cut(flow.graph(), ["priced"])
