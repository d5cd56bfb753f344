"""Stores whose places each keep a mark of every query, which is written in one step with the rows.

Between `Tables` and the stores of such places: topics of Kafka, Delta tables. Guarantees: a place that holds
a micro-batch is not given it again, whatever ended a former attempt. A place that comes with a revision of a
flow begins with the first micro-batch after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from geartrain_cloud.sinks.binding import NOTHING, Binding, Mark
from geartrain_cloud.sinks.store import Rows

P = TypeVar("P", bound=Hashable)


class MarkedStore(ABC, Generic[P]):
    """The places of one flow, each told from the others by a `P`. Used from one thread at a time."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._bound: dict[str, str] = {}
        self._joining: set[P] = set()

    @abstractmethod
    def _places(self) -> Iterable[P]:
        """All places."""

    @abstractmethod
    def _named(self, place: P) -> tuple[str, str]:
        """What sentences call a place, and what of it a person can bring back."""

    @abstractmethod
    def _mark(self, place: P, query: str) -> Mark | None:
        """What a place holds of a query, None for nothing; raises `TableError`."""

    @abstractmethod
    def _put(self, place: P, query: str, mark: Mark, rows: Rows) -> None:
        """Write the rows that are for a place, and the mark of a query, in one step; raises `TableError`."""

    def _replace(self, known: Iterable[P]) -> None:
        """Have places begin with the next micro-batch that were not among `known`."""
        wanted = set(self._places())
        self._joining = (self._joining & wanted) | (wanted - set(known))

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint in every place; raises `TableError` where they differ."""
        for place in self._places():
            held = self._mark(place, query)
            if held is None and place in self._joining:
                continue
            if self._binding(place, query).check_checkpoint(held, checkpoint, has_run=has_run):
                self._put(place, query, Mark(checkpoint, -1, {}), {})
        self._bound[query] = checkpoint

    def _binding(self, place: P, query: str) -> Binding:
        return Binding(f"query {query!r} of flow {self._flow}", *self._named(place))

    def stands(self, query: str) -> list[Mapping[str, int]]:
        """The positions at which the places hold what a query has written."""
        found = (self._mark(place, query) for place in self._places())
        return [mark.positions for mark in found if mark is not None and mark.positions]

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Write a micro-batch, in one step a place; raises `TableError`."""
        for place in self._places():
            self._write(place, query, batch_id, positions, rows)

    def _write(self, place: P, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        held = self._mark(place, query)
        if place in self._joining and (held is None or held.batch_id < batch_id - 1):
            self._binding(place, query).check_checkpoint(held, self._bound[query], has_run=False)
            held = Mark(self._bound[query], batch_id - 1, {} if held is None else held.positions)
        held = held or NOTHING
        if not self._binding(place, query).holds(held, batch_id, positions):
            self._put(place, query, Mark(held.checkpoint, batch_id, positions), rows)
        self._joining.discard(place)
