"""A device goes over to other steps, a step with state leaves it, and returns: how long tables get nothing.

On a whole platform, a device sends 1,000 records a second with so many keys that have state there. First the
app's steps on the device become others (`gear update`), then the step moves to the data centre with what it
keeps (`gear move`), and back. The pause is the longest time between two commits of the table around the
crossing, less the median before it. A second app, whose source is silent meanwhile, tells how many bytes a
move sends for each byte of state. Every record is in the table once.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.ports import EntryKind
from tests.bench.harness import SIZE, Work
from tests.bench.pauses import CHANGES, RATE, how_many, pause_ms, report
from tests.control.platform_client import Client, client_of
from tests.proofs.test_platform import gear, until, until_ended
from tests.supervisor.test_up import platform

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.long]

AROUND_S = max(1.0, 8.0 * min(1.0, SIZE))
"""So long the stream runs before and behind a crossing."""
GOAL_MS = {
    "other steps on a device": 1_000.0,
    "a move to the data centre": 1_000.0,
    "a move to the device": 2_000.0,
}
PROJECT = '[project]\nname = "moved"\n[tool.geartrain]\nflow = "moved:flow"\n'
FLOW = """
import json
import time
from pathlib import Path

from geartrain import Context, Flow, Record, Source, State, Table, Task
from geartrain.declarations.options import FilePath
from geartrain.source import Batch


class Reading(Record):
    sensor: str
    value: int


class Counted(Record):
    sensor: str
    number: int
    total: int


class Held(State):
    number: int = 0
    total: int = 0


class Ticks:
    out_of_orderness_us = 0

    def __init__(self, name, path):
        self.name, self.path = name, path

    async def read(self, position, limit):
        told = json.loads(self.path.read_text())
        live = int((time.time() - told["began"]) * told["rate"]) if told["began"] else 0
        due = min(told["keys"] + live, told["upto"])
        end = max(position, min(due, position + limit))
        numbers = range(position, end)
        return Batch(
            [Reading(f"s{n % told['keys']}", n % 7) for n in numbers],
            [1_700_000_000_000_000 + n * 1_000 for n in numbers],
            numbers,
            end,
            ended=end == told["upto"],
        )

    async def close(self):
        pass


class Ticking(Source[Reading]):
    bounded = replayable = in_order = True
    path: FilePath = ""

    def open(self, device, step, out):
        return [Ticks(f"{device}/{step}", Path(self.path))]


class Sums(Task[Reading, Counted]):
    state = Held
    factor: int = 1

    def on_next(self, reading: Reading, ctx: Context[Counted, Held]) -> None:
        ctx.state.number += 1
        ctx.state.total += self.factor * reading.value
        ctx.emit(Counted(reading.sensor, ctx.state.number, ctx.state.total))


flow = Flow("moved")
readings = flow.source("readings", Ticking(), out=Reading, partitioned_by="sensor")
keyed = readings.key_by("sensor", name="by_sensor")
keyed.process("sums", Sums(factor=FACTOR), out=Counted).sink("each", Table("each"))
"""
ENDLESS = 1 << 40


class Commits(threading.Thread):
    """When the table of an app has more rows than before, seen 100 times a second."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path, self.stopping, self.times = path, threading.Event(), list[float]()

    def run(self) -> None:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as tables:
            before = 0
            while not self.stopping.wait(0.01):
                rows = tables.execute("SELECT max(rowid) FROM each").fetchone()[0] or 0
                if rows > before:
                    before = rows
                    self.times.append(time.monotonic())


