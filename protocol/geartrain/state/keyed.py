"""Keyed state: one typed value per (step, key). It is loaded on first touch, and saved once for each batch
that touched it, with the event time at which it wants to be woken.

Stands under the stateful operators. Guarantees: a batch's changes are kept as a whole or rolled back as a
whole (those of lasting states are never rolled back, and encoded by `changes` alone). `changes` holds exactly
what was touched since it was last called. So a commit or a micro-batch writes what it touched and no more.
`due` names every cell whose time has come, in order of (time, key).

A saved cell begins with eight bytes: its due time as a big-endian signed number with the sign bit flipped. So
bytes sort as numbers; all ones are never. There follows the msgpack of its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any, Protocol

from geartrain.errors import SchemaError
from geartrain.state.state_type import REFUSALS, StateType

NEVER = 2**63 - 1
"""The due time of a cell that does not want to be woken."""
_SIGN = 1 << 63
_DUE_BYTES = 8


def due_of(cell: bytes) -> int:
    """The due time of a saved cell, microseconds; `NEVER` where it has none."""
    return int.from_bytes(cell[:8], "big") - _SIGN


def saved_cell(due: int, value: bytes) -> bytes:
    """The saved form of a cell that is due at `due`, microseconds, of the msgpack of its value."""
    return (due + _SIGN).to_bytes(8, "big") + value


class StateBackend(Protocol):
    """Where saved cells are loaded from."""

    def load(self, step: str, key: bytes) -> bytes | None:
        """The saved cell of (step, encoded key), None where there is none."""
        ...

    def due(self, step: str, watermark: int) -> Iterable[bytes]:
        """The keys of the saved cells of a step that are due at `watermark` (microseconds) or before; a key
        given once need not be given again.
        """
        ...

    def drop(self, step: str, key: bytes) -> None:
        """Forget the saved cell of (step, encoded key)."""
        ...


class Lasting(Protocol):
    """States of a step that are never rolled back, and encoded when somebody asks for what changed."""

    def encoded(self) -> Mapping[tuple[str, bytes], bytes | None]:
        """The cells that changed since the last call, None for one that was dropped; they stay in use, so
        that nobody will ask for them.
        """
        ...


class DictBackend:
    """A backend over a dictionary: the agent's image of its spool, and tests."""

    def __init__(self, saved: dict[tuple[str, bytes], bytes] | None = None) -> None:
        self.saved = {} if saved is None else saved
        self._due: dict[str, list[tuple[int, bytes]]] = {}
        for (step, key), cell in self.saved.items():
            if (due := due_of(cell)) != NEVER:
                self._due.setdefault(step, []).append((due, key))
        for heap in self._due.values():
            heapify(heap)

    def load(self, step: str, key: bytes) -> bytes | None:
        """The saved cell of (step, encoded key)."""
        return self.saved.get((step, key))

    def due(self, step: str, watermark: int) -> list[bytes]:
        """The keys that are due and were not given before."""
        heap, found = self._due.get(step, []), []
        while heap and heap[0][0] <= watermark:
            found.append(heappop(heap)[1])
        return found

    def drop(self, step: str, key: bytes) -> None:
        """Forget a cell."""
        self.saved.pop((step, key), None)


