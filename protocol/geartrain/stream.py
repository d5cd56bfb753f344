"""The streams of the fluent face: what a user chains verbs on, each of which adds a step to the flow.

Guarantees: a wrong name, type or key field is an error at once, in one sentence that says what to write.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from geartrain.errors import FlowError
from geartrain.graph import Grouping, Input, Tier
from geartrain.operators.filter import Filter
from geartrain.operators.flat_map import FlatMap
from geartrain.operators.key_by import KeyBy
from geartrain.operators.map import Map
from geartrain.operators.process import Process
from geartrain.operators.sink import SinkOperator
from geartrain.sink import Table
from geartrain.task import Task

if TYPE_CHECKING:
    from geartrain.flow import Flow

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")


class Stream(Generic[T]):
    """The records that a step puts out."""

    def __init__(self, flow: Flow, step: str, out: Any) -> None:
        self._flow, self._step, self._out = flow, step, out

    def map(
        self,
        function: Callable[[T], U],
        *,
        name: str | None = None,
        out: type[U] | None = None,
        keeps: Iterable[str] = (),
    ) -> Stream[U]:
        """One record out for each in. `out` defaults to the function's return annotation."""
        step = self._named(function, name, "map")
        kind = self._result(step, function, out, of_iterable=False)
        return Stream(
            self._flow, self._flow.add_step(step, Map(function, frozenset(keeps)), self._input(), kind), kind
        )

    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        name: str | None = None,
        out: type[U] | None = None,
        keeps: Iterable[str] = (),
    ) -> Stream[U]:
        """Any number of records out for each in. `out` defaults to the element type of the return
        annotation.
        """
        step = self._named(function, name, "flat_map")
        kind = self._result(step, function, out, of_iterable=True)
        return Stream(
            self._flow,
            self._flow.add_step(step, FlatMap(function, frozenset(keeps)), self._input(), kind),
            kind,
        )

    def filter(self, predicate: Callable[[T], bool], *, name: str | None = None) -> Stream[T]:
        """Only the records for which `predicate` is true."""
        step = self._named(predicate, name, "filter")
        return Stream(
            self._flow, self._flow.add_step(step, Filter(predicate), self._input(), self._out), self._out
        )

    def key_by(self, key: str | Callable[[T], Any], *, name: str | None = None) -> KeyedStream[Any, T]:
        """Key the stream by a field, or by a function that returns a str, int, bool, bytes or a tuple of
        them.
        """
        if isinstance(key, str):
            step = name or f"{self._step}_by_{key}"
            self._flow.check_field(step, self._out, key)
            operator = KeyBy.of_field(key)
        else:
            step = self._named(key, name, "key_by")
            operator = KeyBy(key)
        return KeyedStream(
            self._flow, self._flow.add_step(step, operator, self._input(), self._out), self._out
        )

    def sink(self, step: str, table: Table) -> None:
        """End the stream in a table; raises `FlowError` when a key of the table is not a field of the
        records.
        """
        for field in table.key:
            self._flow.check_field(step, self._out, field)
        self._flow.add_step(step, SinkOperator(table), self._input(), None)

    def at(self, tier: Tier) -> Self:
        """Pin the step that makes this stream to a tier: `"edge"` or `"cloud"`."""
        self._flow.pin(self._step, tier)
        return self

    def _input(self, grouping: Grouping = Grouping.FORWARD) -> tuple[Input, ...]:
        return (Input(self._step, grouping),)

    def _named(self, function: Callable[..., Any], name: str | None, verb: str) -> str:
        step = name or str(getattr(function, "__name__", "<lambda>"))
        if step == "<lambda>":
            raise FlowError(
                f"flow {self._flow.name}: .{verb}(...) after {self._step!r} needs a name: write "
                f'.{verb}(..., name="...")'
            )
        return step

    def _result(self, step: str, function: Callable[..., Any], out: Any, *, of_iterable: bool) -> Any:
        if out is not None:
            return out
        try:
            found = typing.get_type_hints(function).get("return")
        except (NameError, TypeError):
            found = None
        if found is not None and of_iterable:
            found = next(iter(typing.get_args(found)), None)
        if found is None:
            raise FlowError(
                f"flow {self._flow.name}, step {step!r}: what type comes out? annotate the function's "
                "return or pass out=..."
            )
        return found


class KeyedStream(Stream[T], Generic[K, T]):
    """A stream whose records have a key; only here can a step keep state."""

    def process(self, step: str, task: Task[T, U], *, out: type[U] | None = None) -> Stream[U]:
        """Run `task` with one state per key. `out` defaults to the second type argument of the task's
        `Task[In, Out]`.
        """
        kind = out or _task_output(task)
        if kind is None:
            raise FlowError(
                f"flow {self._flow.name}, step {step!r}: declare class {type(task).__name__}(Task[In, "
                "Out]) or pass out=..."
            )
        return Stream(
            self._flow, self._flow.add_step(step, Process(task), self._input(Grouping.HASH), kind), kind
        )


def _task_output(task: Task[Any, Any]) -> Any:
    for base in type(task).__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            arguments = typing.get_args(generic)
            if (
                typing.get_origin(generic) is Task
                and len(arguments) == 2
                and not isinstance(arguments[1], TypeVar)
            ):
                return arguments[1]
    return None
