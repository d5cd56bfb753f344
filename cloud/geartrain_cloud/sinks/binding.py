"""Whether a store and a query's checkpoint belong together, and which micro-batch the store takes next.

It stands beside the record's path, between every store (tables, PostgreSQL, Parquet, outbox) and what the
store holds of a query.

Guarantees: a query that starts again from nothing doubles no record. A query that goes on where a store holds
nothing of it loses none. A store takes each micro-batch once, in order, and notices one that was planned
anew.
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


NOTHING = Mark("", -1, {})
"""Of a query that was never bound."""


class Binding:
    """One store and one query, in the words of their errors."""

    def __init__(self, query: str, place: str, kind: str, error: type[TableError] = TableError) -> None:
        """Args:

        query: as a sentence names it, `query 'main'` for example.
        place: the store by its name.
        kind: what the store is, such as a file, that a person can bring back.
        error: what is raised.
        """
        self._query, self._place, self._kind, self._error = query, place, kind, error

    def check_checkpoint(self, held: Mark | None, checkpoint: str, *, has_run: bool) -> bool:
        """Whether the store has yet to be bound to the checkpoint.

        Args:
            held: what the store holds of the query, None where it was never bound.
            checkpoint: the name of the checkpoint with which the query runs.
            has_run: whether the checkpoint holds a micro-batch already.

        Raises:
            TableError: the two do not belong together.
        """
        is_of_it = held is not None and held.checkpoint == checkpoint
        if held is not None and held.positions and not is_of_it:
            raise self._error(
                f"{self._place} holds what {self._query} wrote up to micro-batch {held.batch_id}, but its "
                "checkpoint is not there: bring the checkpoint back with the state folder that it is of, or "
                f"have the sink name a new {self._kind}"
            )
        if has_run and not is_of_it:
            raise self._error(
                f"the checkpoint of {self._query} goes on from an earlier run, but {self._place} holds "
                f"nothing of it: bring the {self._kind} back, or have gear replay make all tables anew from "
                "the log"
            )
        return not is_of_it

    def holds(self, held: Mark, batch_id: int, positions: Mapping[str, int]) -> bool:
        """Whether the store holds a micro-batch already; where not, it is the next.

        Args:
            held: what the store holds of the query.
            batch_id: the micro-batch that is brought.
            positions: where it ends in the log.

        Raises:
            TableError: it repeats the last one with other positions, leaves a gap after it, or goes back.
        """
        if batch_id == held.batch_id and dict(positions) != dict(held.positions):
            # A checkpoint that lost its newest files is mended first, so that this does not come.
            raise self._error(
                f"{self._query} repeats micro-batch {batch_id} with other positions than {self._place} "
                "holds, so its checkpoint is not whole: have gear replay make all tables anew from the log"
            )
        if batch_id <= held.batch_id:
            return True
        if batch_id != held.batch_id + 1:
            raise self._error(
                f"{self._query} brings micro-batch {batch_id}, but {self._place} holds them only up to "
                f"{held.batch_id}, so it is older than the checkpoint: bring the newer {self._kind} back, or "
                "have gear replay make all tables anew from the log"
            )
        for key, position in held.positions.items():
            if positions.get(key, -1) < position:
                raise self._error(
                    f"{self._query}, channel {key!r}: micro-batch {batch_id} ends at position "
                    f"{positions.get(key)}, but {self._place} is already at {position}"
                )
        return False
