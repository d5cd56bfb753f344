"""The content of an aggregate: accumulators of all its parts, and the record that they fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from geartrain.accumulating.contents import Columns, settler, without
from geartrain.accumulating.filling import Filling, KeyFields
from geartrain.accumulating.parts import Parts
from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.declarations.windows import Window
from geartrain.errors import FlowError
from geartrain.graph.operator import Services, StreamProperties
from geartrain.records.batch import Batch
from geartrain.records.codes import Code


class Aggregating:
    """What `Content` asks for, over several aggregates at once."""

    sequential = False

    def __init__(
        self,
        services: Services,
        fields: Mapping[str, AggregateSpec],
        key_fields: KeyFields,
        window: Window | None,
    ) -> None:
        """Raises `FlowError` naming the step where fields and aggregates do not match."""
        self._services = services
        try:
            self._filling = Filling(services.out, list(fields), key_fields, window)
            self._parts = Parts(fields, services.inputs[0], settler(services.step))
        except FlowError as error:
            raise FlowError(f"step {services.step!r}: {error}") from None
        self.kind, self.trusted = self._parts.kind, self._parts.trusted

    def prepare(self, batch: Batch) -> tuple[Batch, Any]:
        """Read what each aggregate takes of each record; a record of which one cannot is a dead letter."""
        refused: dict[int, str] = {}
        columns = self._parts.read(batch.values, refused)
        if not refused:
            return batch, columns
        kept = without(self._services, batch, refused, Code.WRONG_TYPE)
        return batch.take(kept), [[column[row] for row in kept] for column in columns]

    def add(self, held: Any, batch: Batch, read: Any, rows: Sequence[int]) -> Any:
        """The accumulators with the given rows."""
        return self._parts.add(held, batch, read, rows)

    def add_groups(
        self, held: Sequence[Any], batch: Batch, columns: Columns, groups: Sequence[list[int]]
    ) -> Sequence[Any]:
        """The accumulators of each group with its rows."""
        return self._parts.add_groups(held, batch, columns, groups)

    def merge(self, left: Any, right: Any) -> Any:
        """The accumulators of both."""
        return self._parts.merge(left, right)

    def result(self, held: Any, key: bytes, start: int, end: int, revision: int) -> Any:
        """The record of all results."""
        return self._filling.record(self._parts.results(held), key, start, end, revision)

    def results(self, held: Sequence[Any], keys: Sequence[bytes], start: int, end: int) -> Sequence[Any]:
        """The records of the results of many keys in one window."""
        return self._filling.records(self._parts.result_columns(held), keys, start, end)


def aggregated(above: StreamProperties, key_fields: KeyFields, *, in_order: bool) -> StreamProperties:
    """The properties of an aggregate's output: a domain is kept that is the key and a field of the result."""
    kept = above.key_local and (above.domain, None) in key_fields
    return StreamProperties(above.domain if kept else None, in_order, timely=above.timely)
