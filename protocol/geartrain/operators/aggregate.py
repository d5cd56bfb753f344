"""aggregate: several aggregates of a key at once, with a result for each record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geartrain.accumulating.aggregating import Aggregating, aggregated
from geartrain.accumulating.filling import KeyFields
from geartrain.accumulating.running import running
from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.graph.operator import Keyed, Services, StreamProperties, Transform


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
