"""The tables of one run as a page reads them.

It stands after the end of a record's path, between `tables.sqlite` and a page's answers. Guarantees: it
writes nothing. It opens the file anew for every question, so it may be made before the file exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geartrain_cloud.sinks import tables


@dataclass(frozen=True, slots=True)
class TableReader:
    """The `geartrain_cloud.pages.page.Tables` in the file at `path`."""

    path: Path

    def __call__(self, table: str, where: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows whose fields equal `where`, in canonical order; raises `TableError`."""
        return tables.rows(self.path, table, where, canonical=True)

    def after(self, table: str, place: int | None, count_max: int) -> tuple[list[dict[str, Any]], int]:
        """Rows written after `place`, and the next place; raises `TableError`."""
        return tables.rows_after(self.path, table, place, count_max)

    def counts(self, table: str, by: Sequence[str]) -> list[dict[str, Any]]:
        """How many rows there are of each combination of these fields; raises `TableError`."""
        return tables.counts(self.path, table, by)
