"""What an aggregate is: an accumulator that takes values, merges with others of its kind, and gives a result.

Base of the built-in aggregates and of a user's own. Stands inside the aggregate operators, on every tier.
Asked of an implementer: `merge` is associative and commutative, and `add` then `merge` gives what adding all
would give, to the last bit. Then neither the order of arrival nor the cut shows in a result.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from geartrain.errors import FlowError, SchemaError
from geartrain.records.batch import Origin
from geartrain.schema.fitting import returned_type

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
    """One aggregate of a step: what is computed, of which value. The functions of `geartrain.agg` make it.

    Args:
        aggregate: what is computed.
        selector: which value of a record it takes.
        give: which value `top_n` lists.
    """

    aggregate: Aggregate[Any, Any, Any]
    selector: Selector = Selector()
    give: Selector | None = None


class Aggregate(Generic[V, A, R]):
    """Base of an aggregate of values `V` with accumulators `A` and results `R`: subclass it for your own.

    Subclasses say: `accumulator`, its type, which has a msgpack form: a `State`, a scalar or a list of them.
    `empty`, the result where every value was None. None is never added. `add` then `merge` gives what adding
    all would give, to the last bit, in any order.

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
        """This aggregate of something.

        Args:
            what: a field, a function of the record, or None for the record itself.

        Returns:
            What `aggregate(..., name=...)` takes.

        Raises:
            FlowError: for anything else.
        """
        return AggregateSpec(self, Selector.of(what))

    def create(self) -> A:
        """A fresh accumulator.

        Returns:
            The accumulator of no value.
        """
        raise TypeError(f"{type(self).__name__} must define create()")

    def add(self, acc: A, value: V, time: int, origin: Origin) -> A:
        """Take one value. The accumulator may be changed in place.

        Args:
            acc: the accumulator.
            value: what the record has, never None.
            time: the record's event time, microseconds since 1970 UTC.
            origin: the record's place among those of the same time.

        Returns:
            The accumulator with it.

        Raises:
            Exception: to refuse a value, by the value alone; the record is then a dead letter.
        """
        raise TypeError(f"{type(self).__name__} must define add(acc, value, time, origin)")

    def merge(self, left: A, right: A) -> A:
        """Both accumulators in one. It must be associative and commutative, to the last bit.

        Args:
            left: one accumulator, which may be changed in place.
            right: the other.

        Returns:
            The accumulator of all that both have taken.
        """
        raise TypeError(f"{type(self).__name__} must define merge(left, right)")

    def result(self, acc: A) -> R:
        """What goes into the field of the result.

        Args:
            acc: the accumulator. What is changed in it must not show in a later result.

        Returns:
            The result.
        """
        raise TypeError(f"{type(self).__name__} must define result(acc)")

    def accumulator_of(self, kind: Any) -> Any:
        """The type of the accumulator for values of one type.

        Args:
            kind: the type of the values, None where it is not known.

        Returns:
            The type, None where it is not known.
        """
        return self.accumulator

    def result_of(self, kind: Any) -> Any:
        """The type of the results.

        Args:
            kind: the type of the values, None where it is not known.

        Returns:
            What `result` is annotated to return, None where that says nothing.
        """
        found = returned_type(type(self).result)
        return None if isinstance(found, TypeVar) else found

    def accept(self, kind: Any) -> Accept | None:
        """How values of one type are checked before they are added.

        Args:
            kind: the type of the values, None where it is not known.

        Returns:
            A function that returns the value in the form that `add` takes, None where none is needed.

        Raises:
            FlowError: for a type that this aggregate does not take.
        """
        return None

    def add_all(self, acc: A, values: Sequence[V], times: Sequence[int], origins: Sequence[Origin]) -> A:
        """Take many values.

        Args:
            acc: the accumulator.
            values: what the records have.
            times: their event times, microseconds; empty where `placed` is False.
            origins: their origins; empty where `placed` is False.

        Returns:
            The accumulator with all of them.
        """
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
