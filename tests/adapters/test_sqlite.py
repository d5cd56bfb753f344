"""SQLite files as we keep them: their mode, what a transaction leaves, and what each fault says to do."""

from __future__ import annotations

import hashlib
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from geartrain.adapters.sqlite import (
    Fault,
    fault_of,
    open_to_read,
    open_to_write,
    row_checksum,
    transaction,
    translated,
)
from geartrain.errors import LedgerError
from tests.waiting import WAIT_S


def numbers(path: Path) -> list[int]:
    with closing(open_to_read(path, busy_s=1)) as database:
        return [number for (number,) in database.execute("SELECT n FROM numbers ORDER BY n")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "folder" / "file.sqlite"
    with closing(open_to_write(found, busy_s=1)) as database, transaction(database):
        database.execute("CREATE TABLE numbers (n INTEGER)")
        database.execute("INSERT INTO numbers VALUES (1)")
    return found


def test_file_folder_and_journals_are_private_and_durable(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.sqlite"
    with closing(open_to_write(path, busy_s=1, settings=("cache_size = -512",))) as database:
        database.execute("CREATE TABLE numbers (n INTEGER)")
        settings = {
            name: database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "fullfsync", "cache_size")
        }
        modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    assert settings == {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1, "cache_size": -512}
    assert modes == dict.fromkeys(("file.sqlite", "file.sqlite-wal", "file.sqlite-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_file_that_others_could_read_is_made_private(path: Path) -> None:
    path.chmod(0o644)
    open_to_write(path, busy_s=1).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def insert_and_raise(database: sqlite3.Connection, raised: BaseException) -> None:
    with transaction(database):
        database.execute("INSERT INTO numbers VALUES (2)")
        raise raised


@pytest.mark.parametrize("raised", [ValueError("no"), KeyboardInterrupt()])
def test_transaction_that_fails_leaves_no_trace(path: Path, raised: BaseException) -> None:
    with closing(open_to_write(path, busy_s=1)) as database:
        with pytest.raises(type(raised)):
            insert_and_raise(database, raised)
        with transaction(database):
            database.execute("INSERT INTO numbers VALUES (3)")
    assert numbers(path) == [1, 3]


def test_transaction_outlives_the_death_of_its_process(path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from geartrain.adapters.sqlite import *\n"
        "database = open_to_write(Path(sys.argv[1]), busy_s=1)\n"
        "with transaction(database): database.execute('INSERT INTO numbers VALUES (2)')\n"
        "database.execute('BEGIN'); database.execute('INSERT INTO numbers VALUES (3)'); os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=WAIT_S)
    assert (done.returncode, numbers(path)) == (9, [1, 2])


def test_reader_writes_nothing_and_sees_whole_transactions(path: Path) -> None:
    with closing(open_to_write(path, busy_s=1)) as writer, closing(open_to_read(path, busy_s=1)) as reader:
        with transaction(writer):
            writer.execute("INSERT INTO numbers VALUES (2)")
            assert reader.execute("SELECT count(*) FROM numbers").fetchone() == (1,)
        assert reader.execute("SELECT count(*) FROM numbers").fetchone() == (2,)
        with pytest.raises(sqlite3.OperationalError):
            reader.execute("INSERT INTO numbers VALUES (3)")


def execute(path: Path, statement: str, words: dict[Fault, str] | None = None) -> None:
    with (
        translated(LedgerError, f"the ledger {path}", words),
        closing(open_to_write(path, busy_s=0)) as database,
        transaction(database),
    ):
        database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
        database.execute(statement)


def sentence(path: Path, statement: str = "INSERT INTO numbers VALUES (2)") -> str:
    with pytest.raises(LedgerError) as raised:
        execute(path, statement)
    assert isinstance(raised.value.__cause__, sqlite3.Error | OSError)
    return str(raised.value)


def test_each_fault_says_what_to_do(path: Path, tmp_path: Path) -> None:
    with closing(open_to_write(path, busy_s=0)) as other, transaction(other):
        assert sentence(path) == f"the ledger {path} {Fault.IN_USE.value}"
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"no database at all" * 100)
    words = Fault.DAMAGED.value.format(error="file is not a database")
    assert sentence(damaged) == f"the ledger {damaged} {words}"
    with closing(open_to_read(path, busy_s=0)) as reader, pytest.raises(sqlite3.Error) as raised:
        reader.execute("DELETE FROM numbers")
    assert fault_of(raised.value) is Fault.READ_ONLY
    assert sentence(path, "SELECT unknown").startswith(f"the ledger {path} cannot be used: no such column")
    folder = tmp_path / "folder"
    words = Fault.NOT_OPENED.value.format(error="unable to open database file")
    assert sentence(folder) == f"the ledger {folder} {words}"


def test_full_disk_is_named_in_the_words_of_the_caller(path: Path) -> None:
    more = "CREATE TABLE more AS SELECT zeroblob(1000000)"
    assert sentence(path, more) == f"the ledger {path} {Fault.DISK_FULL.value}"
    with pytest.raises(LedgerError, match=r"file\.sqlite has no room: tidy up"):
        execute(path, more, {Fault.DISK_FULL: "has no room: tidy up"})
    assert numbers(path) == [1]


def test_row_checksum_is_that_of_the_row_as_msgpack() -> None:
    row = (1, 2.5, "text", b"bytes", None)
    for size in (8, 16):
        expected = hashlib.blake2b(msgspec.msgpack.encode(list(row)), digest_size=size).digest()
        assert row_checksum(row, size) == expected
    assert row_checksum(row, 8) != row_checksum((1, 2.5, "text", "bytes", None), 8)


def test_a_file_opened_again_keeps_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "numbers.sqlite"
    look = (
        f"import sqlite3; d = sqlite3.connect({str(path)!r}); d.execute('SELECT * FROM numbers'); d.close()"
    )
    with closing(open_to_write(path, busy_s=1)) as first:
        first.execute("CREATE TABLE numbers (n)")
        with closing(open_to_write(path, busy_s=1)):
            # The last one to close deletes the write-ahead log: it must not take itself for that.
            subprocess.run([sys.executable, "-c", look], check=True)
            assert path.with_name("numbers.sqlite-shm").exists()
        first.execute("INSERT INTO numbers VALUES (1)")
    assert numbers(path) == [1]
