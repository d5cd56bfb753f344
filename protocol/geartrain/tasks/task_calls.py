"""The calls of a task that has neither timers nor a time to live: one state a key, and the record at hand.

The fast way of a process step; `geartrain.tasks.timed_calls` is that of tasks with more to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from geartrain.declarations.task import Task
from geartrain.errors import USER_ERRORS, SchemaError
from geartrain.graph.conform import raised_letter
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch
from geartrain.records.children import Children
from geartrain.records.keys import decode_key, encode_key
from geartrain.state.keyed import StepState
from geartrain.state.state_columns import StateColumns
from geartrain.tasks.task_context import TaskContext


def initial_states(where: str, kind: Any, initial: Mapping[Any, Any] | None) -> dict[bytes, bytes]:
    """The saved form of states by encoded key; raises `SchemaError` for what cannot be a key or a state."""
    if initial is not None and kind is None:
        raise SchemaError(f"{where}: its task keeps no state, so there is none to begin with")
    found = {}
    for key, value in (initial or {}).items():
        try:
            raw = msgspec.msgpack.encode(value)
            msgspec.msgpack.decode(raw, type=kind)
            found[encode_key(key)] = raw
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, SchemaError) as error:
            raise SchemaError(f"{where}: the initial state of key {key!r}: {error}") from None
    return found


def fresh_states(step: str, kind: Any, initial: Mapping[Any, Any] | None) -> Callable[[bytes], Any]:
    """A function that makes the first state of an encoded key."""
    saved = initial_states(f"step {step!r}", kind, initial)
    if kind is None:
        return lambda key: None
    decode = msgspec.msgpack.Decoder(kind).decode
    return lambda key: kind() if (raw := saved.get(key)) is None else decode(raw)


class PlainCalls(TaskContext):
    """The context of one opened task, moved from record to record, and the two ways to run a batch."""

    def __init__(
        self, task: Task[Any, Any], services: Services, initial: Mapping[Any, Any] | None = None
    ) -> None:
        super().__init__(task, services)
        self._store: StepState | None = None
        if task.state is not None:
            self._store = services.state.of_step(services.step, task.state)
        self._fresh = fresh_states(services.step, task.state, initial)
        self._columns = StateColumns.of(task.state)
        self._key = b""
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
        """There is nothing to call."""
        name = type(self._task).__name__
        raise RuntimeError(f"{name} sets a timer, but defines no on_notify(time, ctx) that it could call")

    def straight(self, batch: Batch, out: Children) -> None:
        """Run all records and save the states once; raises what the task raises."""
        columns, store = self._columns, self._store
        if store is None or columns is None:
            self._checked(batch, out)
        elif not self._unchecked(batch, out, store, columns):
            # The first state that is not in its form, which may hide what the calls after it would see.
            self._columns = None
            self.undo()
            self._checked(batch, out)
        self._save()

    def _unchecked(self, batch: Batch, out: Children, store: StepState, columns: StateColumns) -> bool:
        """Run all records, and look at the states after each call in one go, at the end; False where one has
        not its declared form, and nothing is kept.
        """
        states: dict[bytes, Any] = {}
        put: list[Any] = []
        rows: list[tuple[Any, ...]] = []
        ends: list[int] = []
        emitted, on_next, fields = self._emitted, self._task.on_next, columns.fields
        for key, value, time in zip(batch.keys or [], batch.values, batch.times, strict=True):
            self._key, self.event_time = key, time
            state = states.get(key)
            if state is None and (state := store.find(key)) is None:
                state = self._fresh(key)
            self.state = state
            on_next(value, self)
            if self.state is not state:
                put.append(state := self.state)
            states[key] = state
            rows.append(fields(state))
            ends.append(len(emitted))
        if not columns.ready(put, rows):
            return False
        store.put_ready(states)
        out.add_all(batch, emitted, ends)
        self._emitted = []
        return True

    def _checked(self, batch: Batch, out: Children) -> None:
        """Run all records, and look at the state after each call."""
        keys, store, on_next = batch.keys, self._store, self._task.on_next
        for row, (value, time) in enumerate(zip(batch.values, batch.times, strict=True)):
            # As `_call`, without a call of its own: this is where most of a task's time beside its own goes.
            self._key = key = b"" if keys is None else keys[row]
            self.event_time = time
            if store is None:
                on_next(value, self)
            else:
                state = store.at_hand(key)
                if state is None and (state := store.find(key)) is None:
                    state = self._fresh(key)
                self.state = state
                on_next(value, self)
                store.put(key, self.state)
            if self._emitted:
                out.add(batch, row, self._emitted)
                self._emitted = []

    def one_by_one(self, batch: Batch, out: Children) -> None:
        """Run record by record; one whose call raises, or whose state cannot be saved, is a dead letter."""
        for row in range(len(batch)):
            try:
                emitted = self._call(batch, row)
                self._save()
            except USER_ERRORS as error:
                self.undo()
                self._services.reject(raised_letter(self._services, batch, row, error))
            else:
                out.add(batch, row, emitted)

    def wake_straight(self, watermark: int, out: Children) -> None:
        """No timer can be set."""

    def wake_one_by_one(self, watermark: int, out: Children) -> None:
        """No timer can be set."""

    def undo(self) -> None:
        """Forget what the calls since the last save changed and emitted."""
        self._emitted = []
        if self._store is not None:
            self._store.roll_back()

    def _call(self, batch: Batch, row: int) -> list[Any]:
        keys, store = batch.keys, self._store
        self._key = key = b"" if keys is None else keys[row]
        self.event_time = batch.times[row]
        if store is None:
            self._task.on_next(batch.values[row], self)
        else:
            state = store.find(key)
            self.state = self._fresh(key) if state is None else state
            self._task.on_next(batch.values[row], self)
            store.put(key, self.state)
        emitted, self._emitted = self._emitted, []
        return emitted

    def _save(self) -> None:
        if self._store is not None:
            self._store.save()
