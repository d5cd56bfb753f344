"""What the state of a key, or each of its open windows, holds: the seam between folding records and windows.

An aggregate, a reduce and a fold each implement `Content`; the operators without windows (`running`) and with
them (`windowing`) drive it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from geartrain.graph.conform import dead_letter
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch
from geartrain.state.state_type import StateType


class Content(Protocol):
    """How records are taken into what is held, and what comes of it.

    kind: the type of what is held; trusted: it always has that type; sequential: the records of a key must be
    added one after the other.
    """

    @property
    def kind(self) -> Any:
        """The type of what is held."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether what is held always has its type, and adding never raises."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether records must be added one after the other, in canonical order."""
        ...

    def prepare(self, batch: Batch) -> tuple[Batch, Any]:
        """The records that can be added (others are rejected), and what was read of them."""
        ...

    def add(self, held: Any, batch: Batch, read: Any, rows: Sequence[int]) -> Any:
        """`held`, None at first, with the given rows; raises what user code raises."""
        ...

    def merge(self, left: Any, right: Any) -> Any:
        """Both in one; only asked of what is not sequential."""
        ...

    def result(self, held: Any, key: bytes, start: int, end: int, revision: int) -> Any:
        """What comes of it; raises what user code raises. Without windows, all numbers are 0."""
        ...


Columns = list[list[Any]]
"""What was read of some records: a list for each aggregate."""


class ColumnContent(Content, Protocol):
    """A content that takes the records of many keys at once. It is trusted, and reads `Columns`."""

    def add_groups(
        self, held: Sequence[Any], batch: Batch, columns: Columns, groups: Sequence[list[int]]
    ) -> Sequence[Any]:
        """Each of `held`, None at first, with the rows of its group, as `add` would give it."""
        ...


class ResultColumns(Content, Protocol):
    """A content that makes the results of many keys at once."""

    def results(self, held: Sequence[Any], keys: Sequence[bytes], start: int, end: int) -> Sequence[Any]:
        """The first result of each window [start, end), one a key; raises what the result's type raises."""
        ...


@lru_cache(maxsize=256)
def kept_type(kind: Any) -> Any:
    """A struct with one field `state`, of the type `kind` or None."""
    return msgspec.defstruct("Kept", [("state", kind | None, None)], array_like=True)


def settler(step: str) -> Callable[[Any], Callable[[Any], Any] | None]:
    """What makes, for a type, the function that brings values into the form that they have after a restart;
    None for a type that needs none.
    """

    def make(kind: Any) -> Callable[[Any], Any] | None:
        kept = kept_type(kind)
        settle = StateType(step, kept).settle
        return None if settle is None else lambda value: settle(kept(value)).state

    return make


def without(services: Services, batch: Batch, refused: dict[int, str], code: str) -> list[int]:
    """The rows that were not refused; the others become dead letters of this code."""
    for row, reason in refused.items():
        services.reject(dead_letter(services, batch, row, code, reason))
    return [row for row in range(len(batch)) if row not in refused]
