"""A spool's files, spoiled, opened and read: as bytes, in what SQLite reads first, the WAL, behind the seal.

One of the readers of `tests.security.fuzz`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random

from geartrain.errors import SpoolError, WireError
from geartrain.ports import SplitProgress, SpoolCommit
from geartrain_edge.spool.backlog import Identity
from geartrain_edge.spool.format import LAYOUT
from geartrain_edge.spool.gaps import is_intact, replacement
from geartrain_edge.spool.seal import Seal, checksum
from geartrain_edge.spool.spool import SqliteSpool
from tests.proofs.test_bit_flips_spool import batches_of
from tests.security.measured import Memory, Outcome, fast_folder, run_inline
from tests.security.spoil import SEED, spoiled

PAGE_BYTES = 4_096
_WHO = Identity("d1", "fleet", b"epoch--2")
_VERSION_AT = 60
"""Where SQLite keeps `user_version`."""
_COLUMNS = {
    "spool": ("device", "flow", "epoch", "last_seq", "last_digest", "acked_seq", "acked_digest"),
    "batches": ("seq", "header", "body", "digest", "count", "rows", "first_seq", "seal", "mark"),
    "positions": ("step", "split", "position", "max_time", "ended"),
    "state": ("step", "key", "value"),
    "counters": ("name", "total"),
}
_VALUES: tuple[object, ...] = (
    0, -1, 2**63 - 1, -(2**63), 1.5, float("inf"), "", "x", "d1", b"", b"[]", b"[[1,2,3]]", b"\xff" * 16,
    b"[" * 2_000, b"\x00" * 50_000, "\x00\x1b[2J", "Ω" * 300,
)  # fmt: skip


def spool(numbers: range) -> Outcome:
    """A spool's files, spoiled, opened and read."""
    with fast_folder() as folder:
        path = Path(folder) / "spool.sqlite"
        found = list[tuple[bytes, bytes]]()
        asyncio.run(_fill(path, lambda: found.append((path.read_bytes(), Path(f"{path}-wal").read_bytes()))))
        return run_inline(_spool(numbers, path, path.read_bytes(), found[0]))


async def _fill(path: Path, look: Callable[[], None]) -> None:
    """Make a spool; `look` is called while its files are as a killed agent leaves them."""
    opened = SqliteSpool(path)
    await opened.open("d1", "fleet", b"epoch--2")
    for batch in batches_of(6):
        progress = {("quotes", f"d1/{n}"): SplitProgress(batch.seq, batch.seq * 10) for n in range(3)}
        state = {("sums", bytes([n])): bytes([batch.seq]) * 40 for n in range(5)}
        await opened.commit(SpoolCommit([batch], progress, state, {"records_read": batch.seq}))
    look()
    await opened.close()


async def _spool(numbers: range, path: Path, whole: bytes, live: tuple[bytes, bytes]) -> Outcome:
    memory, refused = Memory(numbers), 0
    names = [str(path), f"{path}-wal", f"{path}-shm"]
    for number in numbers:
        memory.look(number)
        rng = Random(SEED + number)
        way, wal = rng.random(), b""
        if way < 0.45:
            data = spoiled(rng, [whole])
        elif way < 0.7:
            data = _head_spoiled(rng, whole)
        elif way < 0.9:
            data, wal = live[0], spoiled(rng, [live[1]])
        else:
            data = _value_spoiled(rng, whole)
        for name, content in zip(names, (data, wal, b""), strict=True):
            _put(name, content)
        opened = SqliteSpool(path)
        try:
            await opened.open("d1", "fleet", b"epoch--2")
            batches = await opened.read(0, 100)
            for batch in batches:
                is_intact(b"", batch)
            if batches:
                replacement(_WHO, batches[number % len(batches)])
        except (SpoolError, WireError):
            refused += 1
        finally:
            with suppress(SpoolError):
                await opened.close()
    return Outcome("spool", len(numbers) - refused, refused, memory.growth_bytes())


def _put(name: str, content: bytes) -> None:
    """A new file: what an exception still holds of the connection before may lock the one that is there."""
    with suppress(FileNotFoundError):
        os.unlink(name)  # noqa: PTH108 - a path's object for each costs more than the call
    if content:
        with open(name, "wb") as file:  # noqa: PTH123 - the same
            file.write(content)


def _head_spoiled(rng: Random, whole: bytes) -> bytes:
    """The file's first 100 bytes, the head of a page or its list of cells, or the format's number."""
    data = bytearray(whole)
    if rng.random() < 0.2:
        data[_VERSION_AT : _VERSION_AT + 4] = rng.choice((0, 2, 3, LAYOUT.version + 1, 2**31)).to_bytes(
            4, "big"
        )
    page = rng.randrange(len(data) // PAGE_BYTES)
    at = page * PAGE_BYTES + (0 if page and rng.random() < 0.5 else 100 * (not page)) + rng.randrange(40)
    if page == 0 and rng.random() < 0.5:
        at = rng.randrange(100)
    for _ in range(rng.randrange(1, 4)):
        data[at] = rng.choice((0, 1, 2, 5, 10, 13, 127, 128, 255, data[at] ^ 1 << rng.randrange(8)))
        at = min(at + rng.randrange(4), len(data) - 1)
    return bytes(data)


def _value_spoiled(rng: Random, whole: bytes) -> bytes:
    """One value that is not what it should be, with all checksums right, as damaged memory would leave it."""
    data = bytearray(whole)
    data[18:20] = b"\x01\x01"  # no WAL, which a database in memory cannot have
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.deserialize(bytes(data))
        table = rng.choice(tuple(_COLUMNS))
        column, value = rng.choice(_COLUMNS[table]), rng.choice(_VALUES)
        if table == "batches" and rng.random() < 0.3:
            column = rng.choice(("rows", "count", "first_seq", "seal"))
        with suppress(sqlite3.IntegrityError):  # what the tables themselves refuse stays as it was
            database.execute(_update(table, column), (value, rng.randrange(20)))
        if table == "batches" and rng.random() < 0.7:
            _mark_again(database)
        seal = Seal()
        seal.load(database)
        seal.write(database)
        return database.serialize()


def _mark_again(database: sqlite3.Connection) -> None:
    query = "SELECT seq, count, rows, first_seq, seal FROM batches"
    for row in database.execute(query).fetchall():
        database.execute("UPDATE batches SET mark = ? WHERE seq = ?", (checksum(row), row[0]))


def _update(table: str, column: str) -> str:
    key = {"spool": "one", "batches": "seq", "positions": "split", "state": "key", "counters": "name"}[table]
    where = f"{key} = (SELECT {key} FROM {table} LIMIT 1 OFFSET ? % (SELECT count(*) FROM {table}))"
    return f"UPDATE {table} SET {column} = ? WHERE {where}"
