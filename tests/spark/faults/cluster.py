"""A standalone cluster of Spark on this machine: a master and two workers, each with one core."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from geartrain_cloud.spark.java import ensure_java
from tests.ports import free_port
from tests.spark.faults.processes import below, command_of
from tests.waiting import WAIT_S

WORKERS = 2


class Cluster:
    """Started by `start`, ended with all executors by `close`."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the three; a worker looks for the master until it is there."""
        ensure_java()
        common = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start("master.Master", *common, "--port", str(self._port))
        deadline = time.monotonic() + WAIT_S
        while socket.socket().connect_ex(("127.0.0.1", self._port)):
            assert time.monotonic() < deadline, (self._folder / "0.log").read_text()
            time.sleep(0.1)
        for number in range(WORKERS):
            place = ["--work-dir", str(self._folder / f"worker-{number}")]
            self._start("worker.Worker", *common, *place, "--cores", "1", "--memory", "1g", self.master)

    def _start(self, name: str, *options: str) -> None:
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        lean = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        settings = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": lean}
        with (self._folder / f"{len(self._started)}.log").open("wb") as said:
            process = subprocess.Popen(
                [str(program), f"org.apache.spark.deploy.{name}", *options],
                stdout=said,
                stderr=said,
                env=os.environ | settings | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self._started.append(process)

    def executors(self) -> list[int]:
        """The processes that run tasks, by process id."""
        children = [pid for one in self._started[1:] for pid in below(one.pid)]
        return [pid for pid in children if "CoarseGrainedExecutorBackend" in command_of(pid)]

    def close(self) -> None:
        """End them all."""
        for process in reversed(self._started):
            for pid in below(process.pid):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
            process.kill()
            process.wait()
