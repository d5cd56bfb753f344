"""The streams of the fluent face: what a user chains verbs on, each of which adds a step to the flow.

Guarantees: a wrong name, type or key field is an error at once, in one sentence that says what to write. Each
verb imports its operator, so that a flow pays on a device for those that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from geartrain.declarations.sink import Sink
from geartrain.errors import FlowError
from geartrain.flow.verbs import name_of, named_after, returned_by
from geartrain.graph.graph import Grouping, Input, Tier
from geartrain.operators.sink import sink_operator

if TYPE_CHECKING:
    from geartrain.flow.flow import Flow
    from geartrain.flow.keyed import KeyedStream
    from geartrain.graph.operator import Operator
    from geartrain.operators.deal import Device

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class Stream(Generic[T]):
    """The records that a step puts out."""

    def __init__(self, flow: Flow, step: str, out: Any) -> None:
        self._flow, self._step, self._out = flow, step, out

    @property
    def step(self) -> str:
        """The id of the step that puts it out."""
        return self._step

    @property
    def kind(self) -> Any:
        """The Python type of its records."""
        return self._out

    def map(
        self,
        function: Callable[[T], U],
        *,
        name: str | None = None,
        out: type[U] | None = None,
        keeps: Iterable[str] = (),
    ) -> Stream[U]:
        """One record out for each in. `out` defaults to the function's return annotation.

        keeps: the fields that `function` passes on unchanged; a domain on one of them is kept.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("loud")
        >>> words = flow.source("words", TestingSource(items=[(1, "to be"), (2, "or")]), out=str)
        >>> words.map(str.upper, out=str).sink("out", TestingSink("loud"))
        >>> [word for _, word in run_flow(flow).tables["out"]]
        ['TO BE', 'OR']
        """
        from geartrain.operators.map import Map

        step = self._named(function, name, "map")
        kind = self._result(step, function, out, of_iterable=False)
        return self._then(step, Map(function, frozenset(keeps)), kind)

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

        keeps: as for `map`.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("single")
        >>> words = flow.source("words", TestingSource(items=[(1, "to be"), (2, "or")]), out=str)
        >>> words.flat_map(str.split, out=str).sink("out", TestingSink("single"))
        >>> [word for _, word in run_flow(flow).tables["out"]]
        ['to', 'be', 'or']
        """
        from geartrain.operators.flat_map import FlatMap

        step = self._named(function, name, "flat_map")
        kind = self._result(step, function, out, of_iterable=True)
        return self._then(step, FlatMap(function, frozenset(keeps)), kind)

    def filter(self, predicate: Callable[[T], bool], *, name: str | None = None) -> Stream[T]:
        """Only the records for which `predicate` is true.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("short")
        >>> words = flow.source("words", TestingSource(items=[(1, "to be"), (2, "or")]), out=str)
        >>> words.filter(lambda word: len(word) < 3, name="short").sink("out", TestingSink("short"))
        >>> [word for _, word in run_flow(flow).tables["out"]]
        ['or']
        """
        from geartrain.operators.filter import Filter

        step = self._named(predicate, name, "filter")
        return self._then(step, Filter(predicate), self._out)

    def key_by(self, key: str | Callable[[T], Any], *, name: str | None = None) -> KeyedStream[Any, T]:
        """Key the stream by a field, or by a function that returns a str, int, bool, bytes or a tuple of
        them. What follows may keep a state for each key.
        """
        from geartrain.flow.keyed import KeyedStream
        from geartrain.operators.key_by import KeyBy

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

    def merge(self, step: str, *others: Stream[T]) -> Stream[T]:
        """The records of this stream and of `others`, which have the same type.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("tides")
        >>> east = flow.source("east", TestingSource(items=[(1, 3)]), out=int)
        >>> west = flow.source("west", TestingSource(items=[(2, 5)]), out=int)
        >>> east.merge("both", west).sink("out", TestingSink("levels"))
        >>> sorted(run_flow(flow).tables["out"])
        [(1, 3), (2, 5)]
        """
        from geartrain.operators.merge import Merge

        for other in others:
            if other.kind is not self._out:
                raise self._mistake(
                    step,
                    f"merge takes streams of one type: {self._step!r} has {name_of(self._out)}, "
                    f"{other.step!r} has {name_of(other.kind)}; map one of them first",
                )
        inputs = tuple(Input(stream.step) for stream in (self, *others))
        return Stream(self._flow, self._flow.add_step(step, Merge(), inputs, self._out), self._out)

    def split(self, step: str, function: Callable[[T], str], branches: Sequence[str]) -> dict[str, Stream[T]]:
        """A stream for each of `branches`, with the records for which `function` returns its name.

        A record for which it raises or returns another name is a dead letter of the first branch's step.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("tides")
        >>> levels = flow.source("levels", TestingSource(items=[(1, 3), (2, 9)]), out=int)
        >>> sides = levels.split("side", lambda level: "high" if level > 5 else "low", ("high", "low"))
        >>> sides["high"].sink("out", TestingSink("levels"))
        >>> sides["low"].sink("rest", TestingSink("rest"))
        >>> run_flow(flow).tables
        {'out': [(2, 9)], 'rest': [(1, 3)]}
        """
        from geartrain.operators.branch import Branch

        names = tuple(branches)
        if isinstance(branches, str) or not names or len(set(names)) < len(names):
            raise self._mistake(step, 'split takes the names of its branches, each once: ("hot", "cold")')
        return {
            name: self._then(f"{step}_{name}", Branch(function, name, names), self._out) for name in names
        }

    def iterate(
        self,
        step: str,
        body: Callable[[T], T],
        *,
        until: Callable[[T], bool] | None = None,
        rounds_max: int,
    ) -> Stream[T]:
        """`value = body(value)` until `until(value)` is true, at most `rounds_max` times; one record out.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("halves")
        >>> numbers = flow.source("numbers", TestingSource(items=[(1, 40), (2, 7)]), out=int)
        >>> odd = numbers.iterate("odd", lambda n: n // 2, until=lambda n: n % 2 == 1, rounds_max=64)
        >>> odd.sink("out", TestingSink("odd"))
        >>> run_flow(flow).tables["out"]
        [(1, 5), (2, 3)]
        """
        from geartrain.operators.iterate import Iterate

        if rounds_max < 1:
            raise self._mistake(step, f"rounds_max={rounds_max}: the body runs at least once")
        return self._then(step, Iterate(body, until, rounds_max), self._out)

    def log(self, step: str, *, every: int = 1) -> Self:
        """The same stream; one record of `every` is written to the program's log.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("tides")
        >>> levels = flow.source("levels", TestingSource(items=[(1, 3)]), out=int)
        >>> levels.log("seen", every=1_000).sink("out", TestingSink("levels"))
        >>> run_flow(flow).tables["out"]
        [(1, 3)]
        """
        from geartrain.operators.log import Log

        if every < 1:
            raise self._mistake(step, f"every={every}: write 1 to log each record")
        logged = self._flow.add_step(step, Log(every), self._input(), self._out)
        return type(self)(self._flow, logged, self._out)

    def broadcast(
        self,
        step: str,
        small: Stream[V],
        function: Callable[[T, Mapping[Any, V]], U],
        *,
        key: str | Callable[[V], Any],
        out: type[U] | None = None,
    ) -> Stream[U]:
        """`function(value, table)` for each record; `table` maps `key` (a field or a function) of the records
        of `small` to the last of them at the record's own time. It runs in the cloud.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> from collections.abc import Mapping
        >>> flow = Flow("shop")
        >>> sold = flow.source("sold", TestingSource(items=[(1, "nut"), (9, "nut")], name="s"), out=str)
        >>> names = flow.source("names", TestingSource(items=[(5, "nut: M8")], name="n"), out=str)
        >>> def named(item: str, table: Mapping[str, str]) -> str:
        ...     return table.get(item, item)
        >>> both = sold.broadcast("named", names, named, key=lambda name: name.split(":")[0])
        >>> both.sink("out", TestingSink("named"))
        >>> run_flow(flow).tables["out"]
        [(1, 'nut'), (9, 'nut: M8')]
        """
        from geartrain.operators.broadcast import Broadcast

        kind = self._result(step, function, out, of_iterable=False)
        keyed = small.key_by(key, name=f"{step}_key")
        inputs = (Input(self._step), Input(keyed.step, Grouping.BROADCAST))
        return Stream(self._flow, self._flow.add_step(step, Broadcast(key, function), inputs, kind), kind)

    def sink(self, step: str, table: Sink) -> None:
        """End the stream in a table, or on a device; `FlowError` when a key is not a field of the records."""
        for field in table.key:
            self._flow.check_field(step, self._out, field)
        self._flow.add_step(step, sink_operator(table), self._input(), None)

    def at(self, tier: Tier, device: Device | None = None) -> Self:
        """Pin the step that makes this stream to a tier: `"edge"` or `"cloud"`. device: of a step below the
        cloud, to which device each record that it reads goes: `by_key`, a field, or a function of it.
        """
        self._flow.pin(self._step, tier, device)
        return self

    def _then(self, step: str, operator: Operator, out: Any) -> Stream[Any]:
        return Stream(self._flow, self._flow.add_step(step, operator, self._input(), out), out)

    def _input(self, grouping: Grouping = Grouping.FORWARD) -> tuple[Input, ...]:
        return (Input(self._step, grouping),)

    def _mistake(self, step: str, what: str) -> FlowError:
        return FlowError(f"flow {self._flow.name}, step {step!r}: {what}")

    def _named(self, function: Callable[..., Any], name: str | None, verb: str) -> str:
        return name or named_after(
            f"flow {self._flow.name}: .{verb}(...) after {self._step!r}", function, verb
        )

    def _result(self, step: str, function: Callable[..., Any], out: Any, *, of_iterable: bool) -> Any:
        return out or returned_by(f"flow {self._flow.name}, step {step!r}", function, of_iterable=of_iterable)


class SourceStream(Stream[T]):
    """The records of a source that are not late."""

    def late(self) -> Stream[T]:
        """The records that were late at their birth, instead of in the table of late records.

        They obey no watermark: only map, flat_map, filter, split, merge and sinks may read them.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("tides")
        >>> levels = flow.source("levels", TestingSource(items=[(10, 3), (4, 5)]), out=int)
        >>> levels.sink("out", TestingSink("levels"))
        >>> levels.late().sink("late", TestingSink("late"))
        >>> run_flow(flow).tables
        {'out': [(10, 3)], 'late': [(4, 5)]}
        """
        from geartrain.operators.late import Late

        return self._then(f"{self._step}_late", Late(), self._out)
