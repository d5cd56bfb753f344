"""The queries that read the log, and how far each of them is: retention may not pass that.

Between a host, which registers and commits, and retention. Guarantees: each call is one durable
transaction, and holds ingest up for that transaction at most. A position never goes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from geartrain.errors import LedgerError
from geartrain_cloud.log.opening import ledger_of, writable_ledger
from geartrain_cloud.log.rows import put, read_queries
from geartrain_cloud.ports import QueryProgress

_LOG = logging.getLogger("geartrain.queries")


class Registration:
    """One query's entry in the ledger, as its host keeps it: a checkpoint's, since another begins anew.

    Guarantees: an entry that cannot be written in mid-run costs disk space until the next one is, never a
    row.
    """

    def __init__(self, folder: Path, query: str, identity: str, flow: str) -> None:
        """`folder`: the log's; `identity`: the checkpoint's."""
        self._folder, self.name, self._flow = folder, f"{query}@{identity[:12]}", flow
        self._committed: dict[str, int] = {}

    def register(self, keys: Iterable[str]) -> None:
        """Have all of `keys` kept from where it stands; raises `LedgerError`."""
        register(self._folder, self.name, self._flow, keys)

    def positions(self) -> dict[str, int]:
        """From where the log is kept for it, by key; raises `LedgerError`."""
        with ledger_of(self._folder) as ledger:
            found = read_queries(ledger)
        return {one.key: one.position for one in found if (one.name, one.flow) == (self.name, self._flow)}

    def commit(self, positions: Mapping[str, int]) -> None:
        """Say that the query is done with all up to these positions, and never reads them again."""
        if not positions or positions == self._committed:
            return
        try:
            commit(self._folder, self.name, self._flow, positions)
        except LedgerError as error:  # retention waits for the next micro-batch
            _LOG.warning("query %s: %s", self.name, error)
        else:
            self._committed = dict(positions)

    def unregister(self) -> None:
        """Keep nothing for it any more; raises `LedgerError`."""
        unregister(self._folder, self.name, self._flow)


def register(folder: Path, name: str, flow: str, keys: Iterable[str]) -> None:
    """Keep for the query `name` all of `keys` that it has not committed; raises `LedgerError`.

    What was registered before keeps its position.
    """
    with writable_ledger(folder) as ledger:
        put(ledger, "queries", [(name, flow, key, 0) for key in keys], "INSERT OR IGNORE")


def commit(folder: Path, name: str, flow: str, positions: Mapping[str, int]) -> None:
    """Say that the query is done with all up to these positions; raises `LedgerError`.

    Keys that were not registered are, and a position below the committed one changes nothing.
    """
    with writable_ledger(folder) as ledger:
        known = {q.key: q.position for q in read_queries(ledger) if (q.name, q.flow) == (name, flow)}
        moved = {key: max(position, known.get(key, 0)) for key, position in positions.items()}
        rows = [(name, flow, key, position) for key, position in moved.items()]
        put(ledger, "queries", rows, "INSERT OR REPLACE")


def unregister(folder: Path, name: str, flow: str) -> None:
    """Forget a query: nothing is kept for it any more; raises `LedgerError`."""
    with writable_ledger(folder) as ledger:
        ledger.execute("DELETE FROM queries WHERE name = ? AND flow = ?", (name, flow))


def registered(folder: Path) -> list[QueryProgress]:
    """Every registered query by name, flow and key; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        return read_queries(ledger)
