"""What is said when a window or an aggregate cannot be: one sentence, when the flow is built."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from geartrain import (
    Flow,
    KeyedStream,
    Record,
    agg,
    every_records,
    every_time,
    global_window,
    session,
    sliding,
    tumbling,
)
from geartrain.errors import FlowError
from geartrain.testing import TestingSource

US = timedelta(microseconds=1)
TEN = tumbling(10 * US)


class Car(Record):
    lane: str
    speed: float


def road() -> KeyedStream[Any, Car]:
    return Flow("road").source("cars", TestingSource[Car](), out=Car).key_by("lane")


def test_mistakes_are_told_in_a_sentence() -> None:
    class Plain(Record):
        lane: str
        n: int

    class Ends(Record):
        n: int
        window_end: float

    def mistake(what: str, make: Callable[[KeyedStream[Any, Car]], object]) -> None:
        with pytest.raises(FlowError, match=what):
            make(road())

    wrong: Any = 10
    mistake("must be given tumbling", lambda cars: cars.window(wrong))
    mistake("'n' must be an|n=10 must be an agg", lambda c: c.window(TEN).aggregate("a", out=Plain, n=wrong))
    mistake(
        "nobody fills field 'n'", lambda c: c.window(TEN).aggregate("a", out=Plain, lane=agg.first("lane"))
    )
    mistake("has no field 'm'", lambda c: c.aggregate("a", out=Plain, n=agg.count(), m=agg.count()))
    mistake("name at least one", lambda c: c.aggregate("a", out=Plain))
    mistake("no field 'spede'", lambda c: c.aggregate("a", out=Plain, n=agg.sum("spede")))
    mistake("agg.sum takes bool, int", lambda c: c.aggregate("a", out=Plain, n=agg.sum("lane")))
    mistake("must be a Record", lambda c: c.aggregate("a", out=int, n=agg.count()))
    mistake("must be a datetime", lambda c: c.window(TEN).aggregate("a", out=Ends, n=agg.count()))
    mistake(
        "a global window has no", lambda c: c.window(global_window()).aggregate("a", out=Ends, n=agg.count())
    )
    mistake("nobody fills field 'window_end'", lambda c: c.aggregate("a", out=Ends, n=agg.count()))
    mistake("early=10 must", lambda c: c.window(TEN).aggregate("a", out=Plain, early=wrong, n=agg.count()))
    mistake("what type is the state", lambda c: c.fold("a", lambda: 0, lambda n, _: n))
    mistake("what type comes out", lambda c: c.fold("a", int, lambda n, _: n, result=lambda n: n))
    mistake("cannot be a record", lambda c: c.fold("a", lambda: 0, lambda n, _: n, state=object))
    for make in (
        lambda: tumbling(timedelta()),
        lambda: sliding(timedelta(days=1), US),
        lambda: session(wrong),
        lambda: every_records(0),
        lambda: every_time(-US),
        lambda: tumbling(timedelta.max * 1),
    ):
        with pytest.raises(FlowError):
            make()
