"""Hosts as processes on one folder with one flow, and what they leave in its tables and in Spark's files."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

from geartrain import Flow
from geartrain_cloud.hosting.offsets import count_name, generation_name
from geartrain_cloud.spark.compile import HOSTED
from tests.hosting.host_process import PROGRAM, ROOT, HostProcess
from tests.hosting.hosted import HostFolder
from tests.hosting.hosted_run import put_bundle
from tests.spark.faults.flows import INSTANCE, held_flow
from tests.waiting import WAIT_S, Wait

GENERATION = generation_name(INSTANCE, 1)


def want_held_flow(wanted: HostFolder, flow: Flow, rows_max: int) -> None:
    """Want `flow`, with all but its sources in the cloud, as the one flow of a platform."""
    wanted.flows[INSTANCE] = {
        "flow": "given:flow",
        "bundle": str(put_bundle(wanted.folder / "bundle", flow.graph())),
        "cut": "cloud",
        "tables": str(wanted.tables(INSTANCE)),
        "letters_percent": 100,
        "rows_max": rows_max,
    }
    wanted.write()


class Hosts(HostProcess[HostFolder]):
    """The folder of a platform with one flow, `held_flow`, and the hosts that were started on it."""

    def __init__(self, folder: Path, *, rows_max: int = 60) -> None:
        super().__init__(HostFolder(folder))
        self.folder, self.tables = folder, self.wanted.tables(INSTANCE)
        want_held_flow(self.wanted, held_flow(), rows_max)
        self.checkpoint = self.wanted.state / "groups" / "all" / "spark"

    def start(self, entry: str = PROGRAM, **environment: str) -> subprocess.Popen[str]:
        """Begin a life, which finds the modules of tests."""
        return super().start(entry, **{"PYTHONPATH": str(ROOT)} | environment)

    def stop(self) -> None:
        """End the last life as `gear up` does, once all of the log is in the tables."""
        self.until(lambda: self.wanted.is_through(INSTANCE))
        self.started[-1].terminate()
        assert self.started[-1].wait(WAIT_S) == 0, self.read_log()

    def first_batch_s(self, before: int) -> float:
        """Seconds until the tables hold a micro-batch after `before`, or the last one started has ended."""
        began_s, wait = time.monotonic(), Wait("a micro-batch in the tables")
        while self.held()[0] <= before and self.started[-1].poll() is None:
            wait.check(self.read_log())
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
