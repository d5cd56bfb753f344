"""SQLite files as this project keeps them: opened, written in transactions, and read beside a writer.

Under the spool, the ledger, the outbox and the tables. SQLite itself checks no content, so rows can carry a
checksum. Guarantees: a file and its journals are of mode 0600 from their first moment. A transaction is
durable when it returns (write-ahead log, synchronous = FULL) and leaves no trace when it fails. A reader
never writes and never holds a writer up. An error of SQLite or the system becomes one sentence that says what
to do.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from geartrain.errors import GeartrainError

_encode = msgspec.msgpack.Encoder().encode


class Fault(Enum):
    """What can be wrong with a file where a person can do something about it, and what to do.

    The value ends a sentence that the file's name begins; `{error}` stands for SQLite's own words.
    """

    IN_USE = "is in use by another program: stop that one, or wait for it to end"
    DAMAGED = "is damaged, or not a file of ours ({error}): restore it from a copy, or name another"
    DISK_FULL = "cannot be written, for the disk is full: make room and start again"
    READ_ONLY = "cannot be written, this program may only read it: make the file and its folder writable"
    NO_WAL = "cannot be kept where it lies, SQLite has no write-ahead log there: use a local file system"
    NOT_OPENED = "cannot be opened ({error}): let this program write to its folder, and make no folder of it"


_FAULTS = {
    sqlite3.SQLITE_BUSY: Fault.IN_USE,
    sqlite3.SQLITE_LOCKED: Fault.IN_USE,
    sqlite3.SQLITE_CORRUPT: Fault.DAMAGED,
    sqlite3.SQLITE_NOTADB: Fault.DAMAGED,
    sqlite3.SQLITE_FULL: Fault.DISK_FULL,
    sqlite3.SQLITE_READONLY: Fault.READ_ONLY,
    sqlite3.SQLITE_PERM: Fault.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: Fault.NOT_OPENED,
}


class NoWalError(sqlite3.OperationalError):
    """SQLite cannot keep a write-ahead log where the file lies, as on most network file systems."""


def open_to_write(
    path: Path, *, busy_s: float, one_thread: bool = False, settings: Sequence[str] = ()
) -> sqlite3.Connection:
    """Open or create the file at `path`, and its folder, to be written in explicit transactions.

    Args:
        path: the file; its folder is made with mode 0700, the file with 0600.
        busy_s: seconds that a statement waits for another writer.
        one_thread: whether SQLite refuses calls from any thread but this one.
        settings: further pragmas, `name = value`, set before the write-ahead log is opened.

    Returns:
        A connection with journal_mode = WAL, synchronous = FULL and no transaction of its own accord.

    Raises:
        sqlite3.Error, OSError: see `translated`.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQLite gives its write-ahead log and shared memory the mode of this file. Only one that is new is opened
    # here: to close it would drop all locks of this process on it (sqlite.org/howtocorrupt.html, 2.2).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    database = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=one_thread)
    try:
        for setting in settings:
            database.execute(f"PRAGMA {setting}")
        if database.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise NoWalError("the file system keeps no write-ahead log")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA fullfsync = 1")  # macOS: an fsync that reaches the disk
    except BaseException:
        database.close()
        raise
    return database


def open_to_read(path: Path, *, busy_s: float) -> sqlite3.Connection:
    """Open the existing file at `path` only to read, beside whoever writes it.

    Args:
        path: the file.
        busy_s: seconds that a statement waits where the file is locked.

    Returns:
        A connection on which nothing can be written.

    Raises:
        sqlite3.Error: see `translated`.
    """
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=busy_s, isolation_level=None
    )
    try:
        database.execute("PRAGMA query_only = ON")
    except BaseException:
        database.close()
        raise
    return database


@contextmanager
def transaction(database: sqlite3.Connection, how: str = "IMMEDIATE") -> Iterator[None]:
    """Commit at the end of the block; leave no trace when it, or the commit itself, raises.

    Args:
        database: from `open_to_write`.
        how: IMMEDIATE takes the writer's lock now; EXCLUSIVE keeps readers out, too.
    """
    database.execute(f"BEGIN {how}")
    try:
        yield
        database.execute("COMMIT")
    finally:
        if database.in_transaction:  # an error of the disk at the commit has rolled back by itself
            database.execute("ROLLBACK")


@contextmanager
def translated(
    kind: type[GeartrainError], subject: str, words: Mapping[Fault, str] | None = None
) -> Iterator[None]:
    """Have what SQLite and the system say in the block be an error of one sentence.

    Args:
        kind: the error to raise.
        subject: what the sentence is about, such as "the ledger /log/ledger.sqlite".
        words: the ends of the sentence for some faults, where the general ones do not fit.

    Raises:
        kind: for a `sqlite3.Error` or an `OSError`, whose cause it keeps.
    """
    try:
        yield
    except sqlite3.Error as error:
        fault = fault_of(error)
        said = "cannot be used: {error}" if fault is None else (words or {}).get(fault, fault.value)
        own = " ".join(str(error).split())  # it may quote a damaged schema, with its lines
        raise kind(f"{subject} {said.replace('{error}', own)}") from error
    except OSError as error:
        raise kind(f"{subject} cannot be used: {error.strerror or error}") from error


def fault_of(error: sqlite3.Error) -> Fault | None:
    """Which fault an error of SQLite tells of; None where it is something else."""
    if isinstance(error, NoWalError):
        return Fault.NO_WAL
    return _FAULTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)


def is_in_use(error: BaseException) -> bool:
    """Whether an error comes of a file that another program has, by what it was raised from."""
    return any(
        isinstance(cause, sqlite3.Error) and fault_of(cause) is Fault.IN_USE for cause in _causes(error)
    )


def is_full_disk(error: BaseException) -> bool:
    """Whether an error comes of a disk without room, of SQLite or the system, by what it was raised from."""
    return any(
        fault_of(cause) is Fault.DISK_FULL
        if isinstance(cause, sqlite3.Error)
        else isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def row_checksum(values: Sequence[Any], size_bytes: int) -> bytes:
    """The checksum of a row: the blake2b of its values as one msgpack array.

    Args:
        values: as SQLite gives them back: int, float, str, bytes or None.
        size_bytes: how long the checksum is, 1 to 64.
    """
    return blake2b(_encode(tuple(values)), digest_size=size_bytes).digest()
