"""What goes of tables by age: rows whose event time lies before a bound, out of an SQLite file.

Beside the Spark host, which writes the same file: control removes here. Guarantees: rows go in short
transactions, each with the count of what went, so that no write waits for a scan. A row that was replaced by
a newer one meanwhile stays. So does a row without an event time, and the row of a table without a key that
was written last, whose number tells readers where they are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from geartrain.adapters.sqlite import open_to_read, open_to_write, transaction, translated
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.sinks.layout import TableError, quoted

ROWS_MAX = 1_000
"""So many rows of a table go in one transaction."""
REMOVED = "CREATE TABLE IF NOT EXISTS _removed (name TEXT PRIMARY KEY, rows BIGINT NOT NULL)"
"""How many rows of each table have gone by age."""
COUNT_REMOVED = (
    "INSERT INTO _removed VALUES ({0}, {0}) "
    "ON CONFLICT (name) DO UPDATE SET rows = _removed.rows + excluded.rows"
)
BUSY_S = 5.0

Key = tuple[Any, ...]


class Sweep(Protocol):
    """One way through the tables of a run, from which old rows go."""

    def step(self) -> bool:
        """Remove the next rows, at most `ROWS_MAX` of each table; whether there may be more.

        Raises `TableError`.
        """
        ...


class FileSweep:
    """Through the tables in an SQLite file, each once, in the order of its keys."""

    def __init__(self, path: Path, before_us: int) -> None:
        """before_us: the event time before which rows go, microseconds since 1970 UTC."""
        self._path, self._before_us = path, before_us
        self._after: dict[str, Key] = {}
        self._done: set[str] = set()

    def step(self) -> bool:
        """Remove the next rows; see `Sweep`."""
        with translated(TableError, f"the file of tables {self._path}"):
            found = self._older()
            if found:
                with closing(open_to_write(self._path, busy_s=BUSY_S)) as file, transaction(file):
                    file.execute(REMOVED)
                    for name, key, rows in found:
                        self._remove(file, name, key, rows)
        return any(len(rows) == ROWS_MAX for _, _, rows in found)

    def _older(self) -> list[tuple[str, Sequence[str], list[Key]]]:
        """By table its key and the keys of the next rows that are to go."""
        found: list[tuple[str, Sequence[str], list[Key]]] = []
        with closing(open_to_read(self._path, busy_s=BUSY_S)) as file:
            for (name,) in file.execute("SELECT name FROM _sinks ORDER BY name").fetchall():
                if name in self._done:
                    continue
                columns = file.execute(
                    "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (name,)
                )
                key = [quoted(column) for (column,) in columns.fetchall()] or ["_rowid_"]
                rows = self._next(file, name, key)
                if len(rows) < ROWS_MAX:
                    self._done.add(name)
                if rows:
                    self._after[name] = rows[-1]
                    found.append((name, key, rows))
        return found

    def _next(self, file: sqlite3.Connection, name: str, key: Sequence[str]) -> list[Key]:
        after, listed = self._after.get(name), ", ".join(key)
        where = "_event_time > ? AND _event_time < ?"
        if key == ["_rowid_"]:
            where += f" AND _rowid_ < (SELECT max(_rowid_) FROM {quoted(name)})"  # noqa: S608
        if after is not None:
            where += f" AND ({listed}) > ({', '.join('?' * len(key))})"
        statement = f"SELECT {listed} FROM {quoted(name)} WHERE {where} ORDER BY {listed} LIMIT ?"  # noqa: S608
        return file.execute(statement, (START_OF_TIME, self._before_us, *(after or ()), ROWS_MAX)).fetchall()

    def _remove(self, file: sqlite3.Connection, name: str, key: Sequence[str], rows: Sequence[Key]) -> None:
        where = " AND ".join(f"{column} = ?" for column in key)
        statement = f"DELETE FROM {quoted(name)} WHERE {where} AND _event_time < ?"  # noqa: S608
        count = file.executemany(statement, [(*row, self._before_us) for row in rows]).rowcount
        file.execute(COUNT_REMOVED.format("?"), (name, count))


def removed_rows(path: Path) -> int:
    """How many rows of the file have gone by age; raises `TableError`."""
    with (
        translated(TableError, f"the file of tables {path}"),
        closing(open_to_read(path, busy_s=BUSY_S)) as file,
    ):
        if not file.execute("SELECT 1 FROM sqlite_schema WHERE name = '_removed'").fetchone():
            return 0
        return int(file.execute("SELECT coalesce(sum(rows), 0) FROM _removed").fetchone()[0])
