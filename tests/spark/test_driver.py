"""The driver as a process: one for each folder, and its ends, each with one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.records.letters import Letter
from geartrain.revision import Code
from geartrain.schema import ColumnBatch
from geartrain_cloud.revision_file import read_revision, write_revision
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.breaker import Breaker
from geartrain_cloud.spark.checkpoint import open_checkpoint
from geartrain_cloud.spark.compile import compile_queries
from geartrain_cloud.spark.config import read_config
from geartrain_cloud.spark.driver import Driver
from geartrain_cloud.spark.errors import BreakerError
from geartrain_cloud.spark.shards import SHARDS
from tests.spark.flows import Reading
from tests.spark.log_writer import LogWriter
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[2]


class DriverProcess:
    """Drivers on one folder, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "driver.toml"
        self.config.write_text(
            'flow = "tests.spark.flows:flow"\ncut = "cloud"\nlog = "log"\nstate = "state"\n'
            'tables = "tables.sqlite"\nrows_max = 700\nlog_wait_s = 30\nletters_percent = 100\n'
        )
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "geartrain_cloud.spark.driver",
            "--config",
            str(self.config),
            *options,
        ]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "state" / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def batches(self) -> int:
        """Micro-batches that both queries have written."""
        queries = self.status().get("queries", {})
        return 1 + min((q["batch_id"] for q in queries.values()), default=-1)

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not until():
            assert time.monotonic() < deadline, self.status()
            assert self.started[-1].poll() is None, self.started[-1].communicate()[1]
            time.sleep(0.1)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[DriverProcess]:
    processes = DriverProcess(tmp_path)
    yield processes
    for process in processes.started:
        process.kill()
        process.communicate()


def make_log(folder: Path) -> LogWriter:
    return LogWriter(folder / "log", "sums", {"readings": Reading, "_dead_letters": Letter, "_late": Letter})


def test_reset_empties_tables_and_checkpoints(tmp_path: Path) -> None:
    processes = DriverProcess(tmp_path)
    config = read_config(processes.config)
    driver = Driver(config, config.plan())
    tables = driver.open_tables()
    queries = compile_queries(config.plan())
    for query in queries:
        checkpoint = open_checkpoint(config.state / "checkpoints" / query.name, query, SHARDS)
        tables.attach(query.name, checkpoint.identity, has_run=False)
        tables.write(query.name, 0, {"0": 3}, {"kept": [ColumnBatch([["a"], [1.0]], [1], ["s"], [1])]})
    tables.close()
    again = Driver(config, config.plan()).open_tables()
    assert again.positions("keyed") == {"0": 3}
    again.close()
    emptied = Driver(config, config.plan(), reset=True).open_tables()
    assert [emptied.positions(query.name) for query in queries] == [{}, {}]
    emptied.close()
    assert rows(config.tables, "kept") == []
    assert list((config.state / "checkpoints").iterdir()) == []


def test_it_stops_while_it_waits_for_the_log(driver: DriverProcess) -> None:
    process = driver.start()
    driver.wait(lambda: driver.status().get("state") == "waiting")
    time.sleep(0.3)
    process.terminate()
    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 0, said
    assert "waiting for ingest to make its log in" in said
    assert driver.status()["state"] == "stopped"


def test_it_gives_up_without_a_log(driver: DriverProcess) -> None:
    driver.config.write_text(driver.config.read_text().replace("log_wait_s = 30", "log_wait_s = 1"))
    process = driver.start()
    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("driver: there is no log in ")
    assert "start gear-ingest" in said
    assert driver.status()["state"] == "failed"


def test_wrong_config_is_one_sentence_and_code_2(driver: DriverProcess) -> None:
    driver.config.write_text(driver.config.read_text().replace("flows:flow", "flows:nothing"))
    process = driver.start()
    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 2
    assert said.startswith(f"driver: {driver.config}: flow: ")
    assert len(said.splitlines()) == 1


def test_another_revision_is_refused_by_what_differs_and_reset_begins_anew(driver: DriverProcess) -> None:
    config = read_config(driver.config)
    revision = config.revision(config.plan())
    files = {**revision.code.files, "tests/spark/flows.py": "0" * 64}
    held = msgspec.structs.replace(revision, code=Code("tests", files))
    write_revision(config.state, held)
    process = driver.start()
    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 3
    assert said.startswith(f"driver: the checkpoints in {config.state} were made by another revision of flow")
    assert "sums (file tests/spark/flows.py has changed): " in said
    assert said.endswith(f'write mended = "{revision.code.hash[:12]}" in its file\n')
    assert len(said.splitlines()) == 1
    driver.config.write_text(driver.config.read_text().replace("log_wait_s = 30", "log_wait_s = 1"))
    process = driver.start("--reset")
    said = process.communicate(timeout=WAIT_S)[1]
    assert "there is no log in" in said
    mended = f'mended = "{revision.code.hash[:12]}"\n'
    driver.config.write_text(mended + driver.config.read_text())
    process = driver.start()
    said = process.communicate(timeout=WAIT_S)[1]
    assert "going on with changed files (file tests/spark/flows.py has changed)" in said
    assert "there is no log in" in said
    assert read_revision(config.state) == revision


def test_a_query_that_its_dead_letters_stopped_ends_the_driver_before_spark_starts(
    driver: DriverProcess,
) -> None:
    make_log(driver.folder).close()
    checkpoint = driver.folder / "state" / "checkpoints" / "keyed"
    checkpoint.mkdir(parents=True)
    with pytest.raises(BreakerError):
        Breaker("keyed", checkpoint).count(400, 400, "why")
    process = driver.start()
    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 2
    assert said.startswith("driver: query 'keyed' stopped: 400 dead letters of 400 records")
    assert len(said.splitlines()) == 1
    assert "gear deadletters resume" in said
    assert (driver.status()["state"], driver.status()["finished"]) == ("tripped", False)
