"""One result for each record: aggregate, reduce and fold without a window, on a keyed stream in order.

Guarantees the undo rule: a record for which user code raises leaves no trace but a dead letter. As `process`,
a batch is run straight through, and again record by record only when something raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from geartrain.accumulating.contents import Content, kept_type
from geartrain.accumulating.folding import apart
from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import checker, raised_letter
from geartrain.graph.operator import Services, Transform
from geartrain.records.batch import Batch
from geartrain.records.children import Children


def running(services: Services, content: Content) -> Transform:
    """A function from a keyed batch to the batch of running results."""
    kept = kept_type(content.kind)
    cells = services.state.of_step(services.step, kept, own=content.trusted)
    check, copied = checker(services), apart(services.out)

    def calls(batch: Batch, read: Any, rows: Iterable[int], out: Children) -> None:
        keys = batch.keys or []
        for row in rows:
            key = keys[row]
            cell = kept(content.add(cells.get(key).state, batch, read, (row,)))
            out.add(batch, row, [copied(content.result(cell.state, key, 0, 0, 0))])
            cells.put(key, cell)
        cells.save()

    def run(batch: Batch) -> Batch:
        ready, read = content.prepare(batch)
        out = Children()
        try:
            calls(ready, read, range(len(ready)), out)
        except USER_ERRORS:  # found again, record by record
            cells.roll_back()
            out = Children()
            for row in range(len(ready)):
                attempt = Children()
                try:
                    calls(ready, read, (row,), attempt)
                except USER_ERRORS as error:
                    cells.roll_back()
                    services.reject(raised_letter(services, ready, row, error))
                else:
                    out.extend(attempt)
        return check(out.batch())

    return run
