"""Which device gets each row that goes down: said where a flow's own code runs, which the host has not.

Between the last step of a flow in Spark's workers and its outbox. Guarantees: the device is the one that the
flow's `device=` names, and stands in one column more, behind those of the record.
"""

from __future__ import annotations

from geartrain.errors import USER_ERRORS
from geartrain.operators.deal import Deal
from geartrain.schema import RowCodec
from geartrain_cloud.log.pack import pack, unpack
from geartrain_cloud.spark.compile import Query


class Dealing:
    """The streams of one query that go down to devices."""

    def __init__(self, query: Query) -> None:
        self._deals: dict[str, tuple[Deal, RowCodec]] = {
            step.id: (step.operator, RowCodec(step.out))
            for step in query.graph.steps
            if isinstance(step.operator, Deal) and step.id in query.sinks
        }

    @property
    def streams(self) -> frozenset[str]:
        """Those that go down."""
        return frozenset(self._deals)

    def named(self, stage: int, stream: str, packed: bytes) -> bytes:
        """Packed rows on their way to `stream`; with the device of each where they go down."""
        if stage or stream not in self._deals:
            return packed
        deal, codec = self._deals[stream]
        rows = unpack(packed)
        names = []
        for value in codec.from_columns([list(column) for column in rows.fields]):
            try:
                names.append(deal.device_of(value))
            except USER_ERRORS:  # the user's own function, which has named one before
                names.append("")
        rows.fields = [*rows.fields, names]
        return pack(rows)
