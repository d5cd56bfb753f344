"""The calls of a task with timers or a time to live: what a key keeps beside its state, and when it fires.

The timer rule: timers of a key up to the time of a record fire, in order of time, before the record is seen.
Those up to a watermark fire when it comes. So what a task sees does not depend on how records are batched.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from geartrain.declarations.task import Task
from geartrain.errors import USER_ERRORS, StepError
from geartrain.graph.conform import describe, raised_letter, raw_form
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch, DeadLetter, Origin, child_path
from geartrain.records.children import Children
from geartrain.records.codes import code_of
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import decode_key, encode_key
from geartrain.state.keyed import NEVER
from geartrain.state.state_type import StateType
from geartrain.tasks.task_calls import fresh_states
from geartrain.tasks.task_context import TaskContext

TIMERS_MAX = 1_000_000
"""Timers of one key that may fire at one go, and that may be pending."""


@lru_cache(maxsize=256)  # a fragment is opened for each micro-batch
def cell_type(state: Any) -> Any:
    """What a key keeps, for states of the Python type `state` (None: the task keeps none).

    timers: pending times, latest first, each once; touched: the time of the last call that did not raise;
    placed: how many places in order the key's timers took at the event time `placed_time`.
    """
    kept = ("state", type(None), None)
    if state is not None:
        kept = ("state", state, msgspec.field(default_factory=state))
    return msgspec.defstruct(
        "TaskCell",
        [
            kept,
            ("timers", list[int], msgspec.field(default_factory=list)),
            ("touched", int | None, None),
            ("placed_time", int | None, None),
            ("placed", int, 0),
        ],
        namespace={"UNTRUSTED": ("state",)},
        array_like=True,
    )


class TimedCalls(TaskContext):
    """The context of one opened task, moved from call to call, and the two ways to run a batch."""

    def __init__(
        self,
        task: Task[Any, Any],
        services: Services,
        initial: Mapping[Any, Any] | None,
        ttl_us: int | None,
        *,
        arrival: bool,
    ) -> None:
        super().__init__(task, services)
        self._ttl_us, self._arrival = ttl_us, arrival
        self._stateless = task.state is None and not arrival
        self._notifies = type(task).on_notify is not Task.on_notify
        if task.state is not None:
            StateType(services.step, task.state)  # refuses what cannot be a state, by its own name
        self._fresh = fresh_states(services.step, task.state, initial)
        self._kind = cell_type(task.state)
        self._store = services.state.of_step(services.step, self._kind)
        self._key = b""
        self._cell: Any = None
        self._emitted: list[Any] = []
        self.event_time = 0
        self.state: Any = None

    @property
    def key(self) -> Any:
        """The key as `key_by` gave it."""
        return decode_key(self._key)

    def emit(self, value: Any) -> None:
        """Keep a record until the call has returned."""
        self._emitted.append(value)

    def notify_at(self, time: int) -> None:
        """Set a timer of the key at hand."""
        name = type(self._task).__name__
        if not self._notifies:
            raise RuntimeError(f"{name} sets a timer, but defines no on_notify(time, ctx) that it could call")
        if type(time) is not int:
            raise TypeError(f"notify_at takes microseconds since 1970 as an int, not {type(time).__name__}")
        if time > END_OF_TIME:
            raise ValueError(f"notify_at({time}) is beyond the end of time, {END_OF_TIME}")
        timers, time = self._cell.timers, max(time, self.event_time)
        if time in (timers if len(timers) < 8 else _at(timers, time)):
            return
        if len(timers) >= TIMERS_MAX:
            raise RuntimeError(f"{name} has {TIMERS_MAX} timers pending for one key: set fewer")
        insort(timers, time, key=int.__neg__)

    def straight(self, batch: Batch, out: Children) -> None:
        """Run all records and save the states once; raises what the task raises."""
        for row, key in enumerate(batch.keys or []):
            self._fire(key, batch.times[row], out)
            out.add(batch, row, self._next(key, batch, row))
        self._store.save()

    def one_by_one(self, batch: Batch, out: Children) -> None:
        """Run call by call; one that raises, or whose state cannot be saved, is a dead letter."""
        for row, key in enumerate(batch.keys or []):
            self._fire_singly(key, batch.times[row], out)
            try:
                emitted = self._next(key, batch, row)
                self._store.save()
            except USER_ERRORS as error:
                self.undo()
                self._services.reject(raised_letter(self._services, batch, row, error))
            else:
                out.add(batch, row, emitted)

    def wake_straight(self, watermark: int, out: Children) -> None:
        """Fire what is due and save the states once; raises what the task raises."""
        for key in self._store.due(watermark):
            self._fire(key, watermark, out)
            self._forget(key, watermark)
        self._store.save()

    def wake_one_by_one(self, watermark: int, out: Children) -> None:
        """Fire what is due, call by call."""
        for key in self._store.due(watermark):
            self._fire_singly(key, watermark, out)
            self._forget(key, watermark)
            self._store.save()

    def undo(self) -> None:
        """Forget what the calls since the last save changed and emitted."""
        self._emitted = []
        self._store.roll_back()

    def _fire(self, key: bytes, limit: int, out: Children) -> None:
        """Fire all timers of a key up to `limit`."""
        fired = 0
        while (cell := self._due(key, limit)) is not None:
            fired = self._counted(fired, key)
            self._notify(key, cell, out)

    def _fire_singly(self, key: bytes, limit: int, out: Children) -> None:
        """The same, each call saved or undone by itself."""
        fired = 0
        while (cell := self._due(key, limit)) is not None:
            fired = self._counted(fired, key)
            time = cell.timers[-1]
            emitted = Children()
            try:
                self._notify(key, cell, emitted)
                self._store.save()
            except USER_ERRORS as error:
                self.undo()
                self._bury(key, time, error)
            else:
                out.extend(emitted)

    def _due(self, key: bytes, limit: int) -> Any:
        """The cell of a key whose first timer is at or before `limit`, None where none is."""
        cell = self._store.find(key)
        if cell is None or not cell.timers or cell.timers[-1] > limit:
            return None
        return None if self._expired(cell, cell.timers[-1]) else cell

    def _counted(self, fired: int, key: bytes) -> int:
        if fired >= TIMERS_MAX:
            raise StepError(
                f"step {self._services.step!r}: more than {TIMERS_MAX} timers fired for the key "
                f"{escaped_key(key)} at one go: does on_notify set one each time it is called?"
            )
        return fired + 1

    def _notify(self, key: bytes, cell: Any, out: Children) -> None:
        time = cell.timers.pop()
        self._begin(key, cell, time)
        self._task.on_notify(time, self)
        emitted, self._emitted = self._emitted, []
        at = min(time, END_OF_TIME - 1)
        for value in emitted:
            out.add_result(value, at, self._services.step, key + child_path(b"", self._place(cell, at)))
        self._end(key, cell, time)

    def _bury(self, key: bytes, time: int, error: BaseException) -> None:
        """The timer is gone, and its dead letter takes one place."""
        cell, at, step = self._store.get(key), min(time, END_OF_TIME - 1), self._services.step
        cell.timers.pop()
        path = key + encode_key((time,)) + child_path(b"", self._place(cell, at))
        self._keep(key, cell)
        self._store.save()
        raw = raw_form({"timer": time, "key": decode_key(key)})
        origin, code = Origin(step, 0, path), code_of(error)
        self._services.reject(DeadLetter(step, origin, at, code, describe(error), raw))

    def _next(self, key: bytes, batch: Batch, row: int) -> list[Any]:
        time = batch.times[row]
        cell = self._store.find(key)
        if cell is None:
            cell = self._kind(self._fresh(key))
        elif self._expired(cell, time):
            self._store.check(key)
            cell.state, cell.timers = self._fresh(key), []
        self._begin(key, cell, time)
        self._task.on_next(batch.values[row], self)
        self._end(key, cell, time)
        emitted, self._emitted = self._emitted, []
        return emitted

    def _begin(self, key: bytes, cell: Any, time: int) -> None:
        self._key, self._cell, self.event_time, self.state = key, cell, time, cell.state

    def _end(self, key: bytes, cell: Any, time: int) -> None:
        cell.state = self.state
        cell.touched = time if cell.touched is None else max(cell.touched, time)
        self._keep(key, cell)

    def _place(self, cell: Any, time: int) -> int:
        """The next place of a key's results of timers at the event time `time`."""
        if cell.placed_time is None or (time > cell.placed_time and not self._arrival):
            cell.placed_time, cell.placed = time, 0
        cell.placed += 1
        return int(cell.placed) - 1

    def _keep(self, key: bytes, cell: Any) -> None:
        if self._empty(cell) and cell.placed_time is None:
            if self._store.find(key) is not None:
                self._store.drop(key)
            return
        due = due_at(cell, self._ttl_us, stateless=self._stateless)
        self._store.put(key, cell, None if due == NEVER else due)

    def _empty(self, cell: Any) -> bool:
        """Whether only the places taken are worth keeping, and those until the watermark has passed them."""
        return self._stateless and not cell.timers

    def _expired(self, cell: Any, time: int) -> bool:
        return self._ttl_us is not None and time >= _expiry(cell, self._ttl_us)

    def _forget(self, key: bytes, watermark: int) -> None:
        """Drop the cell of a key that is of no use to records from the watermark on."""
        cell = self._store.find(key)
        if cell is None:
            return
        done = self._empty(cell) and (cell.placed_time is None or cell.placed_time < watermark)
        if done or self._expired(cell, watermark):
            self._store.check(key)
            self._store.drop(key)


def due_at(cell: Any, ttl_us: int | None, *, stateless: bool) -> int:
    """When a cell is due, microseconds; `NEVER` where it is not.

    ttl_us: of the step; stateless: the task keeps no state, so that of a key without timers only the places
    taken are kept, until the watermark has passed them.
    """
    if stateless and not cell.timers and cell.placed_time is not None:
        return int(cell.placed_time) + 1
    return min(cell.timers[-1] if cell.timers else NEVER, _expiry(cell, ttl_us))


def _expiry(cell: Any, ttl_us: int | None) -> int:
    if ttl_us is None or cell.touched is None:
        return NEVER
    return min(int(cell.touched) + ttl_us, NEVER)


def _at(timers: list[int], time: int) -> list[int]:
    """The pending timer at `time`, found by halving."""
    low, high = 0, len(timers)
    while low < high:
        middle = (low + high) // 2
        if timers[middle] > time:
            low = middle + 1
        else:
            high = middle
    return timers[low : low + 1]


def escaped_key(key: bytes) -> str:
    """A key for people, without control characters."""
    return ascii(decode_key(key))[:200]
