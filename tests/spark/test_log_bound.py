"""The log of Spark's Java: it is bounded while Java writes, into a file that it opened long before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud import bounded_log
from geartrain_cloud.bounded_log import bound_log
from geartrain_cloud.platform.places import SPARK_LOG_FILE

WRITER = """
import sys
for n in sys.stdin:
    print("line", int(n), flush=True)
    print("line", int(n), "of errors", file=sys.stderr, flush=True)
"""


def test_who_writes_goes_on_in_a_log_that_is_short_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost where nothing is written meanwhile, whichever of two descriptors it came by."""
    monkeypatch.setattr(bounded_log, "LOG_BYTES_MAX", 100)
    log, former = tmp_path / "a.log", tmp_path / "a.log.1"
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            text=True,
            bufsize=1,
        ) as writer,
    ):
        assert writer.stdin is not None
        found: list[str] = []
        for n in range(40):
            before = log.stat().st_size
            lines = f"line {n}\nline {n} of errors\n"
            writer.stdin.write(f"{n}\n")
            while log.stat().st_size < before + len(lines):
                assert writer.poll() is None
            full = log.read_text()
            bound_log(log)
            if not log.stat().st_size:
                assert former.read_text() == full  # one former file, the newest
                assert former.stat().st_mode & 0o777 == 0o600
                found += full.splitlines()
        writer.stdin.close()
    found += log.read_text().splitlines()
    assert found == [f"line {n}{end}" for n in range(40) for end in ("", " of errors")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1"]


def test_java_goes_on_in_it(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    log = (
        Path((spark.conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")).parent / SPARK_LOG_FILE
    )
    java = spark.sparkContext._jvm
    assert java is not None

    def say(text: str) -> str:
        java.java.lang.System.out.println(f"{text} by out")
        java.java.lang.System.err.println(f"{text} by err")
        java.org.apache.logging.log4j.LogManager.getRootLogger().warn(f"{text} by log4j")
        return log.read_text()

    full = say("before")
    monkeypatch.setattr(bounded_log, "LOG_BYTES_MAX", len(full.encode()) // 2)
    bound_log(log)
    assert log.with_name(f"{SPARK_LOG_FILE}.1").read_text().startswith(full)
    monkeypatch.undo()
    after = say("after")
    assert "\0" not in after
    assert "before" not in after
    for stream in ("out", "err", "log4j"):
        assert f"after by {stream}" in after
