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
    """The records that one step puts out. Each verb adds a step to the flow and returns the stream of it.

    T is the type of the records. Verbs that take a function name their step after it; a lambda needs `name=`.
    `Flow.source` and the verbs make streams.

    Args:
        flow: the flow that it belongs to.
        step: the id of the step.
        out: the type of the records.
    """

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
        """One record out for each record in, with the same event time.

        Args:
            function: makes the record. One that it raises for is a dead letter.
            name: the id of the step; the function's name by default.
            out: the type of the records; what the function is annotated to return by default.
            keeps: the fields that the function passes on unchanged. A `partitioned_by` on one of them holds
                below.

        Returns:
            The stream of what the function returned.

        Raises:
            FlowError: for a step without a name, an id that is taken, or a type that is missing or no record.

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
        """Any number of records out for each record in, with its event time.

        Args:
            function: returns the records, in their order.
            name: the id of the step; the function's name by default.
            out: the type of the records; the element type of what the function is annotated to return by
                default.
            keeps: as for `map`.

        Returns:
            The stream of all that the function returned.

        Raises:
            FlowError: as for `map`.

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
        """Only the records for which a function says true.

        Args:
            predicate: says of each record whether it stays.
            name: the id of the step; the function's name by default.

        Returns:
            The stream of those that stay.

        Raises:
            FlowError: for a step without a name, or an id that is taken.

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
        """Give each record a key. What follows may keep a state for each key, and sees its records in order.

        Args:
            key: a field, or a function of the record. A key is a str, int, bool, bytes or a tuple of them.
            name: the id of the step; `STREAM_by_FIELD`, or the function's name, by default.

        Returns:
            The keyed stream. Its records are the same.

        Raises:
            FlowError: for a field that the records do not have, a step without a name, or an id that is
                taken.

        >>> from geartrain import Flow, Record, agg
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> class Sale(Record):
        ...     shop: str
        ...     pence: int
        >>> class Sum(Record):
        ...     shop: str
        ...     pence: int
        >>> flow = Flow("sales")
        >>> items = [(1, Sale("east", 5)), (2, Sale("west", 3)), (3, Sale("east", 2))]
        >>> sales = flow.source("sales", TestingSource(items=items), out=Sale)
        >>> sums = sales.key_by("shop").aggregate("sums", out=Sum, pence=agg.sum("pence"))
        >>> sums.sink("out", TestingSink("out"))
        >>> for time, sum in sorted(run_flow(flow).tables["out"], key=lambda row: row[0]):
        ...     print(time, sum)
        1 Sum(shop='east', pence=5)
        2 Sum(shop='west', pence=3)
        3 Sum(shop='east', pence=7)
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
        """The records of several streams in one.

        Args:
            step: the id of the step.
            others: streams of the same record type.

        Returns:
            The stream of all of them, in no order among each other.

        Raises:
            FlowError: for streams of different types, or an id that is taken.

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
        """A stream for each of some branches. Each record goes into the one that a function names.

        Args:
            step: the steps are called `STEP_BRANCH`.
            function: returns the branch of a record. A record for which it raises, or returns another name,
                is a dead letter of the first branch's step.
            branches: the names, each once.

        Returns:
            The streams by branch.

        Raises:
            FlowError: for no branches, a name that is there twice, or an id that is taken.

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
        """`value = body(value)` again and again, for each record by itself; one record out.

        Args:
            step: the id of the step.
            body: makes the next value of the one before.
            until: says whether a value is the last one; without it, all rounds are made.
            rounds_max: how many rounds at most, 1 or more.

        Returns:
            The stream of the last values.

        Raises:
            FlowError: for `rounds_max` below 1, or an id that is taken.

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
        """The same stream; some of its records are written to the program's log.

        Args:
            step: the id of the step.
            every: one record of so many is written, 1 or more.

        Returns:
            The same records, keyed as before.

        Raises:
            FlowError: for `every` below 1, or an id that is taken.

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
        """Look each record up in a table that a small stream makes. The step runs in the cloud.

        Args:
            step: the id of the step.
            small: the records of the table. For each key the table holds the last one whose event time is not
                after that of the record: at equal times the table has it already.
            function: makes a record of a value and the table, which maps keys to records of `small`.
            key: a field of the records of `small`, or a function of them.
            out: the type of the records; what the function is annotated to return by default.

        Returns:
            The stream of what the function returned.

        Raises:
            FlowError: as for `map` and `key_by`.

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
        """End the stream in a table, a file, a topic, or on a device. A stream may have several sinks.

        Args:
            step: the id of the step.
            table: where the records come to rest: `Table`, or one of `geartrain.sinks`.

        Raises:
            FlowError: when a key of the table is not a field of the records, or for an id that is taken.

        >>> from geartrain import Flow, Table
        >>> from geartrain.testing import TestingSource, run_flow
        >>> flow = Flow("tides")
        >>> levels = flow.source("levels", TestingSource(items=[(1, 3)]), out=int)
        >>> levels.sink("out", Table("levels"))
        >>> run_flow(flow).tables["out"]
        [(1, 3)]
        """
        for field in table.key:
            self._flow.check_field(step, self._out, field)
        self._flow.add_step(step, sink_operator(table), self._input(), None)

    def at(self, tier: Tier, device: Device | None = None) -> Self:
        """Pin the step that makes this stream to a tier. Without a pin the planner decides.

        Args:
            tier: `"edge"` or `"cloud"`. A source in the cloud is read once, by an agent of the platform, and
                no device has it.
            device: of a step below the cloud: to which device each record that it reads goes. `by_key`, a
                field, or a function that returns the device's name.

        Returns:
            This stream.

        Raises:
            FlowError: for another tier, for a step that can only stand on the other one, and where no device
                can be told.
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
    """The records of a source that are not late. `Flow.source` makes it.

    Args:
        flow: the flow that it belongs to.
        step: the id of the source's step.
        out: the type of the records.
    """

    def late(self) -> Stream[T]:
        """The records of the source that were late at their birth. Without this they go to the table `late`.

        They obey no watermark: only map, flat_map, filter, split, merge and sinks may read them.

        Returns:
            The stream of them, of the same type.

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
