"""What every context of a task gives, whichever call it is for: the log, counters, refusals.

Guarantees that a task which does not say otherwise cannot read the clock or random numbers, and that calls
without a key cannot touch keyed state.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

from geartrain.declarations.task import Context, Task
from geartrain.graph.operator import Services
from geartrain.printable import TEXT_CHARS_MAX, printable
from geartrain.records.children import Children
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key

_NAMES_MAX = 100
_PLAIN_NAME_CHARS_MAX = 64


class StepMetrics:
    """Counters of one step, kept with those of the fragment as `<step>.<name>`."""

    def __init__(self, services: Services) -> None:
        self._counters, self._step = services.counters, services.step
        self._names: set[str] = set()

    def add(self, name: str, count: int = 1) -> None:
        """Raise a counter; raises `ValueError` for a name that is not plain or one too many."""
        if name not in self._names:
            if not name.isidentifier() or len(name) > _PLAIN_NAME_CHARS_MAX or len(self._names) >= _NAMES_MAX:
                raise ValueError(f"counter {name!r}: use at most {_NAMES_MAX} names of letters, digits and _")
            self._names.add(name)
        full = f"{self._step}.{name}"
        self._counters[full] = self._counters.get(full, 0) + count


class TaskContext:
    """What all calls of a task share."""

    def __init__(self, task: Task[Any, Any], services: Services) -> None:
        self._task, self._services = task, services
        self._logger = logging.getLogger(f"geartrain.task.{services.step}")
        self.metrics = StepMetrics(services)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Only called for what a context lacks."""
            there = ", ".join(one for one in dir(Context) if not one.startswith("_"))
            raise AttributeError(f"a context has no {name}; it has state, {there}")

    def log(self, text: str) -> None:
        """Write a line to the program's log."""
        self._logger.info("%s: %s", self._services.step, printable(str(text), TEXT_CHARS_MAX))

    def now_us(self) -> int:
        """The wall clock, microseconds."""
        clock = self._services.clock
        if self._task.replayable or clock is None:
            self._refuse("the clock", lent=clock is not None)
        return clock.now_us()

    def random(self) -> float:
        """A float in [0, 1]."""
        randomness = self._services.randomness
        if self._task.replayable or randomness is None:
            self._refuse("random numbers", lent=randomness is not None)
        return randomness.uniform(0.0, 1.0)

    def _refuse(self, what: str, *, lent: bool) -> NoReturn:
        name = type(self._task).__name__
        if self._task.replayable:
            raise RuntimeError(
                f"a task that reads {what} gives other results each time: "
                f"write replayable: ClassVar[bool] = False in {name}"
            )
        raise RuntimeError(f"{name} asks for {what}, which this runtime does not lend")


class KeylessContext(TaskContext):
    """The context of on_start, on_watermark and on_stop, which belong to no key."""

    def __init__(self, task: Task[Any, Any], services: Services) -> None:
        super().__init__(task, services)
        self._out: Children | None = None
        self._count = 0
        self.event_time = 0

    def begin(self, watermark: int, out: Children) -> None:
        """A call of on_watermark begins; `out` takes what it emits, if it may."""
        self._out, self.event_time, self._count = out, watermark, 0

    def end(self) -> None:
        """The call is over."""
        self._out = None

    def emit(self, value: Any) -> None:
        """Send a record on, from the on_watermark of a task that is not replayable."""
        if self._out is None:
            raise RuntimeError("on_start and on_stop cannot emit: no record and no watermark gives a time")
        if self._task.replayable:
            raise RuntimeError(
                "on_watermark may not emit, since how often it runs depends on batching: set a timer with "
                f"notify_at, or write replayable: ClassVar[bool] = False in {type(self._task).__name__}"
            )
        time = min(self.event_time, END_OF_TIME - 1)
        self._out.add_result(value, time, self._services.step, encode_key((self.event_time, self._count)))
        self._count += 1

    @property
    def key(self) -> Any:
        """There is none."""
        return self._no_key("key")

    @property
    def state(self) -> Any:
        """There is none."""
        return self._no_key("state")

    @state.setter
    def state(self, value: Any) -> None:
        self._no_key("state")

    def notify_at(self, time: int) -> None:
        """There is no key to notify."""
        self._no_key("timer")

    def _no_key(self, what: str) -> NoReturn:
        raise RuntimeError(f"on_start, on_watermark and on_stop belong to no key, so there is no {what}")
