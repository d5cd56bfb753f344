"""Python workers killed with SIGKILL in mid micro-batch: the host goes on, and each row is there once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.faults.processes import below, command_of
from tests.spark.faults.workers import HeldRun, beside, micro_batches, workers_killed

SPEAKER, STARTER = "streaming_source_runner", "spark.worker_daemon pyspark.worker"
"""The process of Spark's that says where a micro-batch ends, and the one that starts the stages' workers."""


def test_a_killed_worker_does_not_stop_the_query(spark: SparkSession, tmp_path: Path) -> None:
    taken_s, _, _ = workers_killed(spark, tmp_path, 2)
    assert len(taken_s) == 2
    print("from the kill of a Python worker until its micro-batch was written:", taken_s)


def test_a_killed_speaker_is_started_again_with_its_query(spark: SparkSession, tmp_path: Path) -> None:
    held = HeldRun(spark, tmp_path, rows_max=45)
    held.log.append(240)
    held.log.end()
    killed: list[int] = []

    def kill(until: threading.Event) -> None:
        wanted = [SPEAKER, STARTER]
        while wanted and not until.is_set():
            if micro_batches(held.tables) > len(killed):
                found = [pid for pid in below(os.getpid()) if wanted[0] in command_of(pid)]
                for pid in found:
                    os.kill(pid, signal.SIGKILL)
                if found:
                    killed.append(found[0])
                    wanted.pop(0)
            time.sleep(0.02)

    with beside(kill):
        restarts = held.run()
    assert len(killed) == 2
    assert restarts >= 1
    held.assert_exact()
