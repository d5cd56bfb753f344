"""A file larger than memory comes out in the order of `sorted`, in bounded memory, leaving nothing behind."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from geartrain.errors import SourceError
from geartrain.records.event_time import parse_time
from geartrain_devices import file_order
from geartrain_devices.csv_columns import partition_values
from geartrain_devices.external_sort import Entry, SortedRows
from tests.devices.prices import Prices, open_split, replay, write
from tests.waiting import WAIT_S


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 500, 4_000])
def test_order_is_that_of_sorted(rows: int) -> None:
    random_ = random.Random(rows)
    entries = [
        Entry(random_.randrange(2), random_.randrange(50), n, [n, None, b"x", 0.5]) for n in range(rows)
    ]
    found = SortedRows(rows_max=7)
    for entry in entries:
        found.add(entry, 10)
    found.finish()
    assert found.spilled == (rows >= 7)
    assert len(found) == rows
    assert list(found.read()) == sorted(entries)
    assert list(found.read(rows // 3)) == sorted(entries)[rows // 3 :]
    found.close()


def test_bytes_bound_the_chunk_too() -> None:
    found = SortedRows(rows_max=1_000, bytes_max=100)
    for line in (3, 1, 2):
        found.add(Entry(1, 0, line, None), 60)
    found.finish()
    assert found.spilled
    assert [entry.line for entry in found.read()] == [1, 2, 3]
    found.close()


def test_no_room_for_the_sort_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    found = SortedRows(rows_max=1)
    with pytest.raises(SourceError, match=r"sorting needs room in /nowhere/at/all .*set TMPDIR"):
        found.add(Entry(1, 0, 1, None), 1)


def test_a_large_file_is_replayed_as_sorted_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_order, "SortedRows", lambda: SortedRows(rows_max=500))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "sort"))
    (tmp_path / "sort").mkdir()
    random_ = random.Random(7)
    rows = [(f"2020-01-{random_.randrange(1, 29):02d}", n, random_.random() + 0.1) for n in range(20_000)]
    text = "symbol,date,price\n" + "".join(f"S{n % 7},{day},{price!r}\n" for day, n, price in rows)
    source = Prices(path=write(tmp_path / "p.csv", text))
    expected = [(price, parse_time(day)) for day, _, price in sorted(rows, key=lambda row: row[:2])]
    got = replay(open_split(source), limit=256)
    assert [(value.price, time) for value, time, _ in got.rows] == expected
    assert got.numbers == list(range(20_000))
    middle = replay(open_split(source), start=12_345, limit=256)
    assert [(value.price, time) for value, time, _ in middle.rows] == expected[12_345:]
    assert list((tmp_path / "sort").iterdir()) == []
    assert partition_values(source.path, "symbol") == [f"S{n}" for n in range(7)]


MEASURE = """
import asyncio, sys
from tests.devices.prices import Prices, open_split

def peak_kb():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

async def main():
    before = peak_kb()
    split, position, rows = open_split(Prices(path=sys.argv[1])), 0, 0
    while True:
        poll = await split.read(position, 256)
        rows, position = rows + len(poll.values), poll.position
        if poll.ended:
            break
    print(rows, peak_kb() - before)

asyncio.run(main())
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    random_ = random.Random(3)
    rows = 200_000
    with (tmp_path / "p.csv").open("w") as file:
        file.write("symbol,date,price\n")
        for n in range(rows):
            file.write(
                f"S{n % 50},20{random_.randrange(100):02d}-01-01T00:00:{n % 60:02d},{random_.random() + 1}\n"
            )
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "p.csv")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    read, grown_kb = map(int, done.stdout.split())
    print(f"{read} rows sorted in {grown_kb} kB more than before")
    assert read == rows
    assert grown_kb < 20_000
