"""A flow that keeps much goes over to a revision with another type of state, and then to other slots. Its
host is killed with -9 at each step of both.

The tables are compared with plain Python, to the last bit: each row shows the checksum of all that its
sensor keeps. The small form keeps two megabytes, and is killed at a step that the commit draws. The long one
keeps 100 MB and is killed at each. Then it goes both ways once more without a kill, and says how long its
tables got nothing.
"""

from __future__ import annotations

import sqlite3
import statistics
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from geartrain_cloud.sinks.tables import rows
from tests.drawing import drawn
from tests.hosting.host_process import HostProcess
from tests.hosting.hosted import Wanted
from tests.hosting.killed_host import POINT, REBUILD, UPDATE
from tests.hosting.mill_log import T0_US
from tests.spark.flows import Reading
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]

APP = "heavy.1"
POINTS = (*UPDATE, *REBUILD)
ENTRY = "tests.hosting.killed_host"
SMALL, LARGE = 2_000, 100_000
"""Sensors, each of which keeps a kilobyte."""
PAD_BYTES = 1_000
SLOTS, MORE_SLOTS = 2, 3
BUCKETS = 64
"""Of each slot: a record has one of them written anew."""
HOT = 50
"""Sensors of which records come after all had one."""
EVERY_S, AROUND = 0.05, 6
"""Between two records of the measured runs; commits of the tables before and behind what is measured."""

Row = tuple[str, int, bytes, int]


def kept_by(records: Sequence[tuple[str, float]], begins: Sequence[int]) -> Iterator[Row]:
    """What plain Python makes of the records. begins: behind how many of them each revision begins after the
    first; the second one keeps the last value as well.
    """
    kept: dict[str, tuple[int, float, bytes, float]] = {}
    revision = 1
    for number, (sensor, value) in enumerate(records):
        if number in begins:
            revision += 1
            more = 0.5 if revision == 2 else 0.25
            kept = {s: (n, total + more, pad[::-1], -1.0) for s, (n, total, pad, _) in kept.items()}
        fresh = (0, 0.0, (sensor.encode() * PAD_BYTES)[:PAD_BYTES], 0.0)
        count, total, pad, last = kept.get(sensor, fresh)
        total = (total + last if revision == 2 else total) * 0.5 + value
        pad = pad[1:] + bytes([int(value)])
        kept[sensor] = count + 1, total, pad, value
        yield sensor, count + 1, struct.pack(">d", total), zlib.crc32(pad)


