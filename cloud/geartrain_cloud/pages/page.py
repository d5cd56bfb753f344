"""What an example brings along to have a page: files to serve, and answers to give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Rows = Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]
"""`rows(table, where)`: rows of a table whose fields equal `where`, in canonical order, as JSON values."""


class Tables(Protocol):
    """The tables that a page reads. All raise `TableError` for a table or field that is not there."""

    def __call__(self, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows whose fields equal `where` (a time in microseconds), in canonical order, as JSON values."""
        ...

    def after(self, table: str, place: int | None, count_max: int) -> tuple[list[dict[str, Any]], int]:
        """Rows of a table without a key that were written after `place`, oldest first, and the next place.

        0 begins with the first row, None gives the newest; see `geartrain_cloud.sinks.tables.rows_after`.
        """
        ...

    def counts(self, table: str, by: Sequence[str]) -> list[dict[str, Any]]:
        """How many rows there are of each combination of the fields `by`, as `count`; sorted by them."""
        ...


class Page(Protocol):
    """A page over tables."""

    @property
    def static(self) -> Path:
        """A folder with `index.html`; only the files directly in it are served."""
        ...

    def answer(self, rows: Tables, path: Sequence[str], query: Mapping[str, str]) -> tuple[int, Any]:
        """Status and JSON value for `GET /api/<path>`; an error is `{"error": sentence}`.

        A parameter in the query that this did not look at is refused afterwards, so that none goes unnoticed.
        """
        ...
