"""Hosts as processes on one folder, one life after another, each in a group of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from geartrain_cloud.hosting.offsets import count_name, generation_name
from geartrain_cloud.spark.compile import HOSTED
from tests.hosting.hosted import HostFolder
from tests.hosting.hosted_run import put_bundle
from tests.spark.faults.flows import INSTANCE, held_flow
from tests.waiting import WAIT_S, Wait, note_log

ROOT = Path(__file__).parents[3]
PRODUCTION = "geartrain_cloud.hosting.main"
GENERATION = generation_name(INSTANCE, 1)


class Hosts:
    """The folder of a platform with one flow, `held_flow`, and the hosts that were started on it."""

    def __init__(self, folder: Path, *, rows_max: int = 60, settings: str = "") -> None:
        """settings: the text of its platform.toml."""
        self.wanted = HostFolder(folder)
        self.folder, self.tables = folder, self.wanted.tables(INSTANCE)
        (folder / "platform.toml").write_text(settings)
        self.wanted.flows[INSTANCE] = {
            "flow": "given:flow",
            "bundle": str(put_bundle(folder / "bundle", held_flow().graph())),
            "cut": "cloud",
            "tables": str(self.tables),
            "letters_percent": 100,
            "rows_max": rows_max,
        }
        self.wanted.write()
        self.checkpoint = self.wanted.state / "groups" / "all" / "spark"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *, entry: str = PRODUCTION, **environment: str) -> subprocess.Popen[str]:
        """Start a life."""
        said = note_log(self.folder / f"said-{len(self.started)}").open("w+")
        process = subprocess.Popen(
            [sys.executable, "-m", entry, "--state", str(self.folder)],
            cwd=ROOT,
            stderr=said,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )
        self.started.append(process)
        return process

    def said(self) -> str:
        """What the last one has said."""
        return (self.folder / f"said-{len(self.started) - 1}").read_text()

    def end(self) -> int:
        """Wait until the last one has ended; its exit code."""
        return self.started[-1].wait(WAIT_S)

    def stop(self) -> None:
        """End the last one as `gear up` does, once all of the log is in the tables."""
        self.wait(lambda: self.wanted.is_through(INSTANCE))
        self.started[-1].terminate()
        assert self.end() == 0, self.said()

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something is so, while the last one runs."""
        wait = Wait("what a host is to come to")
        while not until():
            wait.check(self.said())
            assert self.started[-1].poll() is None, self.said()
            time.sleep(0.02)

    def first_batch_s(self, before: int) -> float:
        """Seconds until the tables hold a micro-batch after `before`, or the last one started has ended."""
        began_s, wait = time.monotonic(), Wait("a micro-batch in the tables")
        while self.held()[0] <= before and self.started[-1].poll() is None:
            wait.check(self.said())
            time.sleep(0.02)
        return time.monotonic() - began_s

    def held(self) -> tuple[int, int]:
        """The flow's own count of the last micro-batch in its tables, and the rows of the log up to there."""
        if not self.tables.exists():
            return -1, 0
        with closing(sqlite3.connect(self.tables, timeout=WAIT_S)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = '_queries'").fetchone():
                return -1, 0
            select = "SELECT batch_id, log_rows FROM _queries WHERE query = ?"
            found = db.execute(select, (HOSTED,)).fetchone()
        return (-1, 0) if found is None else (int(found[0]), int(found[1]))

    def count(self, table: str) -> int:
        """Rows of a table."""
        with closing(sqlite3.connect(self.tables, timeout=WAIT_S)) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def newest(self, what: str) -> int:
        """The number of the newest file of Spark's `offsets` or `commits`, -1 for none."""
        folder = self.checkpoint / what
        found = [int(one.name) for one in folder.iterdir() if one.name.isdecimal()] if folder.exists() else []
        return max(found, default=-1)

    def counted(self, number: int) -> int:
        """The flow's own count of micro-batches in Spark's offsets of that number, -1 where it has none."""
        path = self.checkpoint / "offsets" / str(number)
        if number < 0:
            return -1
        offsets = json.loads(path.read_text().splitlines()[2])
        return int(offsets.get(count_name(GENERATION), -1))

    def close(self) -> None:
        """End them all, with their Java."""
        for process in self.started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
