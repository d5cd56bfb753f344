"""process: a task with one state per key, called for each record in canonical order.

Guarantees the undo rule of the programming model: a call that raises leaves no trace but a dead letter.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from geartrain.batch import Batch
from geartrain.keys import decode_key
from geartrain.operators.children import Children
from geartrain.operators.conform import checker, dead_letter, describe
from geartrain.operators.operator import Services, Transform
from geartrain.runtime.state import KeyedState
from geartrain.task import Task

_IMMUTABLE = frozenset({bool, int, float, str, bytes, type(None)})


@dataclass(frozen=True)
class Process:
    """Run `task` on a keyed stream."""

    task: Task[Any, Any]
    kind = "process"
    stateful = True

    def open(self, services: Services) -> Transform:
        """A function from a keyed batch to the batch of what the task emitted."""
        task, check = self.task, checker(services)
        task.on_start()
        if task.state is not None:
            services.state.register(services.step, task.state)
        context = _TaskContext(services.step, services.state, task.state)
        restore = _copier(task.state)

        def run(batch: Batch) -> Batch:
            out = Children()
            for row, (value, key) in enumerate(zip(batch.values, batch.keys or (), strict=True)):
                context.begin(key, batch.times[row])
                before = restore(context.state)
                try:
                    task.on_next(value, context)
                except Exception as error:
                    context.state = before
                    context.emitted = []
                    services.reject(dead_letter(services, batch, row, describe(error)))
                out.add(batch, row, context.finish())
            return check(out.batch())

        return run

    def close(self) -> None:
        """Stop the task."""
        self.task.on_stop()

    def with_options(self, values: Mapping[str, Any], where: str) -> Process:
        """A copy whose task has other options."""
        return Process(self.task.with_options(values, where))


class _TaskContext:
    """The context of one opened task, moved from record to record."""

    def __init__(self, step: str, store: KeyedState, kind: Any) -> None:
        self._step, self._store, self._kind = step, store, kind
        self._key = b""
        self.event_time = 0
        self.state: Any = None
        self.emitted: list[Any] = []

    @property
    def key(self) -> Any:
        """The key as `key_by` gave it."""
        return decode_key(self._key)

    def emit(self, value: Any) -> None:
        self.emitted.append(value)

    def begin(self, key: bytes, time: int) -> None:
        """Stand at the next record: load its key's state."""
        self._key, self.event_time = key, time
        if self._kind is not None:
            self.state = self._store.get(self._step, key, self._kind)

    def finish(self) -> list[Any]:
        """Save the state and hand over what was emitted."""
        if self._kind is not None:
            self._store.put(self._step, self._key, self.state)
        emitted, self.emitted = self.emitted, []
        return emitted


def _copier(kind: Any) -> Callable[[Any], Any]:
    """How to keep a state as it was before a call: by reference, by a flat copy, or through msgpack."""
    if kind is None or kind in _IMMUTABLE:
        return lambda state: state
    fields: Mapping[str, Any] = {}
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        fields = typing.get_type_hints(kind)
    parts = {t for hint in fields.values() for t in (typing.get_args(hint) or (hint,))}
    if fields and parts <= _IMMUTABLE:
        return copy.copy
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
    return lambda state: decode(encode(state))