class Stream:
    """An app on a platform, its device, and the file that says how far its source is to go."""

    def __init__(self, folder: Path, client: Client, name: str, keys: int) -> None:
        self.state, self.name, self.keys = folder / "state", name, keys
        self._client, self._project, self._told = client, folder / "project", folder / f"{name}.json"
        self._began = 0.0
        self._tell()
        self.install(1)
        own = [f"--device-set=d1:readings.path={self._told}"]
        where = ["--name", name, "--cut", "sums", *own, "--timeout", "4m"]
        gear(self.state, "submit", str(self._project), *where)
        self.places, self.instance = PlatformPlaces(self.state), f"{name}.1"
        self.tables = self.places.tables(self.instance)
        until(lambda: self.rows() >= keys, "the first record of each key")

    def install(self, factor: int) -> None:
        """Have the project hold the flow with this factor."""
        package = self._project / "src"
        package.mkdir(parents=True, exist_ok=True)
        (self._project / "pyproject.toml").write_text(PROJECT)
        (package / "moved.py").write_text(FLOW.replace("FACTOR", str(factor)))

    def begin(self) -> None:
        """Send by the clock from here on."""
        self._began = time.time()
        self._tell()

    def end(self) -> int:
        """Send no more, and wait for the end; how many records there were."""
        upto = self.keys + int((time.time() - self._began + 2.0) * RATE) if self._began else self.keys
        self._tell(upto)
        until_ended(self._client, self.name)
        return upto

    def rows(self) -> int:
        """How many rows its table has."""
        if not self.tables.exists():
            return 0
        with closing(sqlite3.connect(f"file:{self.tables}?mode=ro", uri=True)) as tables:
            try:
                return int(tables.execute("SELECT count(*) FROM each").fetchone()[0])
            except sqlite3.OperationalError:  # there is no table yet
                return 0

    def update(self) -> None:
        """Have the device go over to the flow with another factor, which changes a step of it."""
        self.install(10)
        gear(self.state, "update", self.name, str(self._project), "--timeout", "4m")
        until(
            lambda: self._client.get(f"/apps/{self.name}")["crossing"] is None, "the device with the update"
        )

    def move(self, to: str = "cloud") -> None:
        """Have the step go to the data centre, or back to the device (`edge`)."""
        gear(self.state, "move", self.name, "sums", "--to", to, "--devices", "d1", "--timeout", "4m")

    def sealed(self) -> int:
        """How many bytes the device has put into its spool as batches."""
        report = read_report(self.places.agent("d1", self.instance) / "status.json")
        return int(report["counters"]["bytes_sealed"])

    def check(self, records: int) -> None:
        """Each record is in the table once."""
        with closing(sqlite3.connect(self.tables)) as tables:
            held = {
                name: (rows, last)
                for name, rows, last in tables.execute(
                    "SELECT sensor, count(*), max(number) FROM each GROUP BY sensor"
                )
            }
        counts = [records // self.keys + (n < records % self.keys) for n in range(self.keys)]
        assert held == {f"s{n}": (count, count) for n, count in enumerate(counts)}

    def _tell(self, upto: int = ENDLESS) -> None:
        told = {"keys": self.keys, "rate": RATE, "began": self._began, "upto": upto}
        new = self._told.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.replace(self._told)


def timed(commits: Commits, change: Callable[[], None]) -> float:
    time.sleep(AROUND_S)
    seen = len(commits.times)
    until(lambda: len(commits.times) > seen + 2, "three commits")
    at_s = time.monotonic()
    change()
    done_s = time.monotonic()
    time.sleep(AROUND_S)
    return pause_ms(commits.times, at_s, done_s + AROUND_S)


def sent_for_state(stream: Stream) -> float:
    """Bytes that a move sends, in the silence of the source, for each byte of what its step keeps."""
    before = stream.sealed()
    stream.move()
    until(lambda: stream.sealed() > before, "what the move has sent")
    log = LogReader(stream.places.log)
    kept = 0
    for key, newest in log.positions(stream.instance).items():
        entries = log.entries(stream.instance, key, 0, newest)
        for entry in entries:
            if entry.kind is EntryKind.ROWS and entry.channel == "_state":
                kept += sum(len(cell.as_py()) for cell in log.table(entry).column("cell"))
    assert kept
    return (stream.sealed() - before) / kept


@pytest.mark.parametrize("keys", CHANGES)
def test_a_device_goes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "project" / "src"))
    pauses: dict[str, list[float]] = {what: [] for what in GOAL_MS}
    sent = list[float]()
    with platform(tmp_path / "state"):
        client = client_of(tmp_path / "state")
        new = [sys.executable, "-m", "geartrain_client.cli", "key", "new", "--name", "alice"]
        subprocess.run(new, check=True, capture_output=True, timeout=240)
        gear(tmp_path / "state", "device", "add", "d1", "--local")
        for number in range(CHANGES[keys]):
            stream = Stream(tmp_path, client, f"live{number}", keys)
            commits = Commits(stream.tables)
            stream.begin()
            commits.start()
            back = partial(stream.move, "edge")
            changes: tuple[Callable[[], None], ...] = (stream.update, stream.move, back)
            for change, found in zip(changes, pauses.values(), strict=True):
                found.append(timed(commits, change))
            print(number, {what: round(found[-1]) for what, found in pauses.items()}, flush=True)
            stream.check(stream.end())
            commits.stopping.set()
            silent = Stream(tmp_path, client, f"silent{number}", keys)
            sent.append(sent_for_state(silent))
            silent.check(silent.end())
    for what, found in pauses.items():
        report(what, keys, found, GOAL_MS[what])
    share = {"p50": lambda: statistics.median(sent), "most": lambda: max(sent)}
    work = f"bytes sent for a byte of state, {keys:,} keys"
    Work(work, "ratio", share, "p50", notes=[how_many(keys)]).run(1)
