"""process: a task with one state per key, called for each record in canonical order.

Guarantees the undo rule of the programming model: a call that raises leaves no trace but a dead letter. A
batch is
first run straight through; only when a call raises, or a state cannot be saved, is it rolled back and run
again record by record, each saved by itself, so that undoing costs nothing while all goes well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from geartrain.batch import Batch
from geartrain.keys import decode_key
from geartrain.operators.children import Children
from geartrain.operators.conform import checker, dead_letter, describe
from geartrain.operators.operator import Keyed, Services, Transform
from geartrain.runtime.state import StepState
from geartrain.task import Task


@dataclass(frozen=True)
class Process(Keyed):
    """Run `task` on a keyed stream."""

    task: Task[Any, Any]
    kind = "process"
    ordered = True

    def open(self, services: Services) -> Transform:
        """A function from a keyed batch to the batch of what the task emitted."""
        task, check = self.task, checker(services)
        task.on_start()
        store = None if task.state is None else services.state.of_step(services.step, task.state)
        calls = _Calls(task, store)

        def run(batch: Batch) -> Batch:
            try:
                return check(calls.straight(batch))
            except Exception:  # found again, record by record: a task is replayable
                calls.undo()
                return check(calls.one_by_one(batch, services))

        return run

    def close(self) -> None:
        """Stop the task."""
        self.task.on_stop()

    def with_options(self, values: Mapping[str, Any], where: str) -> Process:
        """A copy whose task has other options."""
        return Process(self.task.with_options(values, where))


class _Calls:
    """The context of one opened task, moved from record to record, and the two ways to run a batch."""

    def __init__(self, task: Task[Any, Any], store: StepState | None) -> None:
        self._task, self._store = task, store
        self._key = b""
        self._emitted: list[Any] = []
        self.event_time = 0
        self.state: Any = None

    @property
    def key(self) -> Any:
        """The key as `key_by` gave it."""
        return decode_key(self._key)

    def emit(self, value: Any) -> None:
        self._emitted.append(value)

    def straight(self, batch: Batch) -> Batch:
        """Run all records and save the states once; raises what the task raises."""
        out = Children()
        for row in range(len(batch)):
            out.add(batch, row, self._call(batch, row))
        self._save()
        return out.batch()

    def one_by_one(self, batch: Batch, services: Services) -> Batch:
        """Run record by record; one whose call raises, or whose state cannot be saved, is a dead letter."""
        out = Children()
        for row in range(len(batch)):
            try:
                emitted = self._call(batch, row)
                self._save()
            except Exception as error:
                self.undo()
                services.reject(dead_letter(services, batch, row, describe(error)))
            else:
                out.add(batch, row, emitted)
        return out.batch()

    def undo(self) -> None:
        """Forget what the calls since the last save changed and emitted."""
        self._emitted = []
        if self._store is not None:
            self._store.roll_back()

    def _call(self, batch: Batch, row: int) -> list[Any]:
        keys, store = batch.keys, self._store
        self._key = b"" if keys is None else keys[row]
        self.event_time = batch.times[row]
        if store is None:
            self._task.on_next(batch.values[row], self)
        else:
            self.state = store.get(self._key)
            self._task.on_next(batch.values[row], self)
            store.put(self._key, self.state)
        emitted, self._emitted = self._emitted, []
        return emitted

    def _save(self) -> None:
        if self._store is not None:
            self._store.save()
