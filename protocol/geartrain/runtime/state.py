"""Keyed state: one typed value per (step, key), loaded on first touch, saved once for each batch that
touched it.

Stands under the stateful operators. Guarantees: a batch's changes are kept as a whole or rolled back as a
whole;
`changes` holds exactly what was touched since it was last called, so that a commit or a micro-batch writes
what it touched and no more.
"""

from __future__ import annotations

from typing import Any, Protocol

from geartrain.runtime.state_type import StateType


class StateBackend(Protocol):
    """Where saved state is loaded from."""

    def load(self, step: str, key: bytes) -> bytes | None:
        """The saved msgpack of (step, encoded key), None where there is none."""
        ...


class DictBackend:
    """A backend over a dictionary: the agent's image of its spool, and tests."""

    def __init__(self, saved: dict[tuple[str, bytes], bytes] | None = None) -> None:
        self.saved = {} if saved is None else saved

    def load(self, step: str, key: bytes) -> bytes | None:
        """The saved bytes of (step, encoded key)."""
        return self.saved.get((step, key))


class KeyedState:
    """The state of all keyed steps of a fragment."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._saved: dict[tuple[str, bytes], bytes] = {}
        self._unread: set[tuple[str, bytes]] = set()

    def of_step(self, step: str, kind: Any) -> StepState:
        """The states of one step, of the Python type `kind`; raises `SchemaError` when it cannot be a
        state.
        """
        return StepState(self, step, StateType(step, kind))

    def load(self, step: str, key: bytes) -> bytes | None:
        """The newest saved bytes of (step, key)."""
        saved = self._saved.get((step, key))
        return self._backend.load(step, key) if saved is None else saved

    def save(self, step: str, key: bytes, raw: bytes) -> None:
        """Keep the bytes of (step, key) for `changes`."""
        self._saved[step, key] = raw
        self._unread.add((step, key))

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """The msgpack of every state touched since the last call."""
        changed: dict[tuple[str, bytes], bytes | None] = {at: self._saved[at] for at in self._unread}
        self._unread.clear()
        return changed


class StepState:
    """The states of one step by encoded key, as values in use."""

    def __init__(self, store: KeyedState, step: str, kind: StateType) -> None:
        self._store, self._step, self._type = store, step, kind
        self._values: dict[bytes, Any] = {}
        self._touched: set[bytes] = set()
        self._settle = kind.settle

    def get(self, key: bytes) -> Any:
        """The state of a key, a fresh one where it has none yet."""
        value = self._values.get(key)
        if value is None:
            saved = self._store.load(self._step, key)
            value = self._type.make() if saved is None else self._type.load(saved)
        return value

    def put(self, key: bytes, value: Any) -> None:
        """Set the state of a key, until `save` or `roll_back`."""
        self._values[key] = value if self._settle is None else self._settle(value)
        self._touched.add(key)

    def save(self) -> None:
        """Keep all that was put since the last call; raises `SchemaError`, and keeps nothing, if one
        cannot be.
        """
        saved = {key: self._type.save(self._values[key]) for key in self._touched}
        for key, raw in saved.items():
            self._store.save(self._step, key, raw)
        self._touched.clear()

    def roll_back(self) -> None:
        """Forget all that was put or changed in place since the last `save`.

        A value that was only read may have been changed in place too, so every value in use is loaded again.
        """
        self._values.clear()
        self._touched.clear()