class Heavy:
    """The flow, its log, and its host in one life after another."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, sensors: int) -> None:
        self.wanted = Wanted(folder, monkeypatch)
        self.writer = self.wanted.add(APP, 0).writer
        self.wanted.flows[APP] |= {"flow": "mill.heavy:first", "slots": SLOTS}
        self.wanted.flows[APP] |= {"buckets": BUCKETS, "rows_max": 20_000}
        self.process, self.sensors = HostProcess(self.wanted), sensors
        self.records: list[tuple[str, float]] = []
        self.begins: list[int] = []

    def append(self, count: int) -> None:
        numbers = range(len(self.records), len(self.records) + count)
        among = HOT if numbers.start >= self.sensors else self.sensors
        found = [(f"s{n * 7 % among}", float(n * 31 % 256)) for n in numbers]
        self.records += found
        read = [
            (Reading(*one), T0_US + n * 1_000, "device-1/readings", n)
            for n, one in zip(numbers, found, strict=True)
        ]
        self.writer.append("readings", read, rows_per_entry=500, clock=read[-1][1])

    def status(self, what: str) -> object:
        return self.wanted.status(APP).get(what)

    def want(self, **changes: object) -> None:
        self.wanted.flows[APP] |= changes
        self.wanted.write()

    def update(self, name: str) -> None:
        """Want a flow as the next revision, and have the log bring it here."""
        plan = {what: self.wanted.flows[APP][what] for what in ("flow", "cut")}
        former = [*self.wanted.flows[APP].get("former", []), plan]
        self.want(flow=f"mill.heavy:{name}", revision=len(former) + 1, former=former)
        self.begins.append(len(self.records))
        self.writer.revise(len(former) + 1)

    def check(self) -> None:
        found = [tuple(row.values()) for row in rows(self.wanted.tables(APP), "weighed")]
        made = sorted((s, n, struct.pack(">d", total), pad) for s, n, total, pad in found)
        assert made == sorted(kept_by(self.records, self.begins))
        assert rows(self.wanted.tables(APP), "dead_letters") == []

    def close(self) -> None:
        self.process.end()
        self.wanted.close()


@pytest.fixture
def make_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Heavy]]:
    made: list[Heavy] = []

    def make(sensors: int) -> Heavy:
        made.append(Heavy(tmp_path, monkeypatch, sensors))
        return made[-1]

    yield make
    for one in made:
        one.close()


def killed_at_each(heavy: Heavy, points: Sequence[str]) -> None:
    """Bring all of it about, each life killed at one of the points, and the last one not."""
    process, lives = heavy.process, iter([*points, ""])
    heavy.append(heavy.sensors)
    heavy.wanted.write()
    point = next(lives)
    process.start(ENTRY, **{POINT: point})
    process.until(lambda: heavy.wanted.is_through(APP))

    def killed(among: Sequence[str]) -> None:
        nonlocal point
        while point in among:
            process.until_killed(point)
            heavy.append(100)
            point = next(lives)
            process.start(ENTRY, **{POINT: point})

    heavy.append(100)
    heavy.update("second")
    heavy.append(100)
    killed(UPDATE)
    process.until(lambda: heavy.status("revision") == 2)
    heavy.want(slots=MORE_SLOTS)
    heavy.append(100)
    killed(REBUILD)
    process.until(lambda: heavy.status("slots") == MORE_SLOTS)
    heavy.append(100)
    process.until(lambda: heavy.wanted.is_through(APP))
    heavy.check()
    assert heavy.status("dropped") == {}
    assert int(str(heavy.status("state_bytes"))) >= heavy.sensors * PAD_BYTES


def fed(heavy: Heavy, done: Callable[[], bool], least: int = 0) -> list[float]:
    """When the tables got something, monotonic seconds, while records come one by one until `done`, and for
    so many commits at the least.
    """
    found, newest, due_s = list[float](), None, time.monotonic()
    while not done() or len(found) < least:
        if time.monotonic() >= due_s:
            heavy.append(1)
            due_s += EVERY_S
        with closing(sqlite3.connect(heavy.wanted.tables(APP), timeout=WAIT_S)) as tables:
            (last,) = tables.execute("SELECT max(batch_id) FROM _queries").fetchone()
        if last != newest:
            found.append(time.monotonic())
            newest = last
        time.sleep(0.01)
    return found


def pause_s(heavy: Heavy, begin: Callable[[], None], done: Callable[[], bool]) -> tuple[float, float]:
    """The longest time between two commits of the tables while something is done, and the median before."""
    before = fed(heavy, lambda: True, AROUND)
    begin()
    behind = fed(heavy, done) + fed(heavy, lambda: True, AROUND)
    usual = statistics.median(end - start for start, end in pairwise(before))
    return max(end - start for start, end in pairwise([before[-1], *behind])), usual


@pytest.mark.parametrize(
    ("sensors", "points"),
    [
        pytest.param(SMALL, drawn("steps of state that goes over", POINTS, 1), id="drawn"),
        pytest.param(LARGE, POINTS, id="each", marks=pytest.mark.long),
    ],
)
def test_what_a_flow_keeps_goes_over_to_the_last_bit_though_its_host_is_killed(
    make_heavy: Callable[[int], Heavy], sensors: int, points: Sequence[str]
) -> None:
    heavy = make_heavy(sensors)
    killed_at_each(heavy, points)
    if sensors < LARGE:
        return
    paused = {
        "an update in place": pause_s(
            heavy, lambda: heavy.update("third"), lambda: heavy.status("revision") == 3
        ),
        "other slots": pause_s(
            heavy, lambda: heavy.want(slots=SLOTS), lambda: heavy.status("slots") == SLOTS
        ),
    }
    heavy.process.until(lambda: heavy.wanted.is_through(APP))
    heavy.check()
    for what, (longest, usual) in paused.items():
        print(f"{heavy.status('state_bytes'):,} bytes, {what}: {longest:.1f} s, usually {usual:.1f} s")
