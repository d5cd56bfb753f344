"""Whether a store and a query's checkpoint belong together: asked by each store before a query writes to it.

Beside the record's path, between the stores and what they hold of a query. Guarantees: no record is doubled
by a query that starts again from nothing, or lost by one that goes on where a store holds nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from geartrain_cloud.sinks.layout import TableError


class Mark(NamedTuple):
    """What a store holds of a query: of which checkpoint, its last micro-batch, and where that ended."""

    checkpoint: str
    batch_id: int
    positions: Mapping[str, int]


def check_binding(
    query: str, held: Mark | None, checkpoint: str, *, has_run: bool, place: str, kind: str
) -> None:
    """Raise `TableError` where `held` and the checkpoint named `checkpoint` do not belong together.

    query: as a sentence names it; has_run: the checkpoint holds a micro-batch already; place: the store, by
    its name; kind: what it is, a file for example.
    """
    is_of_it = held is not None and held.checkpoint == checkpoint
    if held is not None and held.positions and not is_of_it:
        raise TableError(
            f"{place} holds what {query} wrote up to micro-batch {held.batch_id}, but its checkpoint is not "
            "there: bring the checkpoint back, make it again from the log with --restore, or empty both with "
            "--reset"
        )
    if has_run and not is_of_it:
        raise TableError(
            f"the checkpoint of {query} goes on from an earlier run, but {place} holds nothing of it: bring "
            f"the {kind} back, or empty both with --reset"
        )
