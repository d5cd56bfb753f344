"""Drivers as processes on one folder, one after another, each in a group of its own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from geartrain_cloud.spark.compile import KEYED
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[3]
PRODUCTION = "geartrain_cloud.spark.driver"


class Drivers:
    """The folder of a flow's cloud part, and the drivers that were started on it."""

    def __init__(self, folder: Path, *, rows_max: int = 60, more: str = "") -> None:
        self.folder, self.config = folder, folder / "driver.toml"
        self.config.write_text(
            'flow = "tests.spark.faults.flows:flow"\ncut = "cloud"\nlog = "log"\nstate = "state"\n'
            f'tables = "tables.sqlite"\nrows_max = {rows_max}\nlog_wait_s = 30\nletters_percent = 100\n{more}'
        )
        self.checkpoint = folder / "state" / "checkpoints" / KEYED
        self.tables = folder / "tables.sqlite"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str, entry: str = PRODUCTION, **environment: str) -> subprocess.Popen[str]:
        """Start a driver."""
        said = (self.folder / f"said-{len(self.started)}").open("w+")
        process = subprocess.Popen(
            [sys.executable, "-m", entry, "--config", str(self.config), *options],
            cwd=ROOT,
            stderr=said,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )
        self.started.append(process)
        return process

    def said(self) -> str:
        """What the last one has said."""
        return (self.folder / f"said-{len(self.started) - 1}").read_text()

    def end(self) -> int:
        """Wait until the last one has ended; its exit code."""
        return self.started[-1].wait(WAIT_S)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something is so, while the last one runs."""
        deadline = time.monotonic() + WAIT_S
        while not until():
            assert time.monotonic() < deadline, self.said()
            assert self.started[-1].poll() is None, self.said()
            time.sleep(0.02)

    def first_batch_s(self, before: int) -> float:
        """Seconds until the tables hold a micro-batch after `before`, or the last one started has ended."""
        began_s = time.monotonic()
        while self.held()[0] <= before and self.started[-1].poll() is None:
            assert time.monotonic() - began_s < WAIT_S, self.said()
            time.sleep(0.02)
        return time.monotonic() - began_s

    def held(self, query: str = KEYED) -> tuple[int, str, int]:
        """The last micro-batch in the tables, its end positions, and the rows of the log up to there."""
        if not self.tables.exists():
            return -1, "", 0
        with closing(sqlite3.connect(self.tables, timeout=60)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = '_queries'").fetchone():
                return -1, "", 0
            select = "SELECT batch_id, positions, log_rows FROM _queries WHERE query = ?"
            found = db.execute(select, (query,)).fetchone()
        return (-1, "", 0) if found is None else (int(found[0]), str(found[1]), int(found[2]))

    def count(self, table: str) -> int:
        """Rows of a table."""
        with closing(sqlite3.connect(self.tables, timeout=60)) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def newest(self, what: str) -> int:
        """The number of the newest file of Spark's `offsets` or `commits`, -1 for none."""
        folder = self.checkpoint / "spark" / what
        found = [int(one.name) for one in folder.iterdir() if one.name.isdecimal()] if folder.exists() else []
        return max(found, default=-1)

    def close(self) -> None:
        """End them all, with their Java."""
        for process in self.started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
