"""Functions of a flow's author: what cannot be called, or takes other arguments, is refused at build."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from geartrain import Flow, Record, tumbling
from geartrain.errors import FlowError
from geartrain.testing import TestingSource


class Reading(Record):
    """What comes in."""

    site: str
    value: int


def none() -> Reading:
    """Takes nothing."""
    return Reading("a", 1)


def first(reading: Reading) -> Reading:
    """Takes one."""
    return reading


def both(left: Reading, right: Reading) -> Reading:
    """Takes two."""
    return max(left, right, key=lambda reading: reading.value)


def optional(reading: Reading, factor: int = 2) -> Reading:
    """Takes one, and one more that need not be given."""
    return Reading(reading.site, factor * reading.value)


def several(*readings: Reading) -> Reading:
    """Takes any number."""
    return readings[0]


def by_name(reading: Reading, *, factor: int) -> Reading:
    """Takes one, and one more that only a name gives."""
    return Reading(reading.site, factor * reading.value)


class Scale:
    """What can be called and is no function."""

    def __call__(self, reading: Reading) -> Reading:
        """Take one."""
        return reading


Build = Callable[[], object]
MINUTE = timedelta(minutes=1)
wrong: Any = 5


def readings() -> Any:
    return Flow("heat").source("readings", TestingSource[Reading](), out=Reading)


def keyed() -> Any:
    return readings().key_by("site")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: readings().map(wrong, name="m", out=Reading), "step 'm': function=5 must be a function"),
        (lambda: readings().filter(wrong, name="f"), "step 'f': predicate=5 must be a function"),
        (lambda: readings().key_by(wrong, name="k"), "step 'k': key=5 must be a function"),
        (lambda: readings().split("s", wrong, ["a"]), "function=5 must be a function"),
        (lambda: keyed().reduce("r", wrong), "function=5 must be a function"),
        (lambda: keyed().fold("f", 0, both), "make=0 must be a function"),
        (lambda: keyed().fold("f", int, max, result=wrong, out=int), "result=5 must be a function"),
        (lambda: readings().iterate("i", first, until=wrong, rounds_max=2), "until=5 must be a function"),
        (lambda: readings().map(none), "step 'none': none() is called with 1 argument"),
        (lambda: readings().map(both), "both(left, right) is called with 1 argument"),
        (lambda: readings().map(by_name), "is called with 1 argument"),
        (lambda: readings().map(partial(by_name), name="m", out=Reading), "is called with 1 argument"),
        (lambda: readings().filter(both), "is called with 1 argument"),
        (lambda: readings().key_by(both), "is called with 1 argument"),
        (lambda: readings().broadcast("b", readings(), first, key="site"), "is called with 2 arguments"),
        (lambda: keyed().reduce("r", first), "first(reading) is called with 2 arguments"),
        (lambda: keyed().fold("f", first, both, state=int), "is called with no arguments"),
        (lambda: keyed().window(tumbling(MINUTE)).reduce("r", first), "is called with 2 arguments"),
        (lambda: keyed().join("j", keyed(), first, within=tumbling(MINUTE)), "is called with 2 arguments"),
    ],
)
def test_a_function_that_no_call_can_reach_is_refused(build: Build, why: str) -> None:
    with pytest.raises(FlowError) as refused:
        build()
    assert why in str(refused.value)


@pytest.mark.parametrize("function", [first, optional, several, Scale(), partial(by_name, factor=2)])
def test_a_function_that_takes_its_record_is_built(function: Any) -> None:
    mapped = readings().map(function, name="m", out=Reading)
    assert mapped.filter(function, name="f").step == "f"


def test_a_function_of_c_is_built_though_it_does_not_say_what_it_takes() -> None:
    assert keyed().reduce("r", max).step == "r"
    assert keyed().fold("f", int, min, state=int).step == "f"
