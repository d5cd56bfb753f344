"""The checksum in every row of the ledger: a row that changed on the disk is detected when it is read.

Under the tables of the ledger, since SQLite itself checks no content. Guarantees: a row is refused if any bit
of its columns differs from what was written.
"""

from __future__ import annotations

from typing import Any

from geartrain.adapters.sqlite import row_checksum
from geartrain.errors import LedgerError

Row = tuple[Any, ...]

_BYTES = 8


def sealed(row: Row) -> Row:
    """The columns and, as the last one, their checksum."""
    return (*row, row_checksum(row, _BYTES))


def is_whole(row: Row) -> bool:
    """Whether a row, its checksum the last column, is what was written."""
    return sealed(row[:-1]) == row


def whole(row: Row, what: str) -> Row:
    """The columns of a row without the checksum; raises `LedgerError` where they are not what was written.

    `what`: as a sentence begins with it, such as "the schema of stocks/quotes".
    """
    if not is_whole(row):
        raise LedgerError(f"{what} is damaged: restore the ledger from a copy")
    return row[:-1]
