"""process: a task with one state per key, called for each record in canonical order, and for its timers.

Guarantees the undo rule of the programming model: a call that raises leaves no trace but a dead letter. A
batch is first run straight through. Only when a call raises, or a state cannot be saved, is it rolled back
and run again, each call saved by itself. So undoing costs nothing while all goes well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from geartrain.declarations.options import check_options
from geartrain.declarations.task import Task
from geartrain.errors import USER_ERRORS, QuestionError, StepError
from geartrain.graph.conform import checker, describe
from geartrain.graph.graph import Graph
from geartrain.graph.operator import Keyed, Running, Services, StreamProperties
from geartrain.records.batch import Batch
from geartrain.records.children import Children
from geartrain.state.told import ROWS_MAX, Told, opened
from geartrain.tasks.migration import form_of, migrated
from geartrain.tasks.task_calls import PlainCalls
from geartrain.tasks.task_context import KeylessContext
from geartrain.tasks.timed_calls import TimedCalls, cell_type


class Process(Keyed, frozen=True):
    """Run `task` on a keyed stream.

    ttl_us: how long the state of a key outlives its last call, in event time, None for ever; initial: states
    of keys before their first call; order: `"arrival"` gives the task its records as they come, which makes
    the step not replayable; keeps: fields that each record it emits has as the record or key that it was
    called for, so that a partition domain on one of them is kept.
    """

    task: Task[Any, Any]
    ttl_us: int | None = None
    initial: Mapping[Any, Any] | None = None
    order: Literal["canonical", "arrival"] = "canonical"
    keeps: frozenset[str] = frozenset()
    kind = "process"

    def __post_init__(self) -> None:
        check_options(self.task)

    def __hash__(self) -> int:  # a mapping has none
        return hash((self.task, self.ttl_us, self.order, self.keeps))

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Its records come in no order; a domain that is among `keeps` is kept."""
        above = inputs[0]
        domain = above.domain if above.domain in self.keeps else None
        return StreamProperties(domain, False, timely=above.timely)

    @property
    def ordered(self) -> bool:
        """Unless it takes its records as they come."""
        return self.order == "canonical"

    @property
    def replayable(self) -> bool:
        """If its task is, and its records come in one order."""
        return self.order == "canonical" and self.task.replayable

    @property
    def timed(self) -> bool:
        """Whether its keys have more to keep than a state: timers, or when they were last touched."""
        return self.ttl_us is not None or type(self.task).on_notify is not Task.on_notify

    @property
    def form(self) -> str:
        """What stands for the layout of its saved cells; "" where it keeps none."""
        return form_of(self.task.state, timed=self.timed)

    @property
    def due_form(self) -> str:
        """The same with the time to live by which they are due, where it has one."""
        return form_of(self.task.state, timed=self.timed, ttl_us=self.ttl_us)

    def migrated(self, step: str, form: str, cell: bytes) -> bytes:
        """A saved cell of the step, of the former layout that `form` stands for, as its task keeps it, due by
        its time to live; raises `SchemaError`.
        """
        arrival = self.order == "arrival"
        return migrated(step, self.task, form, cell, timed=self.timed, ttl_us=self.ttl_us, arrival=arrival)

    def open(self, services: Services) -> Running:
        """The task at work."""
        calls: Calls
        if self.timed:
            calls = TimedCalls(
                self.task, services, self.initial, self.ttl_us, arrival=self.order == "arrival"
            )
        else:
            calls = PlainCalls(self.task, services, self.initial)
        return Processing(self.task, services, calls)

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The task's state of the key, and its timers."""
        if not self.timed:
            if self.task.state is None:
                raise QuestionError(f"step {services.step!r}: its task keeps no state")
            return Told(opened(services.step, self.task.state, cell))
        kept = opened(services.step, cell_type(self.task.state), cell)
        forgets = None if self.ttl_us is None or kept.touched is None else kept.touched + self.ttl_us
        return Told(kept.state, timers=tuple(kept.timers[: -ROWS_MAX - 1 : -1]), forgets_us=forgets)

    def with_options(self, values: Mapping[str, Any], where: str) -> Process:
        """A copy whose task has other options."""
        return replace(self, task=self.task.with_options(values, where))


def forms_of(graph: Graph, steps: Iterable[str]) -> dict[str, str]:
    """By step, what stands for the layout of its cells, where that can change from revision to revision."""
    tasks = {step: graph[step].operator for step in sorted(steps)}
    return {step: task.form for step, task in tasks.items() if isinstance(task, Process) and task.form}


class Calls(Protocol):
    """The two ways to run a batch, or a watermark, through a task."""

    def straight(self, batch: Batch, out: Children) -> None:
        """Run all records and save the states once; raises what the task raises."""
        ...

    def one_by_one(self, batch: Batch, out: Children) -> None:
        """Run call by call; one that raises, or whose state cannot be saved, is a dead letter."""
        ...

    def wake_straight(self, watermark: int, out: Children) -> None:
        """Fire what is due and save the states once; raises what the task raises."""
        ...

    def wake_one_by_one(self, watermark: int, out: Children) -> None:
        """Fire what is due, call by call."""
        ...

    def undo(self) -> None:
        """Forget what the calls since the last save changed and emitted."""
        ...


class Processing:
    """A task at work: which way a batch is run, and the calls that belong to no key."""

    def __init__(self, task: Task[Any, Any], services: Services, calls: Calls) -> None:
        self._task, self._services, self._calls = task, services, calls
        self._check = checker(services)
        self._keyless = KeylessContext(task, services)
        self._watches = type(task).on_watermark is not Task.on_watermark
        with _Blame(services.step, task, "on_start"):
            task.on_start(self._keyless)

    def feed(self, batch: Batch, port: int) -> Batch:
        """Call the task for each record; returns what it emitted."""
        if self._task.replayable:
            out = Children()
            try:
                self._calls.straight(batch, out)
                return self._check(out.batch())
            except StepError:
                raise
            except USER_ERRORS:  # found again, call by call: the task is replayable
                self._calls.undo()
        out = Children()
        self._calls.one_by_one(batch, out)
        return self._check(out.batch())

    def advance(self, watermark: int) -> Batch:
        """Call the task for each timer that is due; returns what it emitted."""
        out = self._wake(watermark)
        if self._watches:
            self._keyless.begin(watermark, out)
            with _Blame(self._services.step, self._task, "on_watermark"):
                self._task.on_watermark(watermark, self._keyless)
            self._keyless.end()
        return self._check(out.batch())

    def _wake(self, watermark: int) -> Children:
        if self._task.replayable:
            out = Children()
            try:
                self._calls.wake_straight(watermark, out)
                return out
            except StepError:
                raise
            except USER_ERRORS:
                self._calls.undo()
        out = Children()
        self._calls.wake_one_by_one(watermark, out)
        return out

    def stop(self) -> None:
        """Stop the task."""
        with _Blame(self._services.step, self._task, "on_stop"):
            self._task.on_stop(self._keyless)


class _Blame:
    """Turns what a call without an input raises into a `StepError`: there is no record to blame."""

    def __init__(self, step: str, task: Task[Any, Any], call: str) -> None:
        self._where = f"step {step!r}: {type(task).__name__}.{call}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, USER_ERRORS) and not isinstance(error, StepError):
            raise StepError(
                f"{self._where} raised {describe(error)}: no record is to blame, mend it"
            ) from error
