"""A run of release 0.2.0 that was killed, with unsent records in its spools, goes on with this release.

Its tables are compared with plain Python over what the devices read.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain.adapters.toml_text import to_toml
from geartrain.planning import make_plan
from geartrain_client.cli import main
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.broker.ready import wait_until_ready
from geartrain_cloud.log.reader import LogReader
from tests.layouts.killed_run import (
    CUT,
    DEVICES,
    FLOW,
    ROWS,
    SOURCES,
    TABLES,
    agent_toml,
    expected,
    flow,
    write_files,
)
from tests.spark.going_on import read_on
from tests.tidy.source import ROOT
from tests.waiting import WAIT_S

GOLDEN = Path(__file__).parent / "golden" / "killed_0_2.tar.xz"
"""What `killed_run_golden.py` has made."""


def extracted(folder: Path) -> Path:
    """The folder of the run, as it was left."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextmanager
def started(module: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """A program of this release with its configuration."""
    with subprocess.Popen(
        [sys.executable, "-m", module, "--config", str(file)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> None:
    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 0, said


def send_the_rest(folder: Path) -> None:
    """The devices go on with their spools, and read to the end."""
    broker = choose_broker("amqtt", folder)
    with subprocess.Popen(broker.command) as serving:
        try:
            wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
            plan = make_plan(flow.graph(), CUT)
            channels = {one.id: sorted(one.sources) for one in plan.channels if not one.id.startswith("_")}
            held = {
                "devices": list(DEVICES),
                "sources": dict.fromkeys(SOURCES, "all"),
                "channels": channels,
            }
            said = {"log": str(folder / "log"), "broker": broker.address, "flows": {"killed": held}}
            (folder / "ingest.toml").write_text(to_toml(said), encoding="utf-8")
            with started("geartrain_cloud.ingest.main", folder / "ingest.toml") as ingest:
                for device in DEVICES:
                    file = folder / f"{device}.toml"
                    file.write_text(agent_toml(folder, device, broker.address, '"max"'), encoding="utf-8")
                    with started("geartrain_edge.agent.process", file) as agent:
                        end(agent)
                ingest.send_signal(signal.SIGTERM)
                end(ingest)
        finally:
            serving.kill()


def found(folder: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    with closing(sqlite3.connect(folder / "tables.sqlite")) as tables:
        return {
            name: Counter(tables.execute(f"SELECT {', '.join(columns)} FROM {name}").fetchall())
            for name, columns in TABLES.items()
        }


def unsent(folder: Path, device: str) -> int:
    """Rows in a device's spool."""
    with closing(sqlite3.connect(folder / device / "spool.sqlite")) as spool:
        return int(spool.execute("SELECT coalesce(sum(count), 0) FROM batches").fetchone()[0])


@pytest.mark.slow
def test_a_run_of_0_2_that_was_killed_goes_on_and_each_row_is_there_once(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, old = extracted(tmp_path / "left"), extracted(tmp_path / "run")  # one is only looked at
    before, wanted = found(left), expected()
    assert all(unsent(left, device) for device in DEVICES)
    assert 0 < before["readings"].total() < len(DEVICES) * ROWS == wanted["readings"].total()
    assert all(before[table] < wanted[table] for table in TABLES)
    assert main(["log", "migrate", str(old), "--flow", FLOW, "--yes"]) == 0, capsys.readouterr().err
    write_files(old)
    send_the_rest(old)
    assert not any(unsent(old, device) for device in DEVICES)
    read_on(spark, make_plan(flow.graph(), CUT), old)
    assert found(old) == wanted
    counters = LogReader(old / "log").counters()
    for name in ("quarantined_batches", "records_overtaken", "records_dropped", "losses"):
        assert counters.get(name, 0) == 0, name
