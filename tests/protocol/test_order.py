"""The order of records of one time comes from the flow and the data: not from where a source is read.

Random flows give the same tables whatever their devices are called, and wherever each source stands, under
every legal cut that is drawn. Two planted mistakes show that this would be seen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from geartrain import Flow, Record
from geartrain.operators import broadcast
from geartrain.records.event_time import SECOND_US
from geartrain.runtime import splits
from geartrain.testing import TestingSink, TestingSource, run_flow
from tests.reference.comparison import check_equal, drawn_cuts
from tests.reference.flows import Case, cases, drawn
from tests.reference.interpreter import interpret
from tests.reference.rows import Answer, same_bits
from tests.reference.two_tiers import World, run_cut

NAMES = ("a", "b-2", "cloud-1", "D", "kilo", "m.1", "n", "o_o", "station-1", "station-2", "x", "z")
DRAWN, FLOWS, CUTS_MAX = 240, 50, 2


def elsewhere(world: World, rng: random.Random) -> World:
    """The same splits with every source on devices of its own, under drawn names. Only the order of the names
    of one source's devices is as it was.
    """
    names = rng.sample(NAMES, len(NAMES))
    moved: dict[str, dict[str, dict[str, Any]]] = {}
    for source in world.bounds_us:
        holders = sorted(device for device, sources in world.devices.items() if sources.get(source))
        fresh = sorted(names.pop() for _ in holders)
        for device, name in zip(holders, fresh, strict=True):
            held = world.devices[device][source]
            moved[name] = {source: {f"{name}/{part.rpartition('/')[2]}": held[part] for part in held}}
    return World(moved, world.bounds_us)


def check_tables(found: Answer, want: Answer) -> None:
    """Assert that two answers have the same records in the same order, whatever their splits are called."""
    for sink, rows in want.sinks.items():
        got = found.sinks[sink]
        assert [row.time for row in got] == [row.time for row in rows], sink
        for left, right in zip(got, rows, strict=True):
            assert same_bits(left.value, right.value), f"{sink} has {left}, and should have {right}"
    for refused in ("dead", "late"):
        assert _by_time(getattr(found, refused)) == _by_time(getattr(want, refused)), refused


def _by_time(letters: Mapping[Any, int]) -> Counter[tuple[str, int]]:
    counts = Counter[tuple[str, int]]()
    for (step, time, *_), count in letters.items():
        counts[step, time] += count
    return counts


def check_elsewhere(some: Iterable[Case]) -> None:
    """Assert that each of some flows gives the same where its sources stand elsewhere."""
    for case in some:
        graph, rng = case.graph, case.rng()
        want = interpret(graph, case.world.inputs(), case.world.bounds_us)
        for cut in drawn_cuts(graph, rng, CUTS_MAX):
            moved = elsewhere(case.world, rng)
            found = run_cut(graph, cut, moved, rng)
            check_tables(found, want)
            check_equal(found, interpret(graph, moved.inputs(), moved.bounds_us))


@pytest.fixture(scope="module")
def some() -> list[Case]:
    return drawn(cases(), 60, DRAWN)


def test_no_name_of_a_device_and_no_move_of_a_source_shows_in_a_table(some: list[Case]) -> None:
    check_elsewhere(some[:FLOWS])


def test_many_records_of_different_splits_have_one_time(some: list[Case]) -> None:
    records = shared = 0
    for case in some:
        times = [
            Counter(item[0] for item in items if isinstance(item, tuple))
            for by_split in case.world.inputs().values()
            for items in by_split.values()
        ]
        for number, own in enumerate(times):
            records += own.total()
            others = set[int]().union(*(times[:number] + times[number + 1 :]))
            shared += sum(count for time, count in own.items() if time in others)
    assert shared > records / 4


def test_an_order_that_begins_with_the_split_would_be_found(
    some: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "origin_name", lambda step, split: f"{split}/{step}")
    with pytest.raises(AssertionError):
        check_elsewhere(some)


def test_a_table_that_is_as_of_the_place_of_a_record_would_be_found(
    some: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "is_known", lambda small, row: small.order() <= row.order())
    looked_up = [case for case in some if any(s.operator.kind == "broadcast" for s in case.graph.steps)]
    with pytest.raises(AssertionError):
        check_elsewhere(looked_up)


class Price(Record):
    item: str
    eur: float


class Sale(Record):
    item: str


class Sold(Record):
    item: str
    eur: float | None


def sold_at(sale: Sale, prices: Mapping[str, Price]) -> Sold:
    return Sold(sale.item, prices[sale.item].eur if sale.item in prices else None)


@pytest.mark.parametrize("names", [("prices", "sales"), ("zz_prices", "a_sales")])
@pytest.mark.parametrize("device", ["a-1", "cloud-1", "station-1"])
def test_a_price_counts_from_its_own_time_on(names: tuple[str, str], device: str) -> None:
    flow, hour_us = Flow("shop"), 3_600 * SECOND_US
    early, late = (0, Price("nut", 1.0)), (hour_us, Price("nut", 2.0))
    prices = flow.source(names[0], TestingSource(items=[early, late]), out=Price)
    made = [(hour_us - 1, Sale("nut")), (hour_us, Sale("nut"))]
    sales = flow.source(names[1], TestingSource(items=made), out=Sale)
    sales.broadcast("sold", prices, sold_at, key="item").sink("out", TestingSink("sold"))
    assert [row.eur for _, row in sorted(run_flow(flow).tables["out"])] == [1.0, 2.0]
    world = World(
        {
            "cloud-9": {names[0]: {"cloud-9": [early, late]}},
            device: {names[1]: {device: [(hour_us, Sale("nut"))]}},
        },
        dict.fromkeys(names, 0),
    )
    for cut in drawn_cuts(flow.graph(), random.Random(1), 9):
        (row,) = run_cut(flow.graph(), cut, world, random.Random(2)).sinks["out"]
        assert row.value == Sold("nut", 2.0)
