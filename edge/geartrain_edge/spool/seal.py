"""The seal of a spool: a checksum over all that it holds except its batches. SQLite has none of its own.

`geartrain_edge.spool.spool` uses it. Guarantees: when the disk has changed, lost or brought back a row of the
small tables, the seal does not fit. So the agent trusts no position and no state that was not committed. The
cost of a commit depends only on the rows that it writes. Batches have a running digest of their own.

It sees each row of state that comes and goes, so it also counts how much there is of each step.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from geartrain.adapters.sqlite import row_checksum
from geartrain.ports.spool import StateSize

SEAL_BYTES = 16
_SELECTS = {
    "positions": "SELECT step, split, position, max_time, ended FROM positions",
    "state": "SELECT step, key, value FROM state",
    "counters": "SELECT name, total FROM counters",
}
_KEYS = {"positions": ("step", "split"), "state": ("step", "key"), "counters": ("name",)}
_OWN = "SELECT device, flow, epoch, last_seq, last_digest, acked_seq, acked_digest FROM spool"
_AT_ONCE = (256, 16, 1)
"""Keys of one question."""


def checksum(row: Sequence[Any]) -> bytes:
    """Of values as SQLite gives them, whatever they are."""
    return row_checksum(row, SEAL_BYTES)


class Seal:
    """The seal of one open spool: the sum of the checksums of all rows, in whatever order.

    A sum and no exclusive or, in which a damaged page that gives one row twice would go unseen.
    """

    def __init__(self) -> None:
        self.rest = 0
        """Of the rows of all tables but `spool`."""
        self.kept: dict[str, StateSize] = {}
        """Of the state of each step; replaced, never changed in place."""

    def load(self, database: sqlite3.Connection) -> bool:
        """Work out the seal of what is there; whether it is the one that was written."""
        self.rest, sizes = 0, _Sizes({})
        for table, select in _SELECTS.items():
            for row in database.execute(select):
                self.rest += _mark(table, row)
                if table == "state":
                    sizes.add(row, 1)
        self.kept = sizes.made()
        return bool(database.execute("SELECT seal FROM spool").fetchall() == [(self._whole(database),)])

    def change(
        self, database: sqlite3.Connection, table: str, keys: Iterable[tuple[Any, ...]], rows: Iterable[Any]
    ) -> None:
        """Take the rows of `keys` out, and `rows` in; before the tables themselves are changed."""
        sizes = _Sizes(self.kept)
        for where, values in _lookups(_KEYS[table], keys):
            for row in database.execute(f"{_SELECTS[table]} WHERE {where}", values):
                self.rest -= _mark(table, row)
                if table == "state":
                    sizes.add(row, -1)
        for row in rows:
            self.rest += _mark(table, row)
            if table == "state":
                sizes.add(row, 1)
        self.kept = sizes.made()

    def write(self, database: sqlite3.Connection) -> None:
        """Write the seal of what stands there now, as the last of a transaction."""
        database.execute("UPDATE spool SET seal = ?", (self._whole(database),))

    def _whole(self, database: sqlite3.Connection) -> bytes:
        whole = self.rest
        for row in database.execute(_OWN):
            whole += _mark("spool", row)
        return (whole % (1 << 8 * SEAL_BYTES)).to_bytes(SEAL_BYTES, "big")


class _Sizes:
    """How much there is of each step's state, while rows come and go."""

    def __init__(self, kept: Mapping[str, StateSize]) -> None:
        self._kept, self._cells, self._bytes = kept, Counter[str](), Counter[str]()

    def add(self, row: Sequence[Any], sign: int) -> None:
        """A row of the table `state`; sign: 1 as it comes, -1 as it goes."""
        step, _, value = row
        self._cells[step] += sign
        self._bytes[step] += sign * len(value) if isinstance(value, bytes) else 0  # a damaged one is any

    def made(self) -> dict[str, StateSize]:
        """What there is then, of steps that keep something."""
        found = dict(self._kept)
        for step, cells in self._cells.items():
            former = found.pop(step, StateSize())
            if (left := former.cells + cells) > 0:
                found[step] = StateSize(left, former.bytes + self._bytes[step])
        return found


def _lookups(columns: Sequence[str], keys: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    """Conditions that find the rows of all keys, many at a time: a question costs several times what a row of
    its answer does. Of few lengths, so that statements are prepared once.
    """
    *first, last = columns
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for key in keys:
        groups.setdefault(key[:-1], []).append(key[-1])
    equal = "".join(f"{column} = ? AND " for column in first)
    for of_first, found in groups.items():
        at = 0
        for size in _AT_ONCE:
            where = f"{equal}{last} IN ({', '.join('?' * size)})"
            while len(found) - at >= size:
                yield where, [*of_first, *found[at : at + size]]
                at += size


def _mark(table: str, row: Sequence[Any]) -> int:
    return int.from_bytes(checksum((table, *row)), "big")
