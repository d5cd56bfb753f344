"""The queries that read the log, and how far each is done with it: what retention may not pass.

Stands between a driver, which registers and commits, and retention. Guarantees: each call is one durable
transaction; a position never goes back; ingest is held up for that transaction at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from geartrain_cloud.log.opening import ledger_of, writable_ledger


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """A registered query: of `key` (a channel; `channel/1` and so on for its further partitions) it has done
    all up to `position`, and never reads that again.
    """

    name: str
    flow: str
    key: str
    position: int


def register(folder: Path, name: str, flow: str, keys: Iterable[str]) -> None:
    """Keep for the query `name` all of `keys` that it has not committed; raises `LedgerError`.

    What was registered before keeps its position.
    """
    with writable_ledger(folder) as ledger:
        ledger.executemany(
            "INSERT OR IGNORE INTO queries (name, flow, key, position) VALUES (?, ?, ?, 0)",
            [(name, flow, key) for key in keys],
        )


def commit(folder: Path, name: str, flow: str, positions: Mapping[str, int]) -> None:
    """Say that the query is done with all up to these positions; raises `LedgerError`.

    Keys that were not registered are, and a position below the committed one changes nothing.
    """
    with writable_ledger(folder) as ledger:
        ledger.executemany(
            "INSERT INTO queries (name, flow, key, position) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (name, flow, key) DO UPDATE SET position = max(position, excluded.position)",
            [(name, flow, key, position) for key, position in positions.items()],
        )


def unregister(folder: Path, name: str, flow: str) -> None:
    """Forget a query: nothing is kept for it any more; raises `LedgerError`."""
    with writable_ledger(folder) as ledger:
        ledger.execute("DELETE FROM queries WHERE name = ? AND flow = ?", (name, flow))


def registered(folder: Path) -> list[QueryProgress]:
    """Every registered query by name, flow and key; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        rows = ledger.execute("SELECT name, flow, key, position FROM queries ORDER BY name, flow, key")
        return [QueryProgress(*row) for row in rows]
