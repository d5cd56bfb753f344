"""Tasks: user code with a life cycle, one state per key, timers, and a context to emit through.

What a `process` step runs, on a device and inside Spark alike. Guarantees: `on_next` sees the records of a
key in canonical order, and all timers of the key up to a record's time before it. A call that raises leaves
no trace (its state changes, timers and emits are undone, its input becomes a dead letter).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from geartrain.declarations.options import Options

In = TypeVar("In")
Out = TypeVar("Out")
Emitted_contra = TypeVar("Emitted_contra", contravariant=True)
S = TypeVar("S")


class Metrics(Protocol):
    """Counters of a task, for people: they count calls that are run again or undone too."""

    def add(self, name: str, count: int = 1) -> None:
        """Raise a counter of this step. Its first use makes it.

        Args:
            name: the counter, at most 100 of them a step.
            count: by how much.
        """
        ...


class Context(Protocol[Emitted_contra, S]):
    """What a task may touch while it is called.

    `state` is the key's state, made by the task's `state` type on first use; assign it, or change it in
    place. `on_start`, `on_watermark` and `on_stop` have no key: `key`, `state` and `notify_at` raise
    `RuntimeError` there. So does `emit`, except in the `on_watermark` of a task that is not replayable.
    """

    state: S

    @property
    def event_time(self) -> int:
        """The event time of the record at hand, or of the timer, microseconds since 1970 UTC."""
        ...

    @property
    def key(self) -> Any:
        """The key of the record or timer at hand, as `key_by` gave it."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Counters of this step."""
        ...

    def emit(self, value: Emitted_contra) -> None:
        """Send a record on, with the event time of the record or timer at hand.

        Args:
            value: the record.
        """
        ...

    def notify_at(self, time: int) -> None:
        """Have `on_notify(time)` called for this key once event time has come to `time`.

        A time in the past is taken as now. A time that is set already stays set once.

        Args:
            time: microseconds since 1970 UTC.

        Raises:
            ValueError: for a time beyond the end of time, 2200-01-01.
            TypeError: for what is no int.
            RuntimeError: for more than 1,000,000 timers of a key.
        """
        ...

    def log(self, text: str) -> None:
        """Write a line to the program's log; it has no effect on results.

        Args:
            text: the line; control characters are taken out.
        """
        ...

    def now_us(self) -> int:
        """The wall clock.

        Returns:
            Microseconds since 1970 UTC.

        Raises:
            RuntimeError: unless the task says `replayable = False`.
        """
        ...

    def random(self) -> float:
        """A random number.

        Returns:
            A float in [0, 1].

        Raises:
            RuntimeError: unless the task says `replayable = False`.
        """
        ...


class Task(Options, Generic[In, Out]):
    """Base of a user's tasks; annotated attributes are options: `Drawdown(period="year")`.

    state: the type of a key's state (a `geartrain.State` or a dataclass with defaults, or a scalar type),
    None where the task keeps none; migrate: by each former type of it, a function that makes a later one of
    such a state, for an app that is updated while it runs; replayable: the same records give the same
    results, whenever it runs. A task that says False may read the clock and random numbers, and is called
    once for each record.

    A doorbell that says so when nobody has rung for ten minutes:

    >>> from typing import ClassVar
    >>> from geartrain import Context, Flow, Task
    >>> from geartrain.testing import TestingSink, TestingSource, run_flow
    >>> class Quiet(Task[str, str]):
    ...     state: ClassVar[type[int]] = int
    ...
    ...     def on_next(self, value: str, ctx: Context[str, int]) -> None:
    ...         ctx.state = ctx.event_time + 600
    ...         ctx.notify_at(ctx.state)
    ...
    ...     def on_notify(self, time: int, ctx: Context[str, int]) -> None:
    ...         if time == ctx.state:
    ...             ctx.emit(f"{ctx.key} is quiet")
    >>> flow = Flow("bells")
    >>> rings = flow.source("rings", TestingSource(items=[(100, "front"), (500, "front")]), out=str)
    >>> rings.key_by(str, name="door").process("quiet", Quiet()).sink("out", TestingSink("out"))
    >>> run_flow(flow).tables["out"]
    [(1100, 'front is quiet')]
    """

    state: ClassVar[Any] = None
    migrate: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {}
    replayable: ClassVar[bool] = True

    def on_start(self, ctx: Context[Out, Any]) -> None:
        """Called when the task is opened in a process, as often as that may be.

        Args:
            ctx: without key and state.
        """

    def on_next(self, value: In, ctx: Context[Out, Any]) -> None:
        """Called for every record, in canonical order for each key.

        Args:
            value: the record.
            ctx: its key and state, and a way to emit.

        Raises:
            Exception: whatever it raises undoes the call, and the record becomes a dead letter with that
                reason.
        """
        raise TypeError(f"{type(self).__name__} must define on_next(value, ctx)")

    def on_watermark(self, time: int, ctx: Context[Out, Any]) -> None:
        """Called when the watermark moves, after the timers up to there. How often depends on how the records
        are batched.

        Args:
            time: no record below it will come any more, microseconds since 1970 UTC.
            ctx: without key and state.
        """

    def on_notify(self, time: int, ctx: Context[Out, Any]) -> None:
        """Called once for each time that was set with `ctx.notify_at`, in order of time for each key.

        Args:
            time: the time that was set, microseconds since 1970 UTC; what is emitted has it as its event
                time.
            ctx: the key and its state, and a way to emit.
        """
        raise TypeError(f"{type(self).__name__} must define on_notify(time, ctx)")

    def on_stop(self, ctx: Context[Out, Any]) -> None:
        """Called when the process ends cleanly.

        Args:
            ctx: without key and state.
        """


def task_output(task: Task[Any, Any]) -> Any:
    """The second type argument of the task's `Task[In, Out]`, None where it names none."""
    return task_types(task)[1]


def task_types(task: Task[Any, Any]) -> tuple[Any, Any]:
    """Both type arguments of the task's `Task[In, Out]`, None and None where it names no output."""
    for base in type(task).__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            arguments = typing.get_args(generic)
            if (
                typing.get_origin(generic) is Task
                and len(arguments) == 2
                and not isinstance(arguments[1], TypeVar)
            ):
                return arguments[0], arguments[1]
    return None, None
