"""What an aggregate is: an accumulator that takes values, merges with others of its kind, and gives a result.

Base of the built-in aggregates and of a user's own. Stands inside the aggregate operators, on every tier.
Asked of an implementer: `merge` is associative and commutative, and `add` then `merge` gives what adding all
would give, to the last bit: then neither the order of arrival nor the cut shows in a result.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from geartrain.errors import FlowError, SchemaError
from geartrain.records.batch import Origin

V = TypeVar("V")
A = TypeVar("A")
R = TypeVar("R")

Accept = Callable[[Any], Any]
"""A value in the form that an aggregate adds; raises `SchemaError` for one that it does not take."""


class Selector(msgspec.Struct, frozen=True):
    """Which value of a record is meant: a field, what a function returns, or (both None) the record."""

    field: str | None = None
    function: Callable[[Any], Any] | None = None

    @staticmethod
    def of(what: str | Callable[[Any], Any] | None) -> Selector:
        """The selector that a user wrote."""
        if what is None or isinstance(what, str):
            return Selector(what)
        if not callable(what):
            raise FlowError(f"an aggregate of {what!r}: name a field, or give a function of the record")
        return Selector(None, what)


class AggregateSpec(msgspec.Struct, frozen=True):
    """One aggregate of a step: what is computed, of which value; `give` selects what `top_n` lists."""

    aggregate: Aggregate[Any, Any, Any]
    selector: Selector = Selector()
    give: Selector | None = None


class Aggregate(Generic[V, A, R]):
    """Base of an aggregate of values `V` with accumulators `A` and results `R`.

    accumulator: the type of the accumulator, typed and with a msgpack form: a `State`, a scalar or a list of
    them; empty: the result where every value was None, which is never added. An accumulator may be changed in
    place by `add` and `merge`, which return it.

    >>> from geartrain import State, agg
    >>> class Range(State):
    ...     low: float = float("inf")
    ...     high: float = float("-inf")
    >>> class Spread(agg.Aggregate[float, Range, float]):
    ...     accumulator = Range
    ...     def create(self) -> Range:
    ...         return Range()
    ...     def add(self, acc: Range, value: float, time: int, origin: object) -> Range:
    ...         return Range(min(acc.low, value), max(acc.high, value))
    ...     def merge(self, left: Range, right: Range) -> Range:
    ...         return Range(min(left.low, right.low), max(left.high, right.high))
    ...     def result(self, acc: Range) -> float:
    ...         return acc.high - acc.low
    >>> spread = Spread()
    >>> spread.result(spread.add(spread.add(spread.create(), 3.0, 0, None), 5.0, 0, None))
    2.0
    >>> spec = spread.of("price")  # stream.aggregate("spreads", spread=Spread().of("price"), out=...)
    """

    accumulator: ClassVar[Any] = None
    skips_none: ClassVar[bool] = True
    placed: ClassVar[bool] = True
    built_in: ClassVar[bool] = False
    empty: ClassVar[Any] = None

    def of(self, what: str | Callable[[Any], Any] | None = None) -> AggregateSpec:
        """This aggregate of a field, of what a function of the record returns, or of the record itself."""
        return AggregateSpec(self, Selector.of(what))

    def create(self) -> A:
        """A fresh accumulator."""
        raise TypeError(f"{type(self).__name__} must define create()")

    def add(self, acc: A, value: V, time: int, origin: Origin) -> A:
        """`acc` with `value`, of a record of event time `time` (microseconds) and the given origin; it may
        refuse a value by raising, by the value alone.
        """
        raise TypeError(f"{type(self).__name__} must define add(acc, value, time, origin)")

    def merge(self, left: A, right: A) -> A:
        """Both in one."""
        raise TypeError(f"{type(self).__name__} must define merge(left, right)")

    def result(self, acc: A) -> R:
        """What goes into the field of the result; does not change `acc` in a way that shows."""
        raise TypeError(f"{type(self).__name__} must define result(acc)")

    def accumulator_of(self, kind: Any) -> Any:
        """The accumulator's type for values of the Python type `kind`, None where it is not known."""
        return self.accumulator

    def accept(self, kind: Any) -> Accept | None:
        """The check of values of type `kind` before they are added, None where they need none; raises
        `FlowError` for a type that this aggregate does not take.
        """
        return None

    def add_all(self, acc: A, values: Sequence[V], times: Sequence[int], origins: Sequence[Origin]) -> A:
        """`acc` with all of `values`; times and origins are empty where `placed` is False."""
        for value, time, origin in zip(values, times, origins, strict=True):
            acc = self.add(acc, value, time, origin)
        return acc


class BuiltIn(Aggregate[V, A, R]):
    """Base of the aggregates that come with Geartrain: they check values before they add any."""

    name: ClassVar[str] = ""
    placed: ClassVar[bool] = False
    built_in: ClassVar[bool] = True
    kinds: ClassVar[tuple[type, ...]] = ()

    def add(self, acc: A, value: V, time: int, origin: Origin) -> A:
        """`acc` with one value."""
        return self.add_all(acc, [value], [time], [origin])

    def add_groups(self, accs: Sequence[A], column: Sequence[V], groups: Sequence[list[int]]) -> Sequence[A]:
        """Each accumulator with the values of `column` at the rows of its group; not asked of what is
        `placed`.
        """
        taken = [list(map(column.__getitem__, rows)) for rows in groups]
        return [self.add_all(acc, values, (), ()) for acc, values in zip(accs, taken, strict=True)]

    def results(self, accs: Sequence[A]) -> list[R]:
        """The result of each accumulator."""
        return list(map(self.result, accs))

    def compact(self, acc: A) -> A:
        """`acc` in its smallest form, before it travels; it is not added to any more."""
        return acc

    def accept(self, kind: Any) -> Accept | None:
        """Values of the types `kinds` are taken; others raise."""
        if kind in self.kinds:
            return None
        if kind is not None:
            names = ", ".join(k.__name__ for k in self.kinds)
            name = getattr(kind, "__name__", kind)
            raise FlowError(f"{self.name} takes {names}, not {name}")
        return self._known

    def _known(self, value: Any) -> Any:
        if type(value) not in self.kinds:
            raise SchemaError(f"{self.name} does not take {type(value).__name__}")
        return value


SCALARS: tuple[type, ...] = (bool, int, float, str, bytes, datetime.datetime, decimal.Decimal)
"""The types whose values can be compared and told apart."""
