"""The fluent face: `Flow`, `Stream` and `KeyedStream`, what a user writes a dataflow with.

Builds a `Graph`, one step a call. Guarantees: a wrong name, type or key field is an error at once, in one
sentence that says what to write; nothing runs before the flow is run.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypeVar

from geartrain.errors import FlowError, GeartrainError
from geartrain.graph import Graph, Grouping, Input, Step, Tier, check_id
from geartrain.operators.filter import Filter
from geartrain.operators.flat_map import FlatMap
from geartrain.operators.key_by import KeyBy
from geartrain.operators.map import Map
from geartrain.operators.operator import Operator
from geartrain.operators.process import Process
from geartrain.operators.sink import SinkOperator
from geartrain.operators.source import SourceOperator
from geartrain.schema import derive
from geartrain.sink import Table
from geartrain.source import Source
from geartrain.task import Task

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")


class Flow:
    """A dataflow under construction, named `name`."""

    def __init__(self, name: str) -> None:
        """`name` names the flow's topics, log and tables; raises `FlowError` when it is not a plain name."""
        check_id(name)
        self.name = name
        self._steps: dict[str, Step] = {}

    def source(
        self, step: str, source: Source[T], *, out: type[T], partitioned_by: str | None = None
    ) -> Stream[T]:
        """A stream of records of type `out` from `source`.

        `partitioned_by` promises that each value of that field is seen on one device only.
        """
        stream = Stream[T](self, self.add_step(step, SourceOperator(source, partitioned_by), (), out), out)
        self.check_field(step, out, partitioned_by)
        return stream

    def graph(self) -> Graph:
        """The flow as a checked graph; raises `FlowError` when it has no source or no sink."""
        graph = Graph(self.name, tuple(self._steps.values()))
        if not graph.sources():
            raise FlowError(f"flow {self.name} has no source: begin with flow.source(...)")
        if not graph.sinks():
            raise FlowError(f"flow {self.name} has no sink: end a stream with .sink(id, Table(...))")
        return graph

    def add_step(self, step_id: str, operator: Operator, inputs: tuple[Input, ...], out: Any) -> str:
        """Add a step and return its id; raises `FlowError` for a second step of one id or a type "
        "that is no record."""
        if step_id in self._steps:
            raise FlowError(
                f"flow {self.name}: two steps are named {step_id!r}; "
                f"give this one another id, such as {step_id + '_2'!r}"
            )
        if out is not None:
            try:
                derive(out)
            except GeartrainError as error:
                raise FlowError(f"flow {self.name}, step {step_id!r}: {error}") from None
        self._steps[step_id] = Step(step_id, operator, inputs, out)
        return step_id

    def check_field(self, step: str, out: Any, field: str | None) -> None:
        """Raise `FlowError` unless `field` is None or a field of the record type `out`."""
        names = [f.name for f in derive(out).fields]
        if field is not None and field not in names:
            raise FlowError(
                f"flow {self.name}, step {step!r}: {out.__name__} has no field {field!r}; "
                f"its fields: {', '.join(names)}"
            )

    def pin(self, step_id: str, tier: Tier) -> None:
        """Pin a step to a tier; raises `FlowError` for another word than `edge` and `cloud`."""
        if tier not in ("edge", "cloud"):
            raise FlowError(
                f"flow {self.name}, step {step_id!r}: at({tier!r}) must be at('edge') or at('cloud')"
            )
        old = self._steps[step_id]
        self._steps[step_id] = Step(old.id, old.operator, old.inputs, old.out, tier, old.parallelism)


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
