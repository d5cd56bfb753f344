"""Files of a directory that are still being written, and files that grow after they were read."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from geartrain import Record
from geartrain.source import Batch, Split
from geartrain_devices import complete_files
from geartrain_devices.complete_files import OPEN_TOLD_S, CompleteFiles, is_open_for_writing
from geartrain_devices.directory import CsvDirectory
from tests.waiting import WAIT_S

HEADER = "time,sensor,celsius\n"


class Reading(Record):
    sensor: str
    celsius: float


class Watched(CsvDirectory[Reading]):
    """Whose clock is the test's."""

    now_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def row(second: int, sensor: str, celsius: str) -> str:
    return f"2024-01-01T00:00:{second:02d}Z,{sensor},{celsius}"


def split_of(source: CsvDirectory[Reading]) -> Split:
    (split,) = source.open("d1", "readings", Reading)
    return split


def read(split: Split, position: int = 0, limit: int = 100) -> Batch:
    return asyncio.run(split.read(position, limit))


def values_of(batch: Batch) -> list[tuple[str, float]]:
    assert not batch.rejects
    return [(value.sensor, value.celsius) for value in batch.values]


@pytest.fixture
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that does not tell who has a file open."""
    monkeypatch.setattr(complete_files, "is_open_for_writing", lambda path: None)


def test_the_system_tells_whether_a_file_is_open_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("w") as file:
        file.write("x")
        assert is_open_for_writing(path) in (True, None)
    assert is_open_for_writing(path) in (False, None)
    with path.open() as _:
        assert is_open_for_writing(path) in (False, None)
    assert is_open_for_writing(tmp_path / "none") is None


def test_asking_hurts_no_writer(tmp_path: Path) -> None:
    """Another thread opens and writes the file all the while; a lease that it breaks ends nobody."""
    path, errors, stop = tmp_path / "a", list[BaseException](), threading.Event()

    def write() -> None:
        try:
            for _ in range(300):
                with path.open("a") as file:
                    file.write("x")
        except OSError as error:
            errors.append(error)
        finally:
            stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not stop.is_set():
        is_open_for_writing(path)
    writer.join(WAIT_S)
    assert not errors
    assert path.stat().st_size == 300


@pytest.mark.usefixtures("_untold")
def test_a_file_that_pauses_is_read_once_it_is_whole_and_holds_those_behind_it(tmp_path: Path) -> None:
    source = Watched(path=str(tmp_path), settle_ms=5_000)
    split = split_of(source)
    with (tmp_path / "b.csv").open("w") as file:
        file.write(HEADER + row(0, "b", "1") + "\n" + row(1, "b", "2"))
        file.flush()
        (tmp_path / "c.csv").write_text(HEADER + row(59, "c", "1") + "\n")
        assert values_of(read(split)) == []
        source.now_s = 4.9
        assert values_of(read(split)) == []
        file.write("2.5\n" + row(2, "b", "3") + "\n" + row(3, "b", "4"))
    assert values_of(read(split)) == []
    source.now_s = 9.8
    assert values_of(read(split)) == []
    source.now_s = 9.9
    # Its last line has no end, which a file that is complete needs not.
    assert values_of(read(split)) == [("b", 1), ("b", 22.5), ("b", 3), ("b", 4), ("c", 1)]


def test_a_file_is_read_once_its_writer_has_closed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_open = True
    monkeypatch.setattr(complete_files, "is_open_for_writing", lambda path: is_open and path.name == "b.csv")
    (tmp_path / "b.csv").write_text(HEADER + row(0, "b", "1"))
    (tmp_path / "c.csv").write_text(HEADER + row(1, "c", "1"))
    source = Watched(path=str(tmp_path), settle_ms=0)
    split = split_of(source)
    for now_s in (0.0, OPEN_TOLD_S, OPEN_TOLD_S + 1):
        source.now_s = now_s
        assert values_of(read(split)) == []
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("file_open: source readings: file b.csv and those behind it wait: a process has")
    is_open = False
    assert values_of(read(split)) == [("b", 1), ("c", 1)]


def test_files_that_are_old_and_closed_or_that_end_the_input_need_no_watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complete_files, "is_open_for_writing", lambda path: False)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(HEADER + row(0, name[0], "1"))
    os.utime(tmp_path / "a.csv", (1_700_000_000, 1_700_000_000))
    source = Watched(path=str(tmp_path), settle_ms=60_000, last="end")
    split = split_of(source)
    first = read(split)
    assert (values_of(first), first.ended) == ([("a", 1)], False)
    (tmp_path / "end").touch()
    rest = read(split, first.position)
    assert (values_of(rest), rest.ended) == ([("b", 1)], True)


@pytest.mark.usefixtures("_untold")
def test_an_old_file_whose_writer_is_not_known_is_watched_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    os.utime(tmp_path / "a", (1, 1))
    now_s = 0.0
    files = CompleteFiles("source a", tmp_path, 2_000, lambda: now_s)
    assert not files.is_complete("a", is_last=False)
    assert not files.is_complete("gone", is_last=True)
    now_s = 2.0
    assert files.is_complete("a", is_last=False)


@pytest.mark.usefixtures("_untold")
def test_a_file_that_grows_after_it_was_read_is_named_with_its_bytes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Watched(path=str(tmp_path), settle_ms=0)
    split = split_of(source)
    (tmp_path / "a.csv").write_text(HEADER + row(0, "a", "1") + "\n")
    (tmp_path / "b.csv").write_text(HEADER + row(1, "b", "2"))
    batch = read(split)
    assert values_of(batch) == [("a", 1), ("b", 2)]
    for name, more in (("b", "2.5\n"), ("b", "more\n"), ("a", row(2, "a", "3"))):
        with (tmp_path / f"{name}.csv").open("a") as file:
            file.write(more)
        again = read(split, batch.position)
        assert (values_of(again), again.position) == ([], batch.position)
    what = [record.getMessage().partition(": write")[0] for record in caplog.records]
    start, lost = "file_grew: source readings: file", "after it was read, and these are lost"
    assert what == [
        f"{start} b.csv grew by 4 bytes {lost} (1 files and 4 bytes by now)",
        f"{start} b.csv grew by 5 bytes {lost} (1 files and 9 bytes by now)",
        f"{start} a.csv grew by 24 bytes {lost} (2 files and 33 bytes by now)",
    ]


@pytest.mark.usefixtures("_untold")
def test_a_file_that_grows_while_it_is_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "".join(f"{row(n, 'a', '1')}\n" for n in range(9)))
    split = split_of(Watched(path=str(tmp_path), settle_ms=0))
    first = read(split, 0, 4)
    with (tmp_path / "a.csv").open("a") as file:
        file.write(row(10, "a", "2"))
    rest = read(split, first.position)
    assert len(first.values) + len(rest.values) in (9, 10)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "file_grew: source readings: file a.csv grew by 24 bytes while it was read (1 files and 24 bytes"
    )


@pytest.mark.usefixtures("_untold")
def test_a_file_may_appear_before_one_that_is_not_complete_and_restarts_change_nothing(
    tmp_path: Path,
) -> None:
    source = Watched(path=str(tmp_path), settle_ms=1_000)
    split = split_of(source)
    (tmp_path / "b.csv").write_text(HEADER + row(1, "b", "2") + "\n" + row(2, "b", "3"))
    assert values_of(read(split)) == []
    (tmp_path / "a.csv").write_text(HEADER + row(0, "a", "1"))
    assert values_of(read(split)) == []
    source.now_s = 1.0
    whole = read(split)
    assert values_of(whole) == [("a", 1), ("b", 2), ("b", 3)]
    for known, position in ((0, 0), (1, whole.numbers[1]), (2, whole.numbers[2])):
        again: Any = split_of(source)
        assert values_of(read(again, position)) == []
        source.now_s += 1.0
        rest = read(again, position)
        assert (rest.numbers, rest.position) == (whole.numbers[known:], whole.position)
