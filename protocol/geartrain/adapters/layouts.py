"""The mark and the number that every store carries, and the sentences by which any other is refused.

Where a store is opened, before anything in it is used. The mark says of which kind the store is, and the
number how it is laid out. Guarantees: a store that is refused is left as it is. One that is brought forward
is so in the transaction that opens it, by one step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from geartrain.errors import GeartrainError


class SqliteLayout(msgspec.Struct, frozen=True):
    """The layout of one kind of SQLite file.

    mark: four letters that no other kind has, kept as `application_id`; version: kept as `user_version`;
    error: what is raised for a file that is refused; way_out: what to do with one, as the end of a sentence;
    step: makes this version of the one before, where a former version is brought forward.
    """

    mark: bytes
    version: int
    error: type[GeartrainError]
    way_out: str
    step: Callable[[sqlite3.Connection], None] | None = None

    def prepare(
        self, database: sqlite3.Connection, subject: str, create: Callable[[sqlite3.Connection], object]
    ) -> bool:
        """Make what a new file holds, or bring forward what is a version behind, in the caller's transaction.

        Args:
            database: a connection within a transaction.
            subject: what and where the store is, such as "the ledger /log/ledger.sqlite".
            create: makes the tables of a new file.

        Returns:
            Whether the file was made now.

        Raises:
            error: the file is of another kind, or of a layout that cannot be used.
        """
        found = self._read_version(database, subject)
        if found == self.version:
            return False
        if found is None:
            create(database)
        elif self.step is not None and found == self.version - 1:
            self.step(database)
        else:
            _refuse(subject, found, self.version, self.error, self.way_out)
        database.execute(f"PRAGMA application_id = {int.from_bytes(self.mark, 'big')}")
        database.execute(f"PRAGMA user_version = {self.version}")
        return found is None

    def is_made(self, database: sqlite3.Connection, subject: str) -> bool:
        """Whether a file that is only read holds a store of this layout; False for one without a table.

        Raises:
            error: the file is of another kind, or of another layout.
        """
        found = self._read_version(database, subject)
        if found is not None and found != self.version:
            is_behind = self.step is not None and found == self.version - 1
            way_out = "start the program that writes it, which brings it forward"
            _refuse(subject, found, self.version, self.error, way_out if is_behind else self.way_out)
        return found is not None

    def _read_version(self, database: sqlite3.Connection, subject: str) -> int | None:
        """The number of a file of this kind, None for a file without a table."""
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if application == int.from_bytes(self.mark, "big"):
            return int(version)
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables or application or version:
            _refuse_other(subject, self.error, self.way_out)
        return None


class FileLayout(msgspec.Struct, frozen=True):
    """The layout of one kind of file, or of whatever else keeps a text.

    mark: a word that no other kind has; version: its number; error: what is raised for one that is refused;
    way_out: what to do with it, as the end of a sentence.
    """

    mark: str
    version: int
    error: type[GeartrainError]
    way_out: str

    @property
    def text(self) -> str:
        """What such a file keeps: the mark and the number."""
        return f"{self.mark}/{self.version}"

    def check(self, found: object, subject: str) -> None:
        """Raise `error` unless a file is of this layout.

        Args:
            found: what it keeps in the place of `text`, None where there is nothing.
            subject: what and where it is.
        """
        mark, _, number = found.partition("/") if isinstance(found, str) else ("", "", "")
        if mark != self.mark or not (number.isascii() and number.isdecimal()):
            _refuse_other(subject, self.error, self.way_out)
        if int(number) != self.version:
            _refuse(subject, int(number), self.version, self.error, self.way_out)

    def check_json(self, raw: bytes, subject: str) -> None:
        """The same of JSON with the key `layout`; raises `msgspec.DecodeError` for what is no such file."""
        self.check(msgspec.json.decode(raw, type=_Marked).layout, subject)


class _Marked(msgspec.Struct):
    layout: Any = None


def _refuse_other(subject: str, error: type[GeartrainError], way_out: str) -> NoReturn:
    """Raise `error`: what is at `subject` has not the mark of its kind; way_out: the end of the sentence."""
    raise error(
        f"{subject} was written by another program, or by an early version of Geartrain that this one does "
        f"not follow: {way_out}"
    )


def _refuse(subject: str, found: int, known: int, error: type[GeartrainError], way_out: str) -> NoReturn:
    """Raise `error` for a number that this version does not know; way_out: from a former one."""
    if found > known:
        raise error(
            f"{subject} has layout {found}, and this version of Geartrain knows {known}: start the version "
            "that wrote it or a later one, or bring back a copy from before it"
        )
    raise error(
        f"{subject} has layout {found} of a former version, and this version of Geartrain goes on with "
        f"{known} only: {way_out}"
    )
