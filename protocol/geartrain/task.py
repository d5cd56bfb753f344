"""Tasks: user code with a life cycle, one state per key, and a context to emit through.

What a `process` step runs, on a device and inside Spark alike. Guarantees: `on_next` sees the records of a
key in canonical order; a call that raises leaves no trace (its state changes and emits are undone, its input
becomes a dead letter).
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, TypeVar

from geartrain.options import Options

In = TypeVar("In")
Out = TypeVar("Out")
Emitted_contra = TypeVar("Emitted_contra", contravariant=True)
S = TypeVar("S")


class Context(Protocol[Emitted_contra, S]):
    """What a task may touch while it is called.

    state: the key's state, made by the task's `state` type on first use; assign or change it in place;
    event_time: of the record at hand, microseconds since 1970 UTC; key: of the record, as `key_by` gave it.
    """

    state: S

    @property
    def event_time(self) -> int:
        """Microseconds since 1970 UTC."""
        ...

    @property
    def key(self) -> Any:
        """As `key_by` gave it."""
        ...

    def emit(self, value: Emitted_contra) -> None:
        """Send a record on, with the event time of the record at hand."""
        ...


class Task(Options, Generic[In, Out]):
    """Base of a user's tasks; annotated attributes are options: `Drawdown(period="year")`.

    state: the type of a key's state (a `geartrain.State` or a dataclass with defaults, or a scalar type),
    None where the task keeps none.
    """

    state: ClassVar[Any] = None

    def on_start(self) -> None:
        """Called once when the task is opened in a process; it may neither emit nor touch state."""

    def on_next(self, value: In, ctx: Context[Out, Any]) -> None:
        """Called for every record, in canonical order for each key."""
        raise TypeError(f"{type(self).__name__} must define on_next(value, ctx)")

    def on_stop(self) -> None:
        """Called once when the process ends cleanly; it may neither emit nor touch state."""
