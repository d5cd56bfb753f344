"""order: hold records back until their watermark has passed them, and hand them on in canonical order for
each key.

The planner puts it before a step that must see its records in order where the stream does not promise that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from geartrain.graph.operator import Keyed, Running, Services, StreamProperties
from geartrain.records.batch import Batch
from geartrain.state.held import Held, HeldRow, held_type
from geartrain.state.keyed import StepState
from geartrain.state.told import Told, opened, told_rows


class Order(Keyed, frozen=True):
    """Order a keyed stream."""

    kind = "order"
    keeps_key = True

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """All is kept, and the records of each key come in order."""
        return replace(inputs[0], key_order=True, in_order=inputs[0].key_local)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold the records of a key that wait."""
        held = held_type(services.inputs[0])
        return _Ordering(services.state.of_step(services.step, held, own=True, lasting=True))

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The records of the key that wait."""
        return Told(told_rows(opened(services.step, held_type(services.inputs[0]), cell).rows))


class _Ordering:
    def __init__(self, cells: StepState) -> None:
        self._cells = cells

    def feed(self, batch: Batch, port: int) -> Batch:
        """Take records; none leaves before time does."""
        fresh: dict[bytes, list[HeldRow[Any]]] = {}
        for row, key in enumerate(batch.keys or []):
            fresh.setdefault(key, []).append(HeldRow.of(batch, row))
        for key, rows in fresh.items():
            held = self._cells.get(key)
            held.rows += rows
            due = min(row.time for row in rows) + 1  # many may be held, so only those that come are looked at
            self._cells.put(key, held, min(due, self._cells.due_of(key)))
        self._cells.save()
        return Batch([], [], [], [])

    def advance(self, watermark: int) -> Batch:
        """The records below the watermark, in canonical order for each key."""
        out = Held.output(keyed=True)
        for key in self._cells.due(watermark):
            held = self._cells.get(key)
            held.rows.sort(key=HeldRow.order)
            count = sum(row.time < watermark for row in held.rows)
            for row in held.rows[:count]:
                row.append_to(out, key)
            del held.rows[:count]
            if held.rows:
                self._cells.put(key, held, held.rows[0].time + 1)
            else:
                self._cells.drop(key)
        self._cells.save()
        return out
