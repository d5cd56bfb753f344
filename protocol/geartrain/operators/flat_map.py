"""flat_map: one record in, any number out, each with the input's event time and its own place below its origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from geartrain.batch import Batch, child_path
from geartrain.operators.conform import checker, dead_letter, describe
from geartrain.operators.operator import Plain, Services, Transform


@dataclass(frozen=True)
class FlatMap(Plain):
    """Apply `function` to each record and emit what it yields; a record for which it raises is a dead letter.

    keeps: fields that the function passes on unchanged, so that a partition domain on one of them is kept.
    """

    function: Callable[[Any], Iterable[Any]]
    keeps: frozenset[str] = frozenset()
    kind = "flat_map"

    def open(self, services: Services) -> Transform:
        """A function from a batch to the batch of all children."""
        function, check = self.function, checker(services)

        def run(batch: Batch) -> Batch:
            out = Batch([], [], [], [], [])
            for row, value in enumerate(batch.values):
                try:
                    children = list(function(value))
                except Exception as error:
                    services.reject(dead_letter(services, batch, row, describe(error)))
                    continue
                append_children(out, batch, row, children)
            return check(out)

        return run


def append_children(out: Batch, batch: Batch, row: int, children: list[Any]) -> None:
    """Append `children` of the record at `row` of `batch` to `out`: same time, its origin extended by the index."""
    if not children:
        return
    path = batch.paths[row] if batch.paths is not None else b""
    assert out.paths is not None
    out.values += children
    count = len(children)
    out.times += [batch.times[row]] * count
    out.names += [batch.names[row]] * count
    out.numbers += [batch.numbers[row]] * count
    out.paths += [child_path(path, index) for index in range(count)]
