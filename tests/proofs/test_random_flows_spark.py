"""I1 on the host: forty random flows with every operator at least twice, against the reference.

Twenty flows run side by side, and one run is stopped and goes on from its checkpoint. One more run has
devices with cuts of their own. The long form runs a second cut of each flow, and two more runs of such
devices.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain import operators
from geartrain.planning import make_plan
from geartrain.planning.mixed import make_mixed_plan
from tests.reference.flows import Case
from tests.spark.many_flows import many
from tests.spark.test_random_flows import check_flows, chosen

pytestmark = [pytest.mark.slow, pytest.mark.spark]

LOW_LEVEL = {"copies", "deal", "stateless"}
"""Kinds that only the low-level face makes: tests/spark/test_low_level.py proves them."""
MIXED = {"arrival", "union"}
"""Kinds that only plans of several cuts have."""

FLOWS = 40
TOGETHER = 20
RUNS, RUNS_LONG = 2, 2
MIXED_RUNS, MIXED_RUNS_LONG = 1, 2


def numbers(runs: int, more: int) -> list[Any]:
    """The numbers of all runs; those after the first `runs` are of the long form."""
    return [*range(runs), *(pytest.param(runs + one, marks=pytest.mark.long) for one in range(more))]


@pytest.fixture(scope="module")
def flows() -> list[Case]:
    return chosen(FLOWS, examples=300, start=2)


def all_kinds() -> set[str]:
    """The kinds of all operators that there are."""
    found: set[str] = set()
    for module in pkgutil.iter_modules(operators.__path__):
        name = f"{operators.__name__}.{module.name}"
        for thing in vars(importlib.import_module(name)).values():
            kind = getattr(thing, "kind", None)
            if isinstance(thing, type) and thing.__module__ == name and isinstance(kind, str):
                found.add(kind)
    return found


def group_of(flows: list[Case], number: int) -> list[Case]:
    """The flows of run `number`."""
    first = number % (FLOWS // TOGETHER) * TOGETHER
    return flows[first : first + TOGETHER]


def test_every_operator_is_run_in_two_flows_at_least(flows: list[Case]) -> None:
    run: set[tuple[int, str, str]] = set()
    for number in range(RUNS):
        together = many(group_of(flows, number))
        plan = make_plan(together.graph, together.cut(random.Random(number)))  # as the run itself draws it
        group = number % (FLOWS // TOGETHER)
        run.update((group, step.id.split("_")[0], step.operator.kind) for step in plan.graph.steps)
    seen = Counter(kind for _, _, kind in run)
    assert {kind for kind in all_kinds() - LOW_LEVEL - MIXED if seen[kind] < 2} == set()


@pytest.mark.parametrize("number", numbers(RUNS, RUNS_LONG))
def test_flows_on_the_host_equal_the_reference(
    spark: SparkSession, tmp_path: Path, flows: list[Case], number: int
) -> None:
    check_flows(spark, tmp_path, group_of(flows, number), number, restart=number == 0)


@pytest.mark.parametrize("number", numbers(MIXED_RUNS, MIXED_RUNS_LONG))
def test_flows_on_the_host_whose_devices_have_cuts_of_their_own_equal_the_reference(
    spark: SparkSession, tmp_path: Path, flows: list[Case], number: int
) -> None:
    together = group_of(flows, number)
    flow = many(together)
    base, *cuts = flow.cuts(random.Random(number))  # as the run itself draws it
    plan = make_mixed_plan(flow.graph, base, cuts)
    assert {step.operator.kind for step in plan.graph.steps} > MIXED
    check_flows(spark, tmp_path, together, number, restart=number == 0, mixed=True)
