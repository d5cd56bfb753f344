"""Every bit of a spool's file flipped, one at a time: it is detected or does no harm.

Detected: the spool refuses to open or to be read, with one sentence; or a batch no longer fits the running
digest, which is what the agent declares as damaged. Harmless: all that it holds is as it was. Here some bytes
of every page; `python -m tests.proofs.test_bit_flips_spool` takes every bit of every page, and prints what
became of each.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from geartrain.errors import SpoolError
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch, SpoolImage
from geartrain.wire.codec import encode_header
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import BatchKind, Header
from geartrain_edge.spool.gaps import is_intact
from geartrain_edge.spool.spool import SqliteSpool

EPOCH = b"epoch..8"
PAGE_BYTES = 1_024
BATCHES = 24
TABLES = ("spool", "batches", "positions", "state", "counters")


@dataclass(frozen=True)
class Spool:
    """A spool's file, all that it holds, and the table that each of its pages belongs to, from 1."""

    path: Path
    image: SpoolImage
    batches: list[SpooledBatch]
    pages: dict[int, str]


def batches_of(count: int) -> list[SpooledBatch]:
    """Batches that follow on each other, as the agent seals them."""
    made, digest = [], FIRST_DIGEST
    for seq in range(1, count + 1):
        marks = {"quotes": seq}
        header = encode_header(Header(BatchKind.DATA, "fleet", "d1", EPOCH, seq, watermarks=marks))
        body = bytes((seq * n) % 251 for n in range(200))
        digest = next_digest(digest, header, body)
        made.append(SpooledBatch(seq, header, body, digest, 3, ((seq, "quotes", 3),)))
    return made


async def held(path: Path) -> tuple[SpoolImage, list[SpooledBatch]]:
    """All that the spool at `path` gives; raises `SpoolError`."""
    spool = SqliteSpool(path)
    try:
        image = await spool.open("d1", "fleet", b"fresh..!")
        return image, await spool.read(0, 1_000)
    finally:
        await spool.close()


def make_spool(folder: Path) -> Spool:
    """A spool of several pages of each kind, closed, so that all is in the one file."""
    path = folder / "spool.sqlite"

    async def fill() -> None:
        spool = SqliteSpool(path)
        await spool.open("d1", "fleet", EPOCH)
        for batch in batches_of(BATCHES):
            progress = {("quotes", f"d1/{n}"): SplitProgress(batch.seq, batch.seq * 10) for n in range(3)}
            state = {("sums", bytes([n])): bytes([batch.seq]) * 40 for n in range(40)}
            await spool.commit(SpoolCommit([batch], progress, state, {"records_read": batch.seq}))
        await spool.trim(4)
        await spool.close()

    asyncio.run(fill())
    image, batches = asyncio.run(held(path))
    pages = {}
    with closing(sqlite3.connect(path)) as database:
        (count,) = database.execute("PRAGMA page_count").fetchone()
        roots = dict(database.execute("SELECT rootpage, name FROM sqlite_schema WHERE rootpage > 0"))
    raw = path.read_bytes()
    for number in range(1, count + 1):
        pages[number] = roots.get(number, "schema" if number == 1 else "")
    for root, name in roots.items():
        pages.update(dict.fromkeys(_children(raw, root), name))
    return Spool(path, image, batches, pages)


def _children(raw: bytes, page: int) -> list[int]:
    """The pages below a page of a b-tree, by SQLite's file format."""
    data = raw[(page - 1) * PAGE_BYTES : page * PAGE_BYTES]
    if data[0] not in (0x02, 0x05):
        return []
    cells = int.from_bytes(data[3:5], "big")
    starts = [int.from_bytes(data[12 + 2 * n : 14 + 2 * n], "big") for n in range(cells)]
    found = [int.from_bytes(data[at : at + 4], "big") for at in starts]
    found.append(int.from_bytes(data[8:12], "big"))
    return found + [below for one in found for below in _children(raw, one)]


def flip(spool: Spool, folder: Path, offsets: Iterable[int]) -> Counter[tuple[str, str]]:
    """Flip every bit of these bytes of the file; returns what became of how many, by the table's name."""
    whole, copy = spool.path.read_bytes(), folder / "flipped.sqlite"
    became: Counter[tuple[str, str]] = Counter()
    for offset in offsets:
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[offset] ^= 1 << bit
            for name in ("", "-wal", "-shm"):
                Path(f"{copy}{name}").unlink(missing_ok=True)
            copy.write_bytes(damaged)
            table = spool.pages[offset // PAGE_BYTES + 1]
            became[table, judged(spool, copy, f"{table}, byte {offset}, bit {bit}")] += 1
    return became


def judged(spool: Spool, copy: Path, where: str) -> str:
    """What became of a flip; an assertion for one that does harm and is not detected."""
    try:
        image, batches = asyncio.run(held(copy))
    except SpoolError as error:
        if str(copy) not in str(error) or "\n" in str(error):
            raise AssertionError(f"{where}: not one sentence about the file: {error}") from error
        return "refused"
    if (image, batches) == (spool.image, spool.batches):
        return "harmless"
    before = image.acked_digest
    for seq, batch in enumerate(batches, image.acked_seq + 1):
        if batch.seq != seq or not before or not is_intact(before, batch):
            return "a batch is found damaged"
        before = batch.digest
    if before != image.digest or image.last_seq != image.acked_seq + len(batches):
        return "a batch is found damaged"
    raise AssertionError(f"{where}: the spool holds what was never committed, and nobody says so")


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Spool:
    return make_spool(tmp_path_factory.mktemp("flips"))


def test_flipped_bits_of_a_spool_are_detected_or_harmless(spool: Spool, tmp_path: Path) -> None:
    assert set(spool.pages.values()) >= {"schema", *TABLES}
    offsets = [
        (page - 1) * PAGE_BYTES + at
        for page in spool.pages
        for at in (*range(0, 12, 3), *range(12, PAGE_BYTES, 331))
    ]
    became = flip(spool, tmp_path, offsets)
    for table in ("spool", "batches", "positions", "state"):
        found = {what for name, what in became if name == table}
        assert found & {"refused", "a batch is found damaged"}, table


def main() -> None:
    """Every bit of every page; prints figures."""
    folder = Path(tempfile.mkdtemp())
    try:
        spool = make_spool(folder)
        step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
        became = flip(spool, folder, range(0, len(spool.pages) * PAGE_BYTES, step))
        for (table, what), count in sorted(became.items()):
            print(f"{count:8,}  {table or 'free':10} {what}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
