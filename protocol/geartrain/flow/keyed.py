"""The keyed stream of the fluent face: the verbs that keep a state for each key.

Stands between `geartrain.flow.stream` and `geartrain.flow.windowed`. Guarantees: a mistake is an error at
once, in one sentence that says what to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from geartrain.declarations.task import Task
from geartrain.errors import FlowError
from geartrain.flow.stream import Stream
from geartrain.flow.verbs import join_of, process_of, task_kind
from geartrain.graph.graph import Grouping, Input

if TYPE_CHECKING:
    from geartrain.aggregates.mergeable import AggregateSpec
    from geartrain.declarations.calendars import Calendar
    from geartrain.declarations.windows import Global, Sliding, Tumbling, Window
    from geartrain.flow.windowed import WindowedStream
    from geartrain.graph.operator import Operator

K = TypeVar("K")
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
A = TypeVar("A")


class KeyedStream(Stream[T], Generic[K, T]):
    """A stream whose records have a key; `Stream.key_by` makes it. Only here can a step keep state.

    K is the type of the keys, T that of the records.

    Args:
        flow: the flow that it belongs to.
        step: the id of the step that keys it.
        out: the type of the records.
    """

    def process(
        self,
        step: str,
        task: Task[T, U],
        *,
        out: type[U] | None = None,
        ttl: timedelta | None = None,
        initial: Mapping[Any, Any] | None = None,
        order: Literal["canonical", "arrival"] = "canonical",
        keeps: Iterable[str] = (),
    ) -> Stream[U]:
        """Run a task, with one state for each key.

        Args:
            step: the id of the step.
            task: what is run. It sees the records of each key in canonical order.
            out: the type of the records that it emits; the second type argument of its `Task[In, Out]` by
                default.
            ttl: a key's state and timers are forgotten so long after its last call, in event time.
            initial: the states that keys begin with, by key.
            order: `"arrival"` gives up canonical order, and with it equal results in every run.
            keeps: the fields that each record it emits has from the record, or the key, that it was called
                for. A `partitioned_by` on one of them holds below the step, too; a false one is found as that
                of a source is.

        Returns:
            The stream of what the task emits.

        Raises:
            FlowError: for a missing type, a state that cannot be kept, another order, or a `ttl` that is not
                longer than nothing.

        >>> from typing import ClassVar
        >>> from geartrain import Context, Flow, Task
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> class Count(Task[str, str]):
        ...     state: ClassVar[type[int]] = int
        ...
        ...     def on_next(self, word: str, ctx: Context[str, int]) -> None:
        ...         ctx.state += 1
        ...         ctx.emit(f"{word} {ctx.state}")
        >>> flow = Flow("words")
        >>> words = flow.source("words", TestingSource(items=[(1, "to"), (2, "be"), (3, "to")]), out=str)
        >>> counted = words.key_by(str, name="word").process("count", Count(), initial={"be": 10})
        >>> counted.sink("out", TestingSink("counts"))
        >>> sorted(run_flow(flow).tables["out"])
        [(1, 'to 1'), (2, 'be 11'), (3, 'to 2')]
        """
        where = f"flow {self._flow.name}, step {step!r}"
        kind = task_kind(where, task, out)
        operator = process_of(where, task, ttl, initial, order, keeps)
        return Stream(self._flow, self._flow.add_step(step, operator, self._input(Grouping.HASH), kind), kind)

    def distinct(self, step: str, *, ttl: timedelta, fields: Iterable[str] = ()) -> Stream[T]:
        """Of the records of a key that are alike, let the first pass and drop the others.

        This is `dropDuplicates` of Spark, with a bound on what is kept. Keyed by the field that its source is
        `partitioned_by`, it can run on the devices, and what reads it, too.

        Args:
            step: the id of the step.
            ttl: a record is dropped where one like it came less than so long before it, in event time. A
                dropped one counts as having come.
            fields: records of a key are alike where these fields are equal; without them, all are.

        Returns:
            The stream of the first records, as they are. A `partitioned_by` holds below it.

        Raises:
            FlowError: for a field that there is not, and a `ttl` that is not longer than nothing.

        >>> from datetime import timedelta
        >>> from geartrain import Flow, Record
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> class Reading(Record):
        ...     station: str
        ...     number: int
        >>> items = [(1, Reading("a", 1)), (2, Reading("a", 2)), (3, Reading("a", 1)), (4, Reading("b", 1))]
        >>> flow = Flow("pumps")
        >>> readings = flow.source("readings", TestingSource(items=items), out=Reading)
        >>> once = readings.key_by("station").distinct("once", ttl=timedelta(hours=1), fields=["number"])
        >>> once.sink("out", TestingSink("out"))
        >>> sorted((time, one.station, one.number) for time, one in run_flow(flow).tables["out"])
        [(1, 'a', 1), (2, 'a', 2), (4, 'b', 1)]
        """
        from geartrain.schema.derive import field_names, is_record_type
        from geartrain.tasks.duplicates import DropDuplicates

        names = field_names(self._out) if is_record_type(self._out) else ()
        wanted = [fields] if isinstance(fields, str) else list(fields)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            there = ", ".join(names) or "none"
            raise self.mistake(step, f"there is no field {unknown[0]!r}; its fields: {there}")
        task = DropDuplicates(fields=tuple(wanted), ttl_us=max(0, ttl // timedelta(microseconds=1)))
        return self.process(step, task, out=self._out, ttl=ttl, keeps=names)

    @property
    def keyed_by(self) -> Operator | None:
        """The operator that gave the records their keys."""
        return self._flow.keyed_by(self._step)

    def stateful(self, step: str, operator: Operator, out: Any) -> Stream[Any]:
        """Add a step that keeps state for each key; the verbs do it.

        Args:
            step: its id.
            operator: what it does.
            out: the type of its records.

        Returns:
            The stream of its records.
        """
        return Stream(self._flow, self._flow.add_step(step, operator, self._input(Grouping.HASH), out), out)

    def mistake(self, step: str, what: str) -> FlowError:
        """The error of a step of this flow that cannot be.

        Args:
            step: its id.
            what: the sentence.

        Returns:
            The error, to be raised.
        """
        return self._mistake(step, what)

    def window(self, window: Window) -> WindowedStream[K, T]:
        """Cut the stream into windows of event time. What is computed of each window is the next verb.

        Args:
            window: `tumbling(...)`, `sliding(...)`, `session(...)`, `global_window()`, or that of a calendar:
                `calendar_day(...)`, `calendar_week(...)`, `calendar_month(...)`.

        Returns:
            The windowed stream.

        Raises:
            FlowError: for what is no window.

        >>> from datetime import timedelta
        >>> from geartrain import Flow, Record, agg, tumbling
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> class Count(Record):
        ...     key: str
        ...     n: int
        >>> flow = Flow("words")
        >>> words = flow.source("words", TestingSource(items=[(1, "to"), (2, "be"), (3, "to")]), out=str)
        >>> minutes = words.key_by(str, name="word").window(tumbling(timedelta(minutes=1)))
        >>> minutes.aggregate("counts", out=Count, n=agg.count()).sink("out", TestingSink("out"))
        >>> sorted((count.key, count.n) for _, count in run_flow(flow).tables["out"])
        [('be', 1), ('to', 2)]
        """
        from geartrain.flow.windowed import WindowedStream

        return WindowedStream(self, window)

    def aggregate(self, step: str, /, *, out: type[U], **fields: AggregateSpec) -> Stream[U]:
        """For each record one result, of all records of its key so far, in canonical order.

        The fields of the result are filled by name: by the aggregates, and by the key (the field of `key_by`,
        or `key`).

        Args:
            step: the id of the step.
            out: the record type of the results.
            fields: an aggregate for each field: `n=agg.count()`.

        Returns:
            The stream of the results, at the event times of the records.

        Raises:
            FlowError: for a field that nobody fills or that `out` does not have, and for a type that does not
                fit.

        >>> from geartrain import Flow, Record, agg
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> class Seen(Record):
        ...     key: str
        ...     n: int
        >>> flow = Flow("words")
        >>> words = flow.source("words", TestingSource(items=[(1, "hot"), (2, "hot")]), out=str)
        >>> seen = words.key_by(str, name="same").aggregate("seen", out=Seen, n=agg.count())
        >>> seen.sink("out", TestingSink("seen"))
        >>> run_flow(flow).tables["out"]
        [(1, Seen(key='hot', n=1)), (2, Seen(key='hot', n=2))]
        """
        from geartrain.flow.windowed import aggregate

        return aggregate(self, step, out, fields, None, None)

    def reduce(self, step: str, function: Callable[[T, T], T]) -> Stream[T]:
        """For each record one result: the first record of its key, and from then on `function(so far,
        record)`.

        Args:
            step: the id of the step.
            function: makes one record of two.

        Returns:
            The stream of the results, of the same type.

        Raises:
            FlowError: for an id that is taken, or a type that cannot be a state.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("tides")
        >>> levels = flow.source("levels", TestingSource(items=[(1, 3), (2, 5), (3, 4)]), out=int)
        >>> levels.key_by(lambda level: 0, name="all").reduce("highest", max).sink("out", TestingSink("out"))
        >>> run_flow(flow).tables["out"]
        [(1, 3), (2, 5), (3, 5)]
        """
        from geartrain.flow.windowed import reduce

        return reduce(self, step, function)

    def fold(
        self,
        step: str,
        make: Callable[[], A],
        function: Callable[[A, T], A],
        *,
        result: Callable[[A], U] | None = None,
        out: type[U] | None = None,
        state: type[A] | None = None,
    ) -> Stream[U]:
        """For each record one result: the state after `function(state, record)`, or `result` of it.

        Args:
            step: the id of the step.
            make: makes the state that a key begins with.
            function: makes the next state of a state and a record.
            result: makes the result of a state; without it, the state is the result.
            out: the type of the results; what `result` is annotated to return, or the state's type, by
                default.
            state: the type of the state; the class that `make` is, or what it is annotated to return, by
                default.

        Returns:
            The stream of the results, at the event times of the records.

        Raises:
            FlowError: for a type that is missing or that cannot be a state.

        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("words")
        >>> words = flow.source("words", TestingSource(items=[(1, "to"), (2, "gether")]), out=str)
        >>> sizes = words.key_by(lambda word: 0, name="all").fold("size", int, lambda n, word: n + len(word))
        >>> sizes.sink("out", TestingSink("sizes"))
        >>> run_flow(flow).tables["out"]
        [(1, 2), (2, 8)]
        """
        from geartrain.flow.windowed import fold

        return fold(self, step, make, function, result, out, state, None)

    def join(
        self,
        step: str,
        right: KeyedStream[K, V],
        function: Callable[[T, V], U] | Callable[[T, V | None], U],
        *,
        within: Tumbling | Sliding | Global | Calendar | None = None,
        lower: timedelta | None = None,
        upper: timedelta | None = None,
        how: Literal["inner", "left"] = "inner",
        keeps: Iterable[str] = (),
        out: type[U] | None = None,
    ) -> Stream[U]:
        """Join two keyed streams: one result for every pair of records of one key that meet.

        Two records meet that lie in a window together (`within`), or where left.time + lower <= right.time <=
        left.time + upper. Give either the window or both bounds.

        Args:
            step: the id of the step.
            right: the other stream, keyed by the same kind of key.
            function: makes the result of a left and a right record.
            within: a tumbling, sliding, global or calendar window.
            lower: the earliest that a right record may be, relative to the left one; negative is before it.
            upper: the latest that it may be, itself included.
            how: `"inner"`, or `"left"`: a left record that meets nobody gives `function(left, None)`. That
                takes a tumbling or calendar window, or bounds.
            keeps: fields of both that `function` passes on unchanged; a `partitioned_by` on one of them,
                which is the key, holds below.
            out: the type of the results; what the function is annotated to return by default.

        Returns:
            The stream of the results. With bounds, a pair has the later event time of the two.

        Raises:
            FlowError: for a window and bounds, or for neither; for bounds of which the lower is after the
                upper; for a type that is missing.

        >>> from datetime import timedelta
        >>> from geartrain import Flow
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("doors")
        >>> opened = flow.source("opened", TestingSource(items=[(10, "a"), (50, "b")]), out=str)
        >>> closed = flow.source("closed", TestingSource(items=[(15, "a"), (90, "b")]), out=str)
        >>> def state(opened: str, closed: str | None) -> str:
        ...     return f"{opened} stood open" if closed is None else f"{opened} was closed"
        >>> left, right = opened.key_by(str, name="door"), closed.key_by(str, name="same_door")
        >>> soon = timedelta(microseconds=20)
        >>> states = left.join("state", right, state, lower=timedelta(), upper=soon, how="left")
        >>> states.sink("out", TestingSink("out"))
        >>> run_flow(flow).tables["out"]
        [(15, 'a was closed'), (70, 'b stood open')]
        """
        kind = self._result(step, function, out, of_iterable=False)
        operator = join_of(
            f"flow {self._flow.name}, step {step!r}", function, within, (lower, upper), how, keeps
        )
        inputs = (Input(self._step, Grouping.HASH), Input(right.step, Grouping.HASH))
        return Stream(self._flow, self._flow.add_step(step, operator, inputs, kind), kind)
