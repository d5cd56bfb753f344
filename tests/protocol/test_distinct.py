"""distinct has a limit: what is over it is a dead letter, the same in any order and under any cut."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain.errors import SchemaError
from geartrain.testing import TestingSource, run_flow
from tests.reference.aggregates import result as expected
from tests.reference.rows import Row


class Reading(Record):
    key: str
    n: int


class Different(Record):
    key: str
    different: int


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(0, 8),
    st.randoms(use_true_random=False),
)
def test_an_exact_count_says_the_same_of_too_many_values_in_any_order(
    values: list[int], limit: int, cut: int, rng: Random
) -> None:
    aggregate = agg.count_distinct("x", limit=limit).aggregate
    identities = [b"i%d" % value for value in values]
    rng.shuffle(identities)
    left = aggregate.add_all(aggregate.create(), identities[:cut], (), ())
    right = aggregate.create()
    for identity in identities[cut:]:
        right = aggregate.add_all(right, [identity], (), ())
        assert len(right) <= limit
    merged = rng.choice([aggregate.merge(left, right), aggregate.merge(right, left)])
    if len(set(values)) > limit:
        with pytest.raises(
            SchemaError, match=f"more than {limit} different values: give agg.count_distinct a higher"
        ):
            aggregate.result(merged)
    else:
        assert aggregate.result(merged) == len(set(values))


def test_records_and_windows_of_too_many_values_are_dead_letters() -> None:
    flow = Flow("f")
    items = [(1, Reading("k", 1)), (2, Reading("k", 2)), (3, Reading("k", 3)), (4, Reading("k", 2))]
    keyed = flow.source("rows", TestingSource(items=[*items, (15, Reading("k", 9))]), out=Reading).key_by(
        "key"
    )
    so_far = keyed.aggregate("so_far", out=Different, different=agg.count_distinct("n", limit=2))
    so_far.sink("running", Table("running"))
    by_ten = keyed.window(tumbling(timedelta(microseconds=10)))
    by_ten.aggregate("by_ten", out=Different, different=agg.count_distinct("n", limit=2)).sink(
        "ten", Table("ten")
    )
    results = run_flow(flow)
    assert [(time, value.different) for time, value in results.tables["running"]] == [(1, 1), (2, 2), (4, 2)]
    assert [(time, value.different) for time, value in results.tables["ten"]] == [(19, 1)]
    assert sorted(letter.step for letter in results.dead_letters) == ["by_ten", "so_far", "so_far"]
    assert all("more than 2 different values" in letter.reason for letter in results.dead_letters)


def test_an_estimate_of_few_values_is_the_references_for_every_type() -> None:
    # Nine values share a register in one draw of a hundred: a form that hashed otherwise would show.
    spec = agg.count_distinct("x", exact=False)
    kinds: list[tuple[type, Callable[[int], Any]]] = [
        (int, int),
        (float, lambda n: n / 7),
        (str, str),
        (Decimal, lambda n: Decimal(n).scaleb(-2)),
        (datetime, lambda n: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n)),
    ]
    row = Row(0, "split", 0, b"", None)  # an estimate does not ask for it
    shared = 0
    for kind, made in kinds:
        identity = spec.aggregate.accept(kind)
        assert identity is not None
        for number in range(300):
            values = [made(n) for n in Random(number).sample(range(-10_000, 10_000), 9)]
            accumulator = spec.aggregate.add_all(
                spec.aggregate.create(), [identity(v) for v in values], (), ()
            )
            found = spec.aggregate.result(accumulator)
            assert found == expected(spec, [(value, row) for value in values]), values
            shared += found < len(values)
    assert shared
