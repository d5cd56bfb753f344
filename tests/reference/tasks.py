"""The reference's tasks: for each key by itself, a walk over its records in canonical order and its timers.

There is no watermark here. A timer fires before the next record that is not earlier than it, and those that
are left fire at the end of time: whatever a watermark does in between must not show.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from geartrain import Task
from geartrain.graph.graph import Step
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from tests.reference.rows import Answer, Row, by_key, conform, normal, number

STATE_INT_MAX = 2**64 - 1
"""A state may hold what msgpack can, unsigned numbers of 64 bits among it."""


def process(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """What the task of a `process` step emits for all its keys."""
    rows: list[Row] = []
    for records in by_key(inputs[0]):
        rows += Walk(step, records[0].key, answer).over(records)
    return conform(step.id, step.out, rows, answer)


def stateless(operator: Any, row: Row) -> list[Row]:
    """What a task without a key emits for one record."""
    context = _Context(None, row.time, None, may_set_timers=False)
    operator.task.on_next(row.value, context)
    return [row.child(index, value) for index, value in enumerate(context.out)]


class _Context:
    """What a call may touch; its changes count only when the call returns."""

    def __init__(self, state: Any, time: int, key: Any, *, may_set_timers: bool) -> None:
        self.state, self.event_time, self.key, self._may = state, time, key, may_set_timers
        self.out: list[Any] = []
        self.timers: list[int] = []

    def emit(self, value: Any) -> None:
        self.out.append(value)

    def notify_at(self, time: int) -> None:
        if time > END_OF_TIME or not self._may:
            raise ValueError("after the end of time, or nobody to notify")
        self.timers.append(max(time, self.event_time))


class Walk:
    """One key's life."""

    def __init__(self, step: Step, key: Any, answer: Answer) -> None:
        operator: Any = step.operator
        self._step, self._key, self._answer, self._task = step, key, answer, operator.task
        self._path = encode_key(key)
        self._timed: bool = operator.timed
        self._ttl: int | None = operator.ttl_us
        given = getattr(operator, "initial", None) or {}
        self._initial = next((s for k, s in given.items() if encode_key(k) == self._path), None)
        self._fired: Counter[int] = Counter()
        self._rows: list[Row] = []
        self._forget()

    def _forget(self) -> None:
        self._is_kept = False
        self._touched: int | None = None
        self._timers: set[int] = set()
        self._state = copy.deepcopy(self._initial)
        if self._initial is None and self._task.state is not None:
            self._state = self._task.state()

    def over(self, records: list[Row], until: int = END_OF_TIME) -> list[Row]:
        """What these records make, and the timers up to a time."""
        self._rows = []
        for row in records:
            self._fire(row.time)
            self._expire(row.time)
            out = self._call(row.time, partial(self._task.on_next, row.value))
            if out is None:
                self._answer.refuse(self._step.id, row)
            else:
                self._rows += [row.child(i, value) for i, value in enumerate(out)]
        self._fire(until)
        self._expire(until)  # for that which runs then may have keys live longer
        return self._rows

    def go_on_as(self, operator: Any, answer: Answer) -> None:
        """Run under another revision, with dead letters in `answer`. Where the one before noted no times, a
        key is first touched by its next call.
        """
        self._answer = answer
        if not self._timed:
            self._touched = None
        if operator.task.state is not self._task.state:
            self._migrate(operator.task)
        self._task, self._ttl, self._timed = operator.task, operator.ttl_us, operator.timed

    def _migrate(self, task: Any) -> None:
        """Have the state be that of a task with another one; what cannot be made goes, with its timers."""
        self._task, state, kept = task, self._state, self._is_kept
        functions = dict(task.migrate)
        try:
            while type(state) in functions:
                state = functions.pop(type(state))(state)
            state = normal(task.state, state, STATE_INT_MAX)
        except Exception:
            kept = False
        if not kept:
            self._forget()
        else:
            self._state = state

    def _expire(self, time: int) -> bool:
        if self._ttl is None or self._touched is None or time < self._touched + self._ttl:
            return False
        self._forget()
        return True

    def _fire(self, limit: int) -> None:
        while self._timers and min(self._timers) <= limit:
            time = min(self._timers)
            if self._expire(time):
                return
            self._timers.remove(time)
            out = self._call(time, partial(self._task.on_notify, time))
            if out is None:
                self._answer.refuse(self._step.id, self._place(time, encode_key((time,)), None))
            else:
                self._rows += [self._place(time, b"", value) for value in out]

    def _place(self, timer: int, middle: bytes, value: Any) -> Row:
        time = min(timer, END_OF_TIME - 1)
        index = self._fired[time]
        self._fired[time] += 1
        return Row(time, self._step.id, 0, self._path + middle + number(index), value)

    def _call(self, time: int, run: Callable[[Any], None]) -> list[Any] | None:
        """What the call emits, None when it raises or leaves a state that cannot be saved."""
        may = getattr(type(self._task), "on_notify", None) is not getattr(Task, "on_notify", None)
        context = _Context(copy.deepcopy(self._state), time, self._key, may_set_timers=may)
        try:
            run(context)
            if self._task.state is not None:
                context.state = normal(self._task.state, context.state, STATE_INT_MAX)
        except Exception:
            return None
        self._state, self._touched, self._is_kept = context.state, time, True
        self._timers |= set(context.timers)
        return context.out
