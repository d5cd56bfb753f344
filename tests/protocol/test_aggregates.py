"""Each aggregate: what it computes, and that neither order, nor merging, nor being saved shows in a bit."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain import State, agg
from geartrain.aggregates.exact import rounded
from geartrain.errors import FlowError, SchemaError
from geartrain.records.batch import Origin

HUGE = [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 1e300, -1e300, 0.0, -0.0, 2.0**960]
FLOATS = st.one_of(st.sampled_from(HUGE), st.floats(allow_nan=False, allow_infinity=False))
ANY_FLOATS = st.one_of(FLOATS, st.sampled_from([math.nan, math.inf, -math.inf]))
INTS = st.integers(-(2**63), 2**63 - 1)
DECIMALS = st.decimals(-(10**17), 10**17, places=6, allow_nan=False)
NUMBERS = st.one_of(ANY_FLOATS, INTS, st.booleans(), DECIMALS)
SEEDS = st.integers(0, 2**32)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=1, max_size=40)


def bits(value: Any) -> Any:
    """A value so that equality is equality of bits and types."""
    if isinstance(value, float):
        return "float", struct.pack(">d", value)
    return [bits(v) for v in value] if isinstance(value, list) else (type(value).__name__, repr(value))


def saved(aggregate: agg.Aggregate[Any, Any, Any], kind: Any, acc: Any) -> Any:
    """An accumulator as it comes back from a saved state."""
    return msgspec.msgpack.Decoder(aggregate.accumulator_of(kind)).decode(msgspec.msgpack.encode(acc))


def in_any_tree(spec: agg.AggregateSpec, values: list[Any], kind: Any, random: Random) -> Any:
    """The result of the values added in any order to any number of accumulators, merged in any tree."""
    aggregate = spec.aggregate
    accept = aggregate.accept(kind)
    rows = [(accept(v) if accept else v, i, Origin("split", i)) for i, v in enumerate(values)]
    random.shuffle(rows)
    parts = []
    while rows:
        size = random.randint(1, len(rows))
        mine, rows = rows[:size], rows[size:]
        acc = aggregate.create()
        if random.random() < 0.5:
            acc = aggregate.add_all(acc, *(list(column) for column in zip(*mine, strict=True)))
        else:
            for value, time, origin in mine:
                acc = aggregate.add(acc, value, time, origin)
        parts.append(saved(aggregate, kind, acc))
    while len(parts) > 1:
        left, right = parts.pop(random.randrange(len(parts))), parts.pop(random.randrange(len(parts)))
        parts.append(saved(aggregate, kind, aggregate.merge(left, right)))
    return aggregate.result(parts[0])


def result(spec: agg.AggregateSpec, values: list[Any], kind: Any = None) -> Any:
    return in_any_tree(spec, values, kind, Random(0))


EVERY: list[tuple[str, Callable[[], agg.AggregateSpec], Any, st.SearchStrategy[Any]]] = [
    ("count", agg.count, None, NUMBERS),
    ("total", agg.sum, None, NUMBERS),
    ("total_floats", agg.sum, float, ANY_FLOATS),
    ("total_ints", agg.sum, int, INTS),
    ("mean", agg.mean, None, NUMBERS),
    ("variance", agg.variance, None, NUMBERS),
    ("sample_variance", partial(agg.variance, ddof=1), float, FLOATS),
    ("minimum", agg.min, None, st.one_of(NUMBERS, st.text(max_size=3), st.binary(max_size=3))),
    ("maximum", agg.max, float, ANY_FLOATS),
    ("minimum_text", agg.min, str, st.text(max_size=3)),
    ("maximum_decimal", agg.max, Decimal, DECIMALS),
    ("first", agg.first, float, ANY_FLOATS),
    ("last", agg.last, str, st.text(max_size=3)),
    ("top_n", partial(agg.top_n, "x", 3), float, ANY_FLOATS),
    ("distinct", agg.count_distinct, None, st.one_of(NUMBERS, st.text(max_size=3))),
    ("distinct_estimate", partial(agg.count_distinct, exact=False), int, INTS),
    ("quantile", agg.quantile, float, ANY_FLOATS),
    ("upper_quantile", partial(agg.quantile, q=0.9, error=0.001), None, NUMBERS),
]


@pytest.mark.parametrize(("name", "spec", "kind", "values"), EVERY, ids=[name for name, *_ in EVERY])
def test_neither_order_nor_merging_nor_saving_shows(
    name: str, spec: Callable[[], agg.AggregateSpec], kind: Any, values: st.SearchStrategy[Any]
) -> None:
    storable = values.filter(lambda v: kind is not None or not isinstance(v, Decimal) or name not in KEEPERS)

    @settings(deadline=None)
    @given(some(storable), SEEDS)
    def same(found: list[Any], seed: int) -> None:
        # In another order the records keep their places, so both trees hold the same records.
        assert bits(in_any_tree(spec(), found, kind, Random(seed))) == bits(result(spec(), found, kind))

    same()


KEEPERS = frozenset({"minimum"})
"""Aggregates that keep a value, for which a Decimal must have its type declared."""


def exact_sum(values: list[Any]) -> Fraction:
    return sum((Fraction(v) for v in values), Fraction(0))


@settings(deadline=None)
@given(some(st.one_of(FLOATS, INTS, DECIMALS)), SEEDS)
def test_sums_are_the_exact_ones_rounded_once(values: list[Any], seed: int) -> None:
    exact = exact_sum(values)
    found = in_any_tree(agg.sum("x"), values, None, Random(seed))
    if any(isinstance(v, float) for v in values):
        assert bits(found) == bits(rounded(exact.numerator, exact.denominator))
    else:
        assert Fraction(found) == exact
        assert isinstance(found, Decimal if any(isinstance(v, Decimal) for v in values) else int)
    middle = exact / len(values)
    assert bits(in_any_tree(agg.mean("x"), values, None, Random(seed))) == bits(
        rounded(middle.numerator, middle.denominator)
    )
    spread = sum(((Fraction(v) - middle) ** 2 for v in values), Fraction(0)) / len(values)
    assert bits(in_any_tree(agg.variance("x"), values, None, Random(seed))) == bits(
        rounded(spread.numerator, spread.denominator)
    )


def test_many_floats_are_compressed_and_stay_exact() -> None:
    random = Random(5)
    values = [random.uniform(-1, 1) * 10.0 ** random.randint(-300, 300) for _ in range(5_000)]
    aggregate = agg.sum("x").aggregate
    acc = aggregate.create()
    for start in range(0, len(values), 7):
        acc = aggregate.add_all(acc, values[start : start + 7], (), ())
    assert len(acc.floats) + len(acc.large) <= 300
    exact = exact_sum(values)
    assert aggregate.result(acc) == rounded(exact.numerator, exact.denominator)


def test_what_is_not_finite_has_its_own_sums() -> None:
    assert result(agg.sum("x"), [1.0, math.inf]) == math.inf
    assert result(agg.sum("x"), [1.0, -math.inf]) == -math.inf
    assert math.isnan(result(agg.sum("x"), [math.inf, -math.inf]))
    assert math.isnan(result(agg.mean("x"), [math.nan, 1.0]))
    assert math.isnan(result(agg.variance("x"), [math.inf, 1.0]))
    assert math.isnan(result(agg.variance("x", ddof=1), [1.0]))
    assert result(agg.sum("x"), [1.7e308, 1.7e308]) == math.inf
    assert result(agg.sum("x"), [1.7e308, 1.7e308, -1.7e308]) == 1.7e308
    assert result(agg.mean("x"), [1.7e308, 1.7e308]) == 1.7e308


def test_zeros_of_sums_have_no_sign_and_those_of_extremes_have() -> None:
    assert bits(result(agg.sum("x"), [-0.0, -0.0])) == bits(0.0)
    assert bits(result(agg.mean("x"), [-5e-324, 0.0, 0.0, 0.0])) == bits(0.0)
    assert bits(result(agg.min("x"), [0.0, -0.0])) == bits(-0.0)
    assert bits(result(agg.max("x"), [-0.0, 0.0])) == bits(0.0)


def test_ints_stay_ints_beyond_64_bits_and_decimals_stay_decimals() -> None:
    assert result(agg.sum("x"), [2**63 - 1] * 3) == 3 * (2**63 - 1)
    assert bits(result(agg.sum("x"), [Decimal("1.10"), Decimal("-0.3"), 2])) == bits(Decimal("2.80"))


def test_nan_is_an_extreme_only_where_there_is_nothing_else() -> None:
    assert result(agg.min("x"), [math.nan, 3.0]) == 3.0
    assert math.isnan(result(agg.max("x"), [math.nan]))
    assert result(agg.top_n("x", 2), [math.nan, 1.0, 5.0, 3.0], float) == [5.0, 3.0]


def test_equal_numbers_of_different_types_have_an_order() -> None:
    assert bits(result(agg.min("x"), [1.0, 1, True])) == bits(True)
    assert bits(result(agg.max("x"), [True, 1.0, 1])) == bits(1.0)


@pytest.mark.parametrize("n", [1, 10, 500, 5_000, 100_000])
def test_an_estimate_of_distinct_values_is_near(n: int) -> None:
    spec = agg.count_distinct("x", exact=False)
    aggregate = spec.aggregate
    accept = aggregate.accept(int)
    assert accept is not None
    acc = aggregate.add_all(aggregate.create(), [accept(i) for i in range(n)], (), ())
    assert abs(aggregate.result(acc) - n) <= 0.05 * n


@pytest.mark.parametrize("n", [300, 1_500, 6_000])
def test_estimates_of_halves_merge_to_that_of_all(n: int) -> None:
    aggregate = agg.count_distinct("x", exact=False).aggregate
    identities = [b"i%d" % i for i in range(n)]

    def registers(mine: list[bytes]) -> Any:
        return aggregate.add_all(aggregate.create(), mine, (), ())

    whole = registers(identities)
    for cut in (n // 10, n // 2, 9 * n // 10):
        for left, right in ((identities[:cut], identities[cut - 30 :]), (identities[cut:], identities)):
            merged = aggregate.merge(registers(left), registers(right))
            assert (merged.sparse, merged.dense) == (whole.sparse, whole.dense)


@settings(deadline=None)
@given(
    some(st.floats(-1e300, 1e300).filter(lambda v: v == 0 or abs(v) > 1e-300)),
    st.floats(0, 1),
    st.sampled_from([0.2, 0.01, 0.001]),
)
def test_a_quantile_is_within_its_error(values: list[float], q: float, error: float) -> None:
    exact = sorted(values)[int(q * (len(values) - 1))]
    found = result(agg.quantile("x", q, error=error), values, float)
    assert abs(found - exact) <= error * abs(exact) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("count", "q", "wanted"),
    [
        (1, 0.5, 1),
        (2, 0.5, 1),
        (3, 0.5, 2),
        (4, 0.5, 2),
        (10, 0.9, 9),
        (11, 0.9, 10),
        (10, 0.99, 9),
        (10, 1, 10),
    ],
)
def test_a_quantile_is_the_value_of_the_rank_that_its_docs_state(count: int, q: float, wanted: int) -> None:
    """As `numpy.quantile(range(1, count + 1), q, method="lower")` gives it."""
    found = result(agg.quantile("x", q, error=0.001), list(range(1, count + 1)), int)
    assert abs(found - wanted) <= 0.001 * wanted


def test_values_that_cannot_be_aggregated_are_refused_before_any_is_added() -> None:
    for spec, value in [
        (agg.sum("x"), "7"),
        (agg.mean("x"), 2**63),
        (agg.variance("x"), Decimal("NaN")),
        (agg.min("x"), [1]),
        (agg.first("x"), object()),
        (agg.count_distinct("x"), [1]),
        (agg.quantile("x"), b"1"),
        (agg.sum("x"), Decimal("1e-19")),
    ]:
        accept = spec.aggregate.accept(None)
        assert accept is not None
        with pytest.raises(SchemaError):
            accept(value)


def test_a_type_that_does_not_fit_is_told_when_the_flow_is_built() -> None:
    with pytest.raises(FlowError, match=r"agg\.sum takes bool, int, float, Decimal, not str"):
        agg.sum("x").aggregate.accept(str)
    mistakes: list[Callable[[], agg.AggregateSpec]] = [
        lambda: agg.count_distinct("x", limit=0),
        lambda: agg.top_n("x", 0),
        lambda: agg.quantile("x", 2),
        lambda: agg.variance("x", ddof=2),
    ]
    for wrong in mistakes:
        with pytest.raises(FlowError, match="must be"):
            wrong()


class Range(State):
    low: float = math.inf
    high: float = -math.inf


class Spread(agg.Aggregate[float, Range, float]):
    accumulator: ClassVar[Any] = Range

    def create(self) -> Range:
        return Range()

    def add(self, acc: Range, value: float, time: int, origin: Origin) -> Range:
        return Range(min(acc.low, value), max(acc.high, value))

    def merge(self, left: Range, right: Range) -> Range:
        return Range(min(left.low, right.low), max(left.high, right.high))

    def result(self, acc: Range) -> float:
        return acc.high - acc.low


@settings(deadline=None)
@given(some(FLOATS), SEEDS)
def test_a_users_own_aggregate_merges_too(values: list[float], seed: int) -> None:
    assert in_any_tree(Spread().of("x"), values, float, Random(seed)) == max(values) - min(values)
