"""What keeps a flow's own tables: an SQLite file, or a schema of PostgreSQL; how it is written and read.

It stands last on a record's path. Guarantees: a micro-batch's rows, its number and its positions are written
in one durable transaction, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from geartrain.declarations.sink import Table
from geartrain.records.codes import Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks import tables
from geartrain_cloud.sinks.evolution import Evolution
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.sqlite import QueryProgress


class OwnTables(Protocol):
    """The writing side; each method raises `TableError`."""

    @property
    def place(self) -> str:
        """Where they are, as a sentence names it."""
        ...

    def declare(self, sink_id: str, table: Table, schema: Schema) -> None:
        """Say where the records of `sink_id` come to rest."""
        ...

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """What `evolve` would change, and nothing is changed; raises `TableError` where that is refused."""
        ...

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the tables be these from the next micro-batch on that is written, in its transaction."""
        ...

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint; refused where they do not belong together."""
        ...

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """The rows that cannot be kept, and why."""
        ...

    def write(
        self,
        query: str,
        batch_id: int,
        positions: Mapping[str, int],
        rows: Mapping[str, Sequence[ColumnBatch]],
        log_rows: int = 0,
    ) -> bool:
        """Write a micro-batch that ends at `positions`; False where it is held already."""
        ...

    def positions(self, query: str) -> dict[str, int]:
        """Up to which positions what `query` made is held; empty for none."""
        ...

    def progress(self, query: str) -> QueryProgress | None:
        """Where `query` stands, None where it was never attached."""
        ...

    def records(self) -> dict[str, int]:
        """Records written so far, by sink."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class TablesReader(Protocol):
    """The reading side, as `geartrain_cloud.sinks.tables` has it; each method raises `TableError`."""

    def names(self) -> list[str]:
        """The names of the tables, sorted."""
        ...

    def columns(self, table: str) -> list[str]:
        """The fields of a table, in the order of their declaration."""
        ...

    def row_count(self, table: str) -> int:
        """How many rows a table has."""
        ...

    def page(self, table: str, skip: int, count_max: int) -> list[dict[str, Any]]:
        """Rows sorted by their fields, without the first `skip`."""
        ...

    def rows_after(self, table: str, after: int | None, count_max: int) -> tuple[list[dict[str, Any]], int]:
        """Rows in the order of writing, behind the place `after`; and where that leaves a reader."""
        ...


@dataclass(frozen=True, slots=True)
class SqliteReader:
    """The tables in the file at `path`."""

    path: Path

    def names(self) -> list[str]:
        """The names of the tables, sorted."""
        return tables.table_names(self.path)

    def columns(self, table: str) -> list[str]:
        """The fields of a table."""
        return tables.columns(self.path, table)

    def row_count(self, table: str) -> int:
        """How many rows a table has."""
        return tables.row_count(self.path, table)

    def page(self, table: str, skip: int, count_max: int) -> list[dict[str, Any]]:
        """Rows sorted by their fields."""
        return tables.page(self.path, table, skip, count_max)

    def rows_after(self, table: str, after: int | None, count_max: int) -> tuple[list[dict[str, Any]], int]:
        """Rows in the order of writing."""
        return tables.rows_after(self.path, table, after, count_max)
