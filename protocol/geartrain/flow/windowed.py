"""The windowed stream of the fluent face, and the verbs that compute one thing of many records.

Stands beside `geartrain.flow.keyed`. Guarantees: a window, an aggregate or a type that does not fit is a
`FlowError` of one sentence when the flow is built.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from geartrain.accumulating.contents import kept_type, settler
from geartrain.accumulating.filling import Filling, key_fields
from geartrain.accumulating.parts import Parts
from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import (
    Early,
    EveryRecords,
    EveryTime,
    Global,
    Session,
    Sliding,
    Tumbling,
    Window,
)
from geartrain.errors import FlowError, SchemaError
from geartrain.flow.keyed import KeyedStream
from geartrain.flow.step_types import check_fields, key_type
from geartrain.flow.stream import Stream
from geartrain.flow.verbs import check_zone
from geartrain.graph.operator import Operator
from geartrain.operators.aggregate import Aggregate, WindowAggregate
from geartrain.operators.fold import Fold, WindowFold
from geartrain.operators.key_by import KeyBy
from geartrain.operators.reduce import Reduce, WindowReduce
from geartrain.schema import derive
from geartrain.state.state_type import StateType

K = TypeVar("K")
T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")


class WindowedStream(Generic[K, T]):
    """A keyed stream cut into windows of event time; `KeyedStream.window` makes it.

    Args:
        stream: the keyed stream.
        window: the window.

    Raises:
        FlowError: for what is no window.
    """

    def __init__(self, stream: KeyedStream[K, T], window: Window) -> None:
        if not isinstance(window, Tumbling | Sliding | Session | Global | Calendar):
            raise FlowError(
                f"{stream.step!r}: window({window!r}) must be given tumbling(...), sliding(...), "
                "session(...), global_window(), calendar_day(...), calendar_week(...) or calendar_month(...)"
            )
        if isinstance(window, Calendar):
            check_zone(f"{stream.step!r}", window)
        self._stream, self._window = stream, window

    def aggregate(
        self, step: str, /, *, out: type[U], early: Early | None = None, **fields: AggregateSpec
    ) -> Stream[U]:
        """One result for each key and window that has records, once the watermark has passed the window's
        end.

        Aggregates fill the fields of the result by name. So does the key, which fills the field of `key_by`,
        or `key`. The window fills `window_start` and `window_end` (datetime, or int of microseconds), and
        `revision`. Its event time is the window's last microsecond.

        Where a key is on many devices, each of them adds up its own records and the cloud merges. The result
        is the same to the last bit. Sessions and early results are not split so.

        Args:
            step: the id of the step.
            out: the record type of the results.
            early: gives results before the end of a window, too, numbered by their `revision`:
                `every_records(...)` or `every_time(...)`.
            fields: an aggregate for each field: `n=agg.count()`.

        Returns:
            The stream of the results.

        Raises:
            FlowError: for a field that nobody fills or that `out` does not have, and for a type that does not
                fit.

        >>> from datetime import timedelta
        >>> from geartrain import Flow, Record, agg, tumbling
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> class Reading(Record):
        ...     sensor: str
        ...     celsius: float
        >>> class Minute(Record):
        ...     sensor: str
        ...     window_end: int
        ...     n: int
        ...     high: float
        >>> items = [(1, Reading("a", 20.0)), (2, Reading("a", 21.5)), (60_000_000, Reading("a", 19.0))]
        >>> flow = Flow("heat")
        >>> readings = flow.source("readings", TestingSource(items=items), out=Reading)
        >>> windows = readings.key_by("sensor").window(tumbling(timedelta(minutes=1)))
        >>> minutes = windows.aggregate("minutes", out=Minute, n=agg.count(), high=agg.max("celsius"))
        >>> minutes.sink("out", TestingSink("minutes"))
        >>> for _, minute in run_flow(flow).tables["out"]:
        ...     print(minute)
        Minute(sensor='a', window_end=60000000, n=2, high=21.5)
        Minute(sensor='a', window_end=120000000, n=1, high=19.0)
        """
        return aggregate(self._stream, step, out, fields, self._window, early)

    def reduce(self, step: str, function: Callable[[T, T], T]) -> Stream[T]:
        """One record for each key and window: the first, and then `function(so far, record)` in canonical
        order.

        Args:
            step: the id of the step.
            function: makes one record of two.

        Returns:
            The stream of the results, of the same type.

        Raises:
            FlowError: for an id that is taken, or a type that cannot be a state.

        >>> from geartrain import Flow, global_window
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> def joined(left: str, right: str) -> str:
        ...     return left + right
        >>> flow = Flow("words")
        >>> words = flow.source("words", TestingSource(items=[(1, "to"), (2, "gether")]), out=str)
        >>> keyed = words.key_by(lambda word: 0, name="all")
        >>> keyed.window(global_window()).reduce("join", joined).sink("out", TestingSink("joined"))
        >>> [word for _, word in run_flow(flow).tables["out"]]
        ['together']
        """
        kind = self._stream.kind
        return self._stream.stateful(step, WindowReduce(self._window, function), kind)

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
        """One result for each key and window, of a state that takes its records in canonical order.

        Args:
            step: the id of the step.
            make: makes the state that a window begins with.
            function: makes the next state of a state and a record.
            result: makes the result of the last state; without it, the state is the result.
            out: the type of the results; what `result` is annotated to return, or the state's type, by
                default.
            state: the type of the state; the class that `make` is, or what it is annotated to return, by
                default.

        Returns:
            The stream of the results.

        Raises:
            FlowError: for a type that is missing or that cannot be a state.

        >>> from geartrain import Flow, global_window
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> flow = Flow("words")
        >>> words = flow.source("words", TestingSource(items=[(1, "to"), (2, "gether")]), out=str)
        >>> windows = words.key_by(lambda word: 0, name="all").window(global_window())
        >>> windows.fold("letters", int, lambda n, word: n + len(word)).sink("out", TestingSink("sizes"))
        >>> [size for _, size in run_flow(flow).tables["out"]]
        [8]
        """
        return fold(self._stream, step, make, function, result, out, state, self._window)


def aggregate(
    stream: KeyedStream[Any, Any],
    step: str,
    out: type[U],
    fields: Mapping[str, AggregateSpec],
    window: Window | None,
    early: Early | None,
) -> Stream[U]:
    """Add a checked aggregate, with or without a window; raises `FlowError`."""
    for name, spec in fields.items():
        if not isinstance(spec, AggregateSpec):
            raise stream.mistake(
                step, f"{name}={spec!r} must be an aggregate, such as agg.count() or agg.sum('x')"
            )
    if early is not None and not isinstance(early, EveryRecords | EveryTime):
        raise stream.mistake(step, f"early={early!r} must be every_records(n) or every_time(timedelta)")
    keyed_by = stream.keyed_by
    key_field = keyed_by.field if isinstance(keyed_by, KeyBy) else None
    try:
        keys = key_fields(out, key_field, fields)
        Filling(out, list(fields), keys, window)
        results = Parts(fields, stream.kind, settler(step)).result_types
        makers = {name: (f"the aggregate {name!r} gives", kind) for name, kind in results.items()}
        makers |= {
            name: ("the key is", key_type(keyed_by, stream.kind)) for name, index in keys if index is None
        }
        check_fields(out, makers)
    except (FlowError, SchemaError) as error:
        raise stream.mistake(step, str(error)) from None
    operator: Operator = Aggregate(dict(fields), keys)
    if window is not None:
        operator = WindowAggregate(window, dict(fields), keys, early)
    return stream.stateful(step, operator, out)


def reduce(stream: KeyedStream[Any, T], step: str, function: Callable[[T, T], T]) -> Stream[T]:
    """Add a reduce without a window."""
    return stream.stateful(step, Reduce(function), stream.kind)


def fold(
    stream: KeyedStream[Any, Any],
    step: str,
    make: Callable[[], Any],
    function: Callable[[Any, Any], Any],
    result: Callable[[Any], U] | None,
    out: type[U] | None,
    state: Any,
    window: Window | None,
) -> Stream[U]:
    """Add a checked fold, with or without a window; raises `FlowError`."""
    if not callable(make):
        raise stream.mistake(step, f"make={make!r} must be a function, such as int, which makes a 0")
    held = state or (make if isinstance(make, type) else _returned(make))
    if held is None:
        raise stream.mistake(step, "what type is the state? annotate what make returns, or pass state=...")
    kind = out or (held if result is None else _returned(result))
    if kind is None:
        raise stream.mistake(step, "what type comes out? annotate what result returns, or pass out=...")
    try:
        StateType(step, kept_type(held))
        derive(kind)
    except SchemaError as error:
        raise stream.mistake(step, str(error)) from None
    operator: Operator = Fold(make, function, result, held)
    if window is not None:
        operator = WindowFold(window, make, function, result, held)
    return stream.stateful(step, operator, kind)


def _returned(function: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