class KeyedState:
    """The state of all keyed steps of a fragment."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._saved: dict[tuple[str, bytes], bytes] = {}
        self._unread: set[tuple[str, bytes]] = set()
        self._lasting: list[Lasting] = []
        self._types: dict[str, StateType] = {}
        self._loaded: dict[str, list[tuple[int, bytes]]] = {}

    def of_step(self, step: str, kind: Any, *, own: bool = False, lasting: bool = False) -> StepState:
        """The states of one step, of the Python type `kind`; raises `SchemaError` when it cannot be a
        state.

        own: the states are an operator's own, which always have their declared form, not a user's; lasting:
        they are never rolled back either, so that they need no saved form before `changes`.
        """
        state = StepState(self, step, self.typed(step, kind, own=own), lasting=lasting)
        if lasting:
            self.holds(state)
        return state

    def typed(self, step: str, kind: Any, *, own: bool = False) -> StateType:
        """How the cells of a step are read, of the Python type `kind`; raises `SchemaError` as `of_step`."""
        self._types[step] = found = StateType(step, kind, own=own)
        return found

    def check(self, step: str, cell: bytes) -> None:
        """Raise `SchemaError` for a saved cell that the step cannot read, or of a step that keeps none."""
        if step not in self._types:
            raise SchemaError(f"step {step!r} keeps no state here")
        if len(cell) <= _DUE_BYTES:
            raise SchemaError(f"the saved state of step {step!r} is cut off after {len(cell)} bytes")
        self._types[step].load(cell[_DUE_BYTES:])

    def holds(self, states: Lasting) -> None:
        """Ask these states too for what changed."""
        self._lasting.append(states)

    def load(self, step: str, key: bytes) -> bytes | None:
        """The newest saved cell of (step, key)."""
        saved = self._saved.get((step, key))
        return self._backend.load(step, key) if saved is None else saved

    def save(self, step: str, key: bytes, cell: bytes | None) -> None:
        """Keep the cell of (step, key) for `changes`; None drops it."""
        if cell is None:
            self.forget(step, key)
        else:
            self._saved[step, key] = cell
        self._unread.add((step, key))

    def forget(self, step: str, key: bytes) -> None:
        """Let the cell of (step, key) be found no more."""
        self._saved.pop((step, key), None)
        self._backend.drop(step, key)

    def take_in(self, step: str, key: bytes, cell: bytes) -> None:
        """Take in a saved cell that came from elsewhere, for a key that has none; it is among the changes."""
        self.save(step, key, cell)
        heappush(self._loaded.setdefault(step, []), (due_of(cell), key))

    def due(self, step: str, watermark: int) -> Iterable[bytes]:
        """The keys of saved cells of the backend, and of those taken in since, that are due."""
        heap, found = self._loaded.get(step), list[bytes]()
        while heap and heap[0][0] <= watermark:
            found.append(heappop(heap)[1])
        return (
            chain(self._backend.due(step, watermark), found) if found else self._backend.due(step, watermark)
        )

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """Every cell touched since the last call, None for one that was dropped."""
        changed = {at: self._saved.get(at) for at in self._unread}
        self._unread.clear()
        for states in self._lasting:
            changed.update(states.encoded())
        return changed


class StepState:
    """The states of one step by encoded key, as values in use."""

    def __init__(self, store: KeyedState, step: str, kind: StateType, *, lasting: bool = False) -> None:
        self._store, self._step, self._type, self._lasting = store, step, kind, lasting
        self._values: dict[bytes, Any] = {}
        self._touched: dict[bytes, int | None] = {}  # None: dropped
        self._fit = kind.fit
        self._heap: list[tuple[int, bytes]] = []
        self._due: dict[bytes, int] = {}
        self._queued: dict[bytes, int] = {}
        self._unsaved: set[bytes] = set()
        self.at_hand: Callable[[bytes], Any | None] = self._values.get
        """The state of a key if it is in use, and only then."""
        self.keep: Callable[[bytes], None] = self._unsaved.add
        """Note that a lasting state at hand was changed in place, and is due when it was."""

    def get(self, key: bytes) -> Any:
        """The state of a key, a fresh one where it has none."""
        value = self.find(key)
        return self._type.make() if value is None else value

    def find(self, key: bytes) -> Any | None:
        """The state of a key, None where it has none."""
        value = self._values.get(key)
        if value is None and self._touched.get(key, NEVER) is not None:
            saved = self._store.load(self._step, key)
            value = None if saved is None else self._type.load(saved[8:])
        return value

    def due_of(self, key: bytes) -> int:
        """When a key is due by what was last put for it, `NEVER` for never; microseconds."""
        if key in self._touched:
            due = self._touched[key]
            return NEVER if due is None else due
        if key in self._due:
            return self._due[key]
        saved = None if key in self._values else self._store.load(self._step, key)
        return NEVER if saved is None else due_of(saved)

    def put(self, key: bytes, value: Any, due: int | None = None) -> None:
        """Set the state of a key, until `save` or `roll_back`; raises `SchemaError` for one that cannot be
        saved.

        due: the earliest event time at which `due` shall name the key, microseconds, None for never.
        """
        try:
            self._values[key] = self._fit(value)
        except REFUSALS as error:
            raise self._type.refusal(value, error, key) from None
        self._touched[key] = NEVER if due is None else due

    def put_ready(self, values: Mapping[bytes, Any]) -> None:
        """Set the states of several keys, known to have their declared form, that want never to be woken."""
        self._values.update(values)
        self._touched.update(dict.fromkeys(values, NEVER))

    def drop(self, key: bytes) -> None:
        """Forget the state of a key, until `save` or `roll_back`."""
        self._values.pop(key, None)
        self._touched[key] = None

    def check(self, key: bytes) -> None:
        """Raise `SchemaError` if what was put for a key since the last `save` cannot be saved: before it is
        replaced or dropped, when nobody would ask any more.
        """
        if self._touched.get(key) is not None:
            self._type.save(self._values[key], key)

    def save(self) -> None:
        """Keep all that was put or dropped since the last call; raises `SchemaError`, and keeps nothing, if
        one cannot be.
        """
        if not self._touched:
            return
        if self._lasting:
            self._unsaved.update(self._touched)
            for key in [key for key, due in self._touched.items() if due is None]:
                self._unsaved.discard(key)
                self._store.save(self._step, key, None)
        else:
            cells = {
                key: None if due is None else saved_cell(due, self._type.save(self._values[key], key))
                for key, due in self._touched.items()
            }
            for key, cell in cells.items():
                self._store.save(self._step, key, cell)
        for key, due in self._touched.items():
            self._wake(key, NEVER if due is None else due)
        self._touched.clear()

    def encoded(self) -> dict[tuple[str, bytes], bytes]:
        """The cells of the lasting states that changed since the last call; their values stay in use, so that
        nobody will ask for the cells.
        """
        step, values, due, save = self._step, self._values, self._due, self._type.save
        cells = {
            (step, key): saved_cell(due.get(key, NEVER), save(values[key], key)) for key in self._unsaved
        }
        self._unsaved.clear()
        return cells

    def due(self, watermark: int) -> list[bytes]:
        """The keys of saved states that are due at `watermark` or before, by (due time, key); each stays due
        until it is put with another time or dropped.
        """
        for key in self._store.due(self._step, watermark):
            if self._lasting and key in self._values:
                continue  # what the backend has is older
            saved = self._store.load(self._step, key)
            if saved is not None and key not in self._due:
                self._wake(key, due_of(saved))
        found: list[tuple[int, bytes]] = []
        while self._heap and self._heap[0][0] <= watermark:
            at, key = heappop(self._heap)
            if self._queued.get(key) != at:
                continue  # the key has an earlier entry, or had one
            del self._queued[key]
            due = self._due.get(key)
            if due is not None and due <= watermark:
                found.append((due, key))
            elif due is not None:
                self._queue(key, due)
        for due, key in found:
            self._queue(key, due)
        return [key for _, key in sorted(found)]

    def _wake(self, key: bytes, due: int) -> None:
        if due == NEVER:
            self._due.pop(key, None)
            return
        self._due[key] = due
        # A later time finds its place when the earlier entry comes up: one entry a key is enough.
        if due < self._queued.get(key, NEVER):
            self._queue(key, due)

    def _queue(self, key: bytes, due: int) -> None:
        self._queued[key] = due
        heappush(self._heap, (due, key))

    def roll_back(self) -> None:
        """Forget all that was put, dropped or changed in place since the last `save`.

        A value that was only read may have been changed in place too, so every value in use is loaded again.
        """
        self._values.clear()
        self._touched.clear()
