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


def remove_older(path: Path, before_us: int, rows_max: int = ROWS_MAX) -> int:
    """Remove some rows whose event time lies before `before_us`; at most `rows_max` of each table.

    path: the file; before_us: microseconds since 1970 UTC. Returns how many went, 0 once there are no more.
    Raises `TableError`.
    """
    with translated(TableError, f"the file of tables {path}"):
        found = _older(path, before_us, rows_max)
        if not found:
            return 0
        with closing(open_to_write(path, busy_s=BUSY_S)) as file, transaction(file):
            file.execute(REMOVED)
            return sum(_remove(file, name, key, rows, before_us) for name, key, rows in found)


def removed_rows(path: Path) -> int:
    """How many rows of the file have gone by age; raises `TableError`."""
    with (
        translated(TableError, f"the file of tables {path}"),
        closing(open_to_read(path, busy_s=BUSY_S)) as file,
    ):
        if not file.execute("SELECT 1 FROM sqlite_schema WHERE name = '_removed'").fetchone():
            return 0
        return int(file.execute("SELECT coalesce(sum(rows), 0) FROM _removed").fetchone()[0])


def _older(
    path: Path, before_us: int, rows_max: int
) -> list[tuple[str, Sequence[str], list[tuple[object, ...]]]]:
    """By table its key and the keys of rows that are to go."""
    found: list[tuple[str, Sequence[str], list[tuple[object, ...]]]] = []
    with closing(open_to_read(path, busy_s=BUSY_S)) as file:
        for (name,) in file.execute("SELECT name FROM _sinks ORDER BY name").fetchall():
            columns = file.execute("SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (name,))
            key = [quoted(column) for (column,) in columns.fetchall()] or ["_rowid_"]
            newest = f" AND _rowid_ < (SELECT max(_rowid_) FROM {quoted(name)})" if key == ["_rowid_"] else ""  # noqa: S608
            rows = file.execute(
                f"SELECT {', '.join(key)} FROM {quoted(name)} "  # noqa: S608
                f"WHERE _event_time > ? AND _event_time < ?{newest} LIMIT ?",
                (START_OF_TIME, before_us, rows_max),
            ).fetchall()
            if rows:
                found.append((name, key, rows))
    return found


def _remove(
    file: sqlite3.Connection,
    name: str,
    key: Sequence[str],
    rows: Sequence[tuple[object, ...]],
    before_us: int,
) -> int:
    where = " AND ".join(f"{column} = ?" for column in key)
    statement = f"DELETE FROM {quoted(name)} WHERE {where} AND _event_time < ?"  # noqa: S608
    count = file.executemany(statement, [(*row, before_us) for row in rows]).rowcount
    file.execute(COUNT_REMOVED.format("?"), (name, count))
    return count
