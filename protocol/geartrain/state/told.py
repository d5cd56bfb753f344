"""What is told of the state of one key to who asks a running flow for it.

Beside the record's path: an operator makes it of a saved cell, which it decodes for itself. Guarantees: it
holds no value that a running step has in use, so that telling changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from geartrain.state.held import HeldRow
from geartrain.state.state_type import StateType

ROWS_MAX = 100
"""Records and timers that are told of a key which holds many, the first by time."""


class ToldWindow(msgspec.Struct, frozen=True):
    """An open window [start_us, end_us), microseconds, and what its result would be by now."""

    start_us: int
    end_us: int
    result: Any


class Told(msgspec.Struct, frozen=True):
    """The state of a key.

    state: as the user's own type has it, None where the step keeps something else; windows: those that are
    open; timers: event times of the key's next timers, microseconds; forgets_us: the event time at which the
    key is forgotten, None for never.
    """

    state: Any = None
    windows: tuple[ToldWindow, ...] = ()
    timers: tuple[int, ...] = ()
    forgets_us: int | None = None


def opened(step: str, kind: Any, cell: bytes) -> Any:
    """The value of a saved cell, of the type `kind`; raises `SchemaError`."""
    return StateType(step, kind, own=True).load(cell[8:])


def told_rows(rows: Sequence[HeldRow[Any]]) -> dict[str, Any]:
    """Records that a key holds: how many, and the first by place in canonical order."""
    first = sorted(rows, key=HeldRow.order)[:ROWS_MAX]
    return {"count": len(rows), "records": [{"time_us": row.time, "value": row.value} for row in first]}
