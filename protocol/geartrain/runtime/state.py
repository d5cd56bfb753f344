"""Keyed state: one typed value per (step, key), decoded on first touch, encoded when it is saved.

Stands under the stateful operators. Guarantees: `changes` holds exactly what was touched since it was last
called, so that a commit or a micro-batch writes what it touched and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec


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
        self._types: dict[str, Any] = {}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._values: dict[tuple[str, bytes], Any] = {}
        self._touched: set[tuple[str, bytes]] = set()

    def register(self, step: str, kind: Any) -> None:
        """Declare the state type of a step before its first `get`."""
        self._types[step] = kind
        self._decoders[step] = msgspec.msgpack.Decoder(kind)

    def get(self, step: str, key: bytes, make: Callable[[], Any]) -> Any:
        """The state of a key; `make()` where it has none yet."""
        at = (step, key)
        if at not in self._values:
            saved = self._backend.load(step, key)
            self._values[at] = make() if saved is None else self._decoders[step].decode(saved)
        return self._values[at]

    def put(self, step: str, key: bytes, value: Any) -> None:
        """Set the state of a key and mark it as touched."""
        at = (step, key)
        self._values[at] = value
        self._touched.add(at)

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """The msgpack of every state touched since the last call."""
        changed: dict[tuple[str, bytes], bytes | None] = {
            at: self._encode(self._values[at]) for at in self._touched
        }
        self._touched.clear()
        return changed
