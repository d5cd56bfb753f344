"""aggregate: several aggregates of a key at once, or of each of its windows.

Without a window there is a result for each record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geartrain.accumulating.aggregating import Aggregating, aggregated
from geartrain.accumulating.contents import kept_type
from geartrain.accumulating.filling import KeyFields
from geartrain.accumulating.running import running
from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.declarations.windows import Early, Session, Window
from geartrain.graph.operator import Keyed, Running, Services, StreamProperties, Transform
from geartrain.operators.windowed import Windowed
from geartrain.state.told import Told, opened
from geartrain.windowing.column_windows import ColumnWindows
from geartrain.windowing.open_windows import ColumnGiver, told_windows
from geartrain.windowing.windowing import Windowing


class Aggregate(Keyed, frozen=True):
    """What `fields` compute of all records of a key up to each, as a record with these fields.

    key_fields: fields that the key fills, with the index in the key, None for the whole key.
    """

    fields: Mapping[str, AggregateSpec]
    key_fields: KeyFields
    kind = "aggregate"
    ordered = True

    def __hash__(self) -> int:  # a mapping has none
        return hash(self.key_fields)

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """In the order of its input; a domain that is the key is kept."""
        return aggregated(inputs[0], self.key_fields, in_order=inputs[0].in_order)

    def open(self, services: Services) -> Transform:
        """A function from a keyed batch to the batch of running results."""
        return running(services, Aggregating(services, self.fields, self.key_fields, None))

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The result of all records of the key so far."""
        content = Aggregating(services, self.fields, self.key_fields, None)
        kept = opened(services.step, kept_type(content.kind), cell)
        return Told(content.result(kept.state, key, 0, 0, 0))


class WindowAggregate(Windowed, frozen=True):
    """What `fields` compute of each window, as a record with these fields, once the watermark passes its end.

    key_fields: fields that the key fills, with the index in the key, None for the whole key; early: when a
    window gives results before its end; that needs its records in canonical order.
    """

    window: Window
    fields: Mapping[str, AggregateSpec]
    key_fields: KeyFields
    early: Early | None = None
    kind = "window_aggregate"

    def __hash__(self) -> int:  # a mapping has none
        return hash((self.window, self.key_fields, self.early))

    @property
    def ordered(self) -> bool:
        """Where it gives early results."""
        return self.early is not None

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is lost; a domain that is the key is kept."""
        return aggregated(inputs[0], self.key_fields, in_order=False)

    def open(self, services: Services) -> Running:
        """The operator at work; its cells hold the open windows of a key."""
        content = self._content(services)
        if content.trusted and self.early is None and not isinstance(self.window, Session):
            return ColumnWindows(services, self.window, content, ColumnGiver(services, content))
        return Windowing(services, self.window, content, self.early)

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """The open windows of the key."""
        return told_windows(services, self._content(services), key, cell)

    def _content(self, services: Services) -> Aggregating:
        return Aggregating(services, self.fields, self.key_fields, self.window)
