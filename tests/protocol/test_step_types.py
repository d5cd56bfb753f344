"""Types that are known when a flow is built: what would make each result a dead letter is refused there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import partial, wraps
from numbers import Number
from typing import Annotated, Any, NewType, Protocol

import pytest

from geartrain import Digits, Flow, Record, Task, agg, tumbling
from geartrain.accumulating.contents import kept_type
from geartrain.errors import FlowError, SchemaError
from geartrain.flow.stream import Stream
from geartrain.schema import RowCodec
from geartrain.schema.fitting import can_be_key, can_be_state, can_fit
from geartrain.state.state_type import StateType
from geartrain.testing import TestingSource

Money = Annotated[Decimal, Digits(12, 2)]


class Mode(Enum):
    """A member is neither a text nor a number."""

    ON = "on"


class Level(IntEnum):
    """A member is a whole number."""

    LOW = 1


class Name(StrEnum):
    """A member is a text."""

    A = "a"


class Reading(Record):
    """What comes in."""

    site: str
    value: float
    count: int
    price: Money
    at: datetime


class Whole(Record):
    """A field that holds no fraction."""

    site: str
    n: int


class Priced(Record):
    """A field of decimal digits."""

    site: str
    n: Money | None


class Numbered(Record):
    """A key that is no text."""

    site: int
    n: int


def readings() -> Stream[Reading]:
    return Flow("types").source("readings", TestingSource[Reading](), out=Reading)


Windows = Callable[[Stream[Reading]], Any]


def aggregated(out: Any, spec: Any) -> Windows:
    return lambda stream: (
        stream.key_by("site").window(tumbling(timedelta(minutes=1))).aggregate("a", out=out, n=spec)
    )


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (aggregated(Whole, agg.mean("value")), "gives float, which field 'n' of Whole cannot hold, since"),
        (aggregated(Whole, agg.sum("value")), "gives float, which field 'n' of Whole cannot hold"),
        (aggregated(Whole, agg.max("at")), "gives datetime, which field 'n' of Whole cannot hold"),
        (aggregated(Whole, agg.top_n("count", 3)), "gives list"),
        (aggregated(Priced, agg.mean("price")), "gives float, which field 'n' of Priced cannot hold"),
        (aggregated(Numbered, agg.count()), "the key is str, which field 'site' of Numbered cannot hold"),
        (lambda stream: stream.key_by("site").aggregate("a", out=Whole, n=agg.variance("value")), "float"),
    ],
)
def test_a_result_that_never_fits_its_field_is_refused(build: Windows, why: str) -> None:
    with pytest.raises(FlowError) as refused:
        build(readings())
    assert str(refused.value).startswith("flow types, step 'a': ")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "build",
    [
        aggregated(Whole, agg.sum("count")),
        aggregated(Whole, agg.count()),
        aggregated(Whole, agg.max(lambda reading: reading.value)),
        aggregated(Priced, agg.sum("price")),
        aggregated(Priced, agg.max("count")),
        lambda stream: stream.key_by(lambda reading: 7, name="k").aggregate(
            "a", out=Numbered0, n=agg.count()
        ),
    ],
)
def test_what_may_fit_is_built(build: Windows) -> None:
    assert build(readings()) is not None


def some(reading: Reading) -> float | None:
    """A number, or None."""
    return reading.value or None


def counted(reading: Reading) -> Number:
    """A number of a kind that is not said."""
    return reading.count  # type: ignore[return-value]


def child(reading: Reading) -> HasSite:
    """Any record that has this field."""
    return Whole(reading.site, 1)


def listed(function: Callable[[Reading], int]) -> Callable[[Reading], list[int]]:
    """A decorator after which the annotation of the function is not what comes out."""

    @wraps(function)
    def call(reading: Reading) -> list[int]:
        return [function(reading)]

    return call


def misspelled(reading: Reading) -> Missing:  # type: ignore[name-defined]  # noqa: F821
    """An annotation that cannot be read."""
    return reading.count


def known(reading: Reading) -> UserId:
    """A type of its own for type checkers."""
    return UserId(reading.count)


def noted(total: str, reading: Reading) -> Decimal:
    """A state that is read back as text, as its msgpack is."""
    return Decimal(total) + reading.price


class Passes(Task[Reading, Reading]):
    """It emits what comes in, of whatever type."""

    def on_next(self, value: Reading, ctx: Any) -> None:
        """Each."""
        ctx.emit(value)


class HasSite(Protocol):
    """What has a site."""

    @property
    def site(self) -> str:
        """Its name."""


UserId = NewType("UserId", int)


class Perhaps(Record):
    """A field that may be empty."""

    site: str
    n: list[float] | None


@pytest.mark.parametrize(
    "build",
    [
        aggregated(Perhaps, agg.last(some)),
        lambda s: s.map(counted, out=int),
        lambda s: s.map(counted, out=float),
        lambda s: s.map(child, out=Whole),
        lambda s: s.map(listed(rounded), out=list[int]),
        lambda s: s.map(misspelled, out=str),
        lambda s: s.map(known, out=float),
        lambda s: s.map(partial(rounded), out=float, name="p"),
        lambda s: s.map(lambda reading: reading.site, out=int, name="l"),
        lambda s: s.key_by(counted),
        lambda s: s.key_by(known),
        lambda s: s.key_by(misspelled),
        lambda s: s.key_by("site").fold("f", str, noted, out=str),
        lambda s: s.key_by("site").process("p", Passes(), out=Whole),
    ],
)
def test_code_whose_annotations_leave_a_doubt_is_built(build: Windows) -> None:
    assert build(readings()) is not None


class Numbered0(Record):
    """What a function gives as a key is not known."""

    key: int
    n: int


def hour(reading: Reading) -> datetime:
    """No key."""
    return reading.at


def rounded(reading: Reading) -> int:
    """A whole number."""
    return reading.count


def both(left: Reading, right: Reading) -> Whole:
    """Another type than the records."""
    return Whole(left.site, right.count)


def many(reading: Reading) -> Iterator[Whole]:
    """Several of one type."""
    yield Whole(reading.site, 1)


def added(total: float, reading: Reading) -> str:
    """Another type than the state."""
    return f"{total}{reading.value}"


class Emits(Task[Reading, Whole]):
    """It emits one type."""

    def on_next(self, value: Reading, ctx: Any) -> None:
        """One for each."""
        ctx.emit(Whole(value.site, 1))


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda s: s.key_by("at"), "step 'readings_by_at': field 'at' is datetime, which cannot be a key"),
        (lambda s: s.key_by("value"), "field 'value' is float, which cannot be a key"),
        (lambda s: s.key_by(hour), "step 'hour': hour is datetime, which cannot be a key"),
        (lambda s: s.map(rounded, out=Whole), "rounded returns int, and Whole is to come out"),
        (lambda s: s.flat_map(many, out=Numbered), "many makes Whole, and Numbered is to come out"),
        (lambda s: s.key_by("site").reduce("r", both), "both returns Whole, and Reading is to come out"),
        (lambda s: s.iterate("i", rounded, rounds_max=2), "rounded returns int, and Reading is to come out"),
        (lambda s: s.key_by("site").fold("f", float, added), "added returns str, and the state is float"),
        (lambda s: s.key_by("site").process("p", Emits(), out=str), "Emits emits Whole, and str is"),
    ],
)
def test_code_that_says_another_type_is_refused(build: Windows, why: str) -> None:
    with pytest.raises(FlowError) as refused:
        build(readings())
    assert why in str(refused.value)


VALUES: list[tuple[Any, Any]] = [
    (bool, True),
    (int, 5),
    (float, 0.5),
    (str, "a"),
    (bytes, b"a"),
    (datetime, datetime(2024, 1, 1)),  # noqa: DTZ001 - one without a zone is taken as UTC
    (Decimal, Decimal("1.50")),
    (Mode, Mode.ON),
    (Level, Level.LOW),
    (Name, Name.A),
    (list[int], [1]),
    (dict[str, int], {"a": 1}),
    (tuple[int, str], (1, "a")),
    (Whole, Whole("a", 1)),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_what_is_refused_by_its_type_is_refused_by_its_value(kind: Any, value: Any) -> None:
    """A type that cannot fit has no value that passes the check of records."""
    fields = [
        bool,
        int,
        float,
        str,
        bytes,
        datetime,
        Money,
        Mode,
        list[int],
        dict[str, int],
        Whole,
        int | None,
    ]
    refused = 0
    for hint in fields:
        holder: Any = type("Holder", (Record,), {"__annotations__": {"field": hint}, "__module__": __name__})
        _, wrong = RowCodec(holder).conform([holder(value)])
        if not can_fit(kind, hint):
            refused += 1
            assert wrong, (kind, hint)
        elif hint is kind:
            assert not wrong, (kind, hint)
    assert refused > 3
    assert can_fit(kind, Any)
    assert can_fit(Any, kind)
    assert can_fit(kind | None, kind)


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_what_cannot_be_a_state_by_its_type_cannot_be_one_by_its_value(kind: Any, value: Any) -> None:
    states: list[Any] = [bool, int, float, str, bytes, list, dict, Whole0]
    for state in states:
        kept = kept_type(state)
        try:
            StateType("s", kept).fitted(kept(value))
        except SchemaError:
            assert kind is not state
        else:
            assert can_be_state(kind, state), (kind, state)


class Whole0(Record):
    """A record that is a state."""

    n: int = 0


def test_keys_are_texts_numbers_truth_bytes_and_tuples_of_them() -> None:
    kind: Any
    for kind in (str, int, bool, bytes, Name, Level, tuple[str, int], tuple[int, ...], str | None, Any, None):
        assert can_be_key(kind), kind
    for kind in (
        float,
        datetime,
        Decimal,
        Money,
        Mode,
        list[int],
        Whole,
        tuple[str, float],
        float | datetime,
    ):
        assert not can_be_key(kind), kind
