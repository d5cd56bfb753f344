"""The log's own parts on real files: the ledger, the disk, and the reader that looks on."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from geartrain.errors import DiskError, LedgerError
from geartrain.errors.reason import make_reason
from geartrain.graph.graph import STATE
from geartrain.ports import SplitProgress
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.log.disk import OsDisk
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.part import SegmentPart
from geartrain_cloud.log.reader import LogReader, Room, end_of
from geartrain_cloud.log.segment import encode_segment
from geartrain_cloud.ports import (
    AckCursor,
    BatchDigest,
    ClosedEpoch,
    Entry,
    EntryKind,
    LedgerChange,
    QuarantinedBatch,
    StoredSchema,
)
from tests.tidy.source import ROOT

SCHEMA = Schema("int", (Field("value", FieldType.INT64),), scalar=True)
EPOCH = b"epoch--1"
CURSOR = AckCursor(
    "d",
    "f",
    EPOCH,
    2,
    7,
    b"d" * 16,
    {("step", "split"): SplitProgress(5, START_OF_TIME, ended=True)},
    {"c": -(2**63)},
    {"step": -(2**63)},
)


def with_ledger(folder: Path, use: Callable[[SqliteLedger, int], Awaitable[None]]) -> None:
    async def run() -> None:
        ledger = SqliteLedger(folder)
        try:
            await use(ledger, await ledger.open())
        finally:
            await ledger.close()

    asyncio.run(run())


def watermark(number: int, clock: int = 0, source: str = "step") -> Entry:
    return Entry("f", 0, number, EntryKind.WATERMARK, clocks={source: clock})


def test_everything_committed_comes_back_after_opening_again(tmp_path: Path) -> None:
    batch, reason = (
        ("c", "d", EPOCH, 7, "segments/x.arrow", 3, 4),
        make_reason("some_code", steps=["a"], at=2),
    )
    entry = Entry("f", 0, 2, EntryKind.ROWS, *batch, reason=reason, clocks={"step": 9, "other": 3})
    assigned = Entry("f", 0, 1, EntryKind.ASSIGNED, device="d", source="step")
    schema = StoredSchema("f", "c", SCHEMA.schema_id, SCHEMA.to_json(), "other step")
    change = LedgerChange(
        [assigned, entry],
        [CURSOR],
        [ClosedEpoch("d", "f", b"older---", 1, 1, b"e" * 16)],
        [schema],
        [QuarantinedBatch("d", "f", EPOCH, 3, 4, "reason", b"raw")],
        [BatchDigest("d", "f", EPOCH, 7, b"d" * 16), BatchDigest("d", "f", b"older---", 1, b"e" * 16)],
        {"one": 1, "two": 2},
    )

    async def write(ledger: SqliteLedger, term: int) -> None:
        await ledger.commit(term, change)
        await ledger.commit(term, LedgerChange(counters={"two": 3}, schemas=[schema]))

    async def check(ledger: SqliteLedger, term: int) -> None:
        assert term == 2
        assert await ledger.cursors() == [CURSOR]
        assert await ledger.closed_epochs() == list(change.closed_epochs)
        assert await ledger.schemas() == [schema]
        assert await ledger.last_entries() == [entry]
        assert await ledger.devices() == [("f", "step", "d")]
        assert await ledger.segments() == {"segments/x.arrow"}
        assert await ledger.digest_at("d", "f", EPOCH, 7) == b"d" * 16
        assert await ledger.digest_at("d", "f", EPOCH, 8) is None
        assert await ledger.digest_at("d", "f", b"older---", 1) is None
        assert await ledger.counters() == {"one": 1, "two": 3}

    with_ledger(tmp_path, write)
    with_ledger(tmp_path, check)


def test_last_1024_digests_of_an_epoch_are_remembered(tmp_path: Path) -> None:
    async def use(ledger: SqliteLedger, term: int) -> None:
        for first in (1, 1_001):
            digests = [
                BatchDigest("d", "f", EPOCH, seq, seq.to_bytes(16, "big"))
                for seq in range(first, first + 1_000)
            ]
            await ledger.commit(term, LedgerChange(digests=digests))
        assert await ledger.digest_at("d", "f", EPOCH, 2_000 - 1_024) is None
        assert await ledger.digest_at("d", "f", EPOCH, 2_000 - 1_023) == (977).to_bytes(16, "big")

    with_ledger(tmp_path, use)


def test_commit_is_all_or_nothing(tmp_path: Path) -> None:
    async def use(ledger: SqliteLedger, term: int) -> None:
        await ledger.commit(term, LedgerChange([watermark(1)]))
        with pytest.raises(LedgerError, match="cannot be used"):
            await ledger.commit(term, LedgerChange([watermark(2), watermark(1)], [CURSOR], counters={"n": 1}))
        assert [entry.number for entry in await ledger.last_entries()] == [1]
        assert await ledger.cursors() == []
        assert await ledger.counters() == {}
        await ledger.commit(term, LedgerChange([watermark(2)]))

    with_ledger(tmp_path, use)


def test_old_term_changes_nothing(tmp_path: Path) -> None:
    async def use(ledger: SqliteLedger, term: int) -> None:
        with pytest.raises(LedgerError, match=r"another ingest has taken the ledger .*term is 1, ours 0"):
            await ledger.commit(term - 1, LedgerChange([watermark(1)]))
        assert await ledger.last_entries() == []

    with_ledger(tmp_path, use)


def test_every_commit_is_synced(tmp_path: Path) -> None:
    async def use(ledger: SqliteLedger, term: int) -> None:
        pragmas = [await ledger._rows(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
        assert pragmas == [[("wal",)], [(2,)]]

    with_ledger(tmp_path, use)


def test_file_of_another_program_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as other:
        other.execute("CREATE TABLE notes (text)")
    sentence = "was written by another program, .*: begin with another log folder$"
    with pytest.raises(LedgerError, match=sentence):
        with_ledger(tmp_path, never)
    with pytest.raises(LedgerError, match=sentence):
        LogReader(tmp_path).positions("f")


async def never(ledger: SqliteLedger, term: int) -> None:
    pytest.fail("the ledger has opened")


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database, but long enough to be one" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        with_ledger(tmp_path, never)


def test_ledger_that_is_not_open_says_so(tmp_path: Path) -> None:
    async def use() -> None:
        ledger = SqliteLedger(tmp_path)
        with pytest.raises(LedgerError, match="is not open"):
            await ledger.cursors()
        await ledger.close()
        await ledger.close()

    asyncio.run(use())


# The disk


def with_disk(folder: Path, use: Callable[[OsDisk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = OsDisk(folder)
        try:
            await use(disk)
        finally:
            disk.close()

    asyncio.run(run())


def test_files_are_written_listed_renamed_and_removed(tmp_path: Path) -> None:
    async def use(disk: OsDisk) -> None:
        assert await disk.list() == []
        await disk.write("a/b/one", b"1")
        await disk.write("a/two", b"a longer one")
        await disk.write("a/two", b"2")
        await disk.fsync("a/b/one")
        await disk.rename("a/two", "a/three")
        assert await disk.list() == ["a/b/one", "a/three"]
        assert await disk.list("a/b/") == ["a/b/one"]
        assert await disk.list("a/th") == ["a/three"]
        assert await disk.list("none/") == []
        assert await disk.read("a/three") == b"2"
        await disk.remove("a/three")
        await disk.remove("a/three")
        assert await disk.list() == ["a/b/one"]

    with_disk(tmp_path / "log", use)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was synced, in order."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


def test_file_and_every_folder_above_it_are_synced(tmp_path: Path, synced: list[str]) -> None:
    async def use(disk: OsDisk) -> None:
        await disk.write("a/b/one", b"1")
        assert synced == []
        await disk.fsync("a/b/one")

    with_disk(tmp_path, use)
    assert synced == [str(tmp_path / name) for name in ("a/b/one", "a/b", "a", "")]


def test_a_folder_whose_place_is_durable_is_not_synced_for_that_again(
    tmp_path: Path, synced: list[str]
) -> None:
    async def sync(disk: OsDisk, name: str) -> list[str]:
        synced.clear()
        await disk.write(name, b"1")
        await disk.fsync(name)
        return synced

    def of(*names: str) -> list[str]:
        return [str(tmp_path / name) for name in names]

    async def use(disk: OsDisk) -> None:
        assert await sync(disk, "a/b/one") == of("a/b/one", "a/b", "a", "")
        assert await sync(disk, "a/b/two") == of("a/b/two", "a/b")
        assert await sync(disk, "a/b/one") == of("a/b/one", "a/b")
        assert await sync(disk, "a/c/one") == of("a/c/one", "a/c", "a")
        assert await sync(disk, "top") == of("top", "")
        shutil.rmtree(tmp_path / "a" / "b")
        assert await sync(disk, "a/b/one") == of("a/b/one", "a/b", "a")

    with_disk(tmp_path, use)


def test_a_folder_that_another_process_made_is_synced_once(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)

    async def use(disk: OsDisk) -> None:
        await disk.write("a/b/one", b"1")
        await disk.fsync("a/b/one")

    with_disk(tmp_path, use)
    assert synced == [str(tmp_path / name) for name in ("a/b/one", "a/b", "a", "")]


@pytest.mark.parametrize("good", [1, 2, 3])
def test_a_folder_is_durable_only_when_all_above_it_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    calls: list[str] = []

    def fsync(descriptor: int) -> None:
        calls.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if len(calls) == good + 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)

    async def use(disk: OsDisk) -> None:
        await disk.write("a/b/one", b"1")
        with pytest.raises(DiskError, match="cannot be made durable: Input/output error"):
            await disk.fsync("a/b/one")
        await disk.fsync("a/b/one")

    with_disk(tmp_path, use)
    assert calls[good + 1 :] == [str(tmp_path / name) for name in ("a/b/one", "a/b", "a", "")]


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/passwd"])
def test_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    async def use(disk: OsDisk) -> None:
        with pytest.raises(DiskError, match="would lie outside"):
            await disk.write(name, b"")

    with_disk(tmp_path / "log", use)


def test_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    async def use(disk: OsDisk) -> None:
        with pytest.raises(DiskError, match=r"file/one cannot be written: (Not a directory|File exists)"):
            await disk.write("file/one", b"1")
        with pytest.raises(DiskError, match="none cannot be made durable: No such file"):
            await disk.fsync("none")
        with pytest.raises(DiskError, match="none cannot be read: No such file"):
            await disk.read("none")

    with_disk(tmp_path, use)


# The reader


def write_log(folder: Path) -> None:
    """Assigned; of channel c rows 0-1, 2 and 3-5 (in one segment) with a watermark and a loss between."""
    rows = [
        ColumnBatch([list(range(a, b))], list(range(a, b)), ["s"] * (b - a), list(range(a, b)))
        for a, b in RUNS
    ]
    name = "segments/f/c/p0/000000000002-1.arrow"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(
        encode_segment(SCHEMA, [SegmentPart("d", n, part) for n, part in enumerate(rows)])
    )
    entries = [Entry("f", 0, 1, EntryKind.ASSIGNED, device="d", source="step"), watermark(3, 15)]
    for number, clock, (first, end) in zip((2, 4, 6), (10, 20, 30), RUNS, strict=True):
        batch = ("c", "d", EPOCH, number, name, first, end - first)
        entries.append(Entry("f", 0, number, EntryKind.ROWS, *batch, clocks={"step": clock}))
    entries.append(Entry("f", 0, 5, EntryKind.DROPPED, "e", "d", EPOCH, 5, count=0, clocks={"step": 20}))

    async def use(ledger: SqliteLedger, term: int) -> None:
        schema = StoredSchema("f", "c", SCHEMA.schema_id, SCHEMA.to_json())
        await ledger.commit(term, LedgerChange(entries, [CURSOR], schemas=[schema], counters={"n": 2}))

    with_ledger(folder, use)


RUNS = ((0, 2), (2, 3), (3, 6))


def test_reader_gives_what_was_committed(tmp_path: Path) -> None:
    write_log(tmp_path)
    reader = LogReader(tmp_path)
    assert reader.ready()
    assert reader.positions("f") == {"0": 6}
    assert reader.keys() == ["0"]
    assert reader.positions("none") == {}
    clocks = [reader.clocks("f", "0", position).get("step") for position in range(7)]
    assert clocks == [None, None, 10, 15, 20, 20, 30]
    assert reader.clocks_at("f", {"0": 4}) == {"step": 20}
    assert reader.clocks_at("f", {}) == {}
    assert [entry.number for entry in reader.entries("f", "0", 1, 4)] == [2, 3, 4]
    assert [entry.number for entry in reader.entries("f", "0", 1, 6, {"c"})] == [2, 4, 6]
    assert reader.counts("f", "0", 2, 6) == {"c": 4}
    rows = [reader.table(e).column("value").to_pylist() for e in reader.entries("f", "0", 0, 9) if e.count]
    assert rows == [[0, 1], [2], [3, 4, 5]]
    assert reader.schema("f", "c") == SCHEMA
    assert reader.schema("f", "other") is None
    assert reader.cursors("f") == [CURSOR]
    assert reader.assigned("f") == ["d"]
    assert reader.counters() == {"n": 2}


@pytest.mark.parametrize(
    ("after", "rows_max", "upto"),
    [
        (0, 100, 6),
        (0, 1, 1),
        (1, 1, 2),
        (1, 2, 3),
        (1, 3, 5),
        (0, 5, 5),
        (0, 6, 6),
        (5, 1, 6),
        (6, 1, 6),
        (9, 1, 9),
    ],
)
def test_limit_takes_whole_entries_and_at_least_one(
    tmp_path: Path, after: int, rows_max: int, upto: int
) -> None:
    write_log(tmp_path)
    assert LogReader(tmp_path).limit("f", "0", after, Room(rows_max)) == upto


@pytest.mark.parametrize(
    ("room", "upto"),
    [
        (Room(1, 1), 3),
        (Room(9, 4_485), 3),
        (Room(9, 4_486), 4),
        (Room(9, 8_971), 5),
        (Room(10, 8_971), 6),
        (Room(10, 8_970), 4),
        (Room(10, 8_971, 699), 5),
        (Room(10, 8_971, 700), 6),
        (Room(10, 8_971, 100), 3),
        (Room(10, 8_971, 1), 2),
    ],
)
def test_a_micro_batch_is_bounded_by_rows_and_by_cells_of_moved_state_and_by_bytes(
    room: Room, upto: int
) -> None:
    counts = {2: (0, ""), 3: (1, STATE), 4: (4_485, STATE), 5: (4_485, STATE), 6: (10, "readings")}
    sizes = {2: 0, 3: 100, 4: 200, 5: 200, 6: 200}
    extents = [(number, count, 0, channel, sizes[number]) for number, (count, channel) in counts.items()]
    assert end_of(extents, 1, room) == upto


def test_reader_says_what_is_not_there(tmp_path: Path) -> None:
    reader = LogReader(tmp_path / "log")
    assert not reader.ready()
    with pytest.raises(LedgerError, match=r"there is no ledger in .*: start gear-ingest"):
        reader.positions("f")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "ledger.sqlite").touch()
    assert not reader.ready()
    (tmp_path / "log" / "ledger.sqlite").unlink()
    write_log(tmp_path / "log")
    with pytest.raises(LedgerError, match="f/0 has no position 7"):
        reader.clocks("f", "0", 7)
    with pytest.raises(LedgerError, match="entry 1 of f/0 holds no rows"):
        reader.table(reader.entries("f", "0", 0, 1)[0])
    name = "segments/f/c/p0/000000000002-1.arrow"
    beyond = Entry("f", 0, 9, EntryKind.ROWS, "c", segment=name, first_row=5, count=2)
    with pytest.raises(LedgerError, match="shorter than the ledger says"):
        reader.table(beyond)


def test_reader_sees_a_live_ledger_from_another_process_and_cannot_write(tmp_path: Path) -> None:
    write_log(tmp_path)

    async def use(ledger: SqliteLedger, term: int) -> None:
        reader = LogReader(tmp_path)
        for number in (7, 8):
            await ledger.commit(term, LedgerChange([watermark(number, 50)]))
            assert reader.positions("f")["0"] == number
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.apply(LogReader.positions, (reader, "f"))["0"] == number
        with reader._ledger() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM entries")

    with_ledger(tmp_path, use)


def test_data_files_page_names_every_table_column_and_counter(tmp_path: Path) -> None:
    write_log(tmp_path)
    page = (ROOT / "docs" / "data_files.md").read_text(encoding="utf-8").partition("## In the data centre")[2]
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as ledger:
        tables = [name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {row[1] for table in tables for row in ledger.execute(f"PRAGMA table_info({table})")}
    unnamed = [name for name in {*tables, *columns, *(c.value for c in Counter)} if f"`{name}`" not in page]
    assert sorted(unnamed) == []
