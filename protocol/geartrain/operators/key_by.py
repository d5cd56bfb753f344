"""key_by: give each record a key; what follows keeps one state per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import one_by_one
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.keys import encode_key, encode_keys


class KeyBy(Plain, frozen=True):
    """Key by the value of `field`, or by what `function` returns (`field` is then None).

    again: the records were keyed like this before, where the others became dead letters; they are left out.
    """

    function: Callable[[Any], Any]
    field: str | None = None
    again: bool = False
    kind = "key_by"

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order and domain are kept; keyed by its domain, each key lives in one split."""
        above = inputs[0]
        local = above.domain is not None and self.field == above.domain
        return StreamProperties(above.domain, above.in_order, local, local and above.in_order, above.timely)

    @staticmethod
    def of_field(field: str) -> KeyBy:
        """Key by one field of the record."""
        return KeyBy(attrgetter(field), field)

    def open(self, services: Services) -> Transform:
        """A function from a batch to the same batch with encoded keys; a record without a key is a dead
        letter.
        """
        function = self.function
        if self.again:
            services = replace(services, reject=_leave_out)

        def run(batch: Batch) -> Batch:
            try:
                keys = encode_keys(list(map(function, batch.values)))
            except USER_ERRORS:  # found again, record by record: the function is pure
                batch, keys = one_by_one(lambda value: encode_key(function(value)), batch, services)
            return Batch(batch.values, batch.times, batch.names, batch.numbers, batch.paths, keys)

        return run


def _leave_out(letter: DeadLetter) -> None:
    """It was counted where the record was keyed first."""
