"""Makes `golden/held_0_2.tar.xz`: the log and the tables of half a run of the flow `held` by release 0.2.

It runs with that release, from a checkout of it into which this file and `held_devices.py` were copied:
`python -m tests.spark.held_golden FILE.tar.xz`. The real ingest takes what two devices send, in two
partitions; the real driver reads it to its end, and is stopped there. No source has ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import closing
from pathlib import Path

from geartrain_cloud.ingest.config import FlowConfig, IngestConfig
from geartrain_cloud.log.reader import LogReader
from tests.cloud.fleet import running
from tests.spark.held_devices import NAMES, TURNS, HeldRun, deliver, driver_toml

WAIT_S = 180


def make_log(folder: Path) -> None:
    """The log, by ingest."""
    channels = {"left": NAMES, "right": NAMES}
    flow = FlowConfig.of(NAMES, channels)
    config = IngestConfig(flows={"held": flow}, log=folder, partitions=2, group_commit_ms=1, merge=False)

    async def run() -> None:
        made = HeldRun()
        async with running(config) as world:
            await deliver(world, made.announced())
            for one in made.turns(TURNS):
                await deliver(world, [one])

    asyncio.run(run())


def make_tables(folder: Path) -> None:
    """The tables and the checkpoint, by the driver."""
    (folder / "driver.toml").write_text(driver_toml(folder))
    newest = LogReader(folder / "log").positions("held")
    command = [sys.executable, "-m", "geartrain_cloud.spark.driver", "--config", str(folder / "driver.toml")]
    with subprocess.Popen(command) as driver:
        deadline = time.monotonic() + WAIT_S
        while not _is_read(folder / "tables.sqlite", newest):
            assert time.monotonic() < deadline, "it takes too long"
            assert driver.poll() is None, "the driver has ended"
            time.sleep(0.2)
        driver.send_signal(signal.SIGTERM)


def _is_read(tables: Path, newest: dict[str, int]) -> bool:
    if not tables.exists():
        return False
    with closing(sqlite3.connect(tables, timeout=60)) as database:
        held = dict(database.execute("SELECT query, positions FROM _queries").fetchall())
    keyed, stateless = json.loads(held.get("keyed", "{}")), json.loads(held.get("stateless", "{}"))
    ours = {key: end for key, end in newest.items() if not key.startswith("_")}
    return all(keyed.get(key) == end for key, end in ours.items()) and bool(stateless)


def main(target: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_log(folder / "log")
        make_tables(folder)
        for name in ("log/ledger.sqlite", "tables.sqlite"):
            with closing(sqlite3.connect(folder / name)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                database.execute("PRAGMA journal_mode = DELETE")
        wanted = ["log/ledger.sqlite", "log/segments", "tables.sqlite"]
        wanted += [f"driver/checkpoints/{query}/identity.json" for query in ("stateless", "keyed")]
        with tarfile.open(target, "w:xz") as archive:
            for name in wanted:
                archive.add(folder / name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
