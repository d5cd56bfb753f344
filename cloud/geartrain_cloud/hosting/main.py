"""`gear-spark`: the process in which Spark runs the flows of a platform, one beside another.

It stands around the record's path from the log to the tables. Guarantees: each folder has one host; another
one ends with code 3. After a kill -9 the next host goes on exactly where the tables stand. A signal stops it
with code 0 (130 for Ctrl-C).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from geartrain.adapters.service_notes import ServiceNotes
from geartrain.adapters.signals import EXIT_INTERRUPTED
from geartrain.errors import ConfigError, GeartrainError
from geartrain.printable import printable
from geartrain_cloud.bounded_log import bound_log
from geartrain_cloud.hosting.group import GroupSettings
from geartrain_cloud.hosting.groups import OWN_MAX
from geartrain_cloud.hosting.host import Host
from geartrain_cloud.hosting.versions import ROWS_MAX
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.config import PlatformConfig, read_platform
from geartrain_cloud.spark.error_texts import root_cause
from geartrain_cloud.spark.errors import QueryError, RefusedError
from geartrain_cloud.spark.lock import StateLock
from geartrain_cloud.spark.schema_paths import rebind
from geartrain_cloud.spark.session import open_session

EXIT_OK = 0
EXIT_FAILED = 1
"""The query failed, or the log or Spark cannot be used."""
EXIT_CONFIG = 2
"""The configuration is wrong: a new start does not help."""
EXIT_REFUSED = 3
"""Another host runs on the folder, or a file of the host's own is missing or of another release: a new start
does not help.
"""

_POLL_S = 0.1
_LOG_POLL_S = 0.2

_log = logging.getLogger("host")


class _Stopped(BaseException):
    """A signal came while the host was starting."""


class Program:
    """One life of the process. `run` is called once, on the main thread."""

    def __init__(self, config: PlatformConfig) -> None:
        self._config, self._notes = config, ServiceNotes()
        self._stopping = threading.Event()
        self._starting = True

    def stop(self) -> None:
        """End the run; called from a signal handler on the main thread."""
        self._stopping.set()
        self._notes.stopping()
        if self._starting:
            raise _Stopped

    def run(self) -> None:
        """Run until `stop` is called; raises `GeartrainError` when it cannot go on."""
        places = self._config.places
        lock = StateLock(places.spark)
        try:
            self._wait_for_log(LogReader(places.log))
            rebind(places.folder)
            self._notes.alive("starts Spark")
            began = time.monotonic()
            spark = self._config.spark
            session = open_session(
                spark.master, places.spark, spark.settings, [lock.descriptor], queries=OWN_MAX + 1
            )
            _log.info("Spark started in %.1f s", time.monotonic() - began)
            try:
                settings = GroupSettings(rows_max=spark.rows_max or ROWS_MAX)
                store = self._config.tables.store
                self._follow(Host(session, places.spark, places.log, settings, store))
            finally:
                self._starting = False
                session.stop()
        except _Stopped:
            pass
        except (Py4JError, PySparkException) as error:
            raise QueryError(f"Spark failed: {root_cause(str(error))}") from error
        finally:
            lock.release()

    def _wait_for_log(self, log: LogReader) -> None:
        while not log.ready():
            self._notes.alive("waits for the log")
            time.sleep(_LOG_POLL_S)

    def _follow(self, host: Host) -> None:
        try:
            host.open()
            self._starting = False
            self._notes.ready()
            while not self._stopping.is_set():
                host.step()
                bound_log(self._config.places.spark_log)
                self._notes.alive("runs")
                self._stopping.wait(_POLL_S)
        finally:
            self._starting = False
            host.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the host until a signal stops it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gear-spark", description="Run the flows of a platform on Spark, from log to tables."
    )
    parser.add_argument("--config", metavar="platform.toml", type=Path, help="what every process is told")
    parser.add_argument("--state", metavar="DIR", type=Path, help="the platform's state folder")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    os.umask(0o077)
    try:
        config = read_platform(options.config, options.state)
    except ConfigError as error:
        return _said(str(error), EXIT_CONFIG)
    program = Program(config)
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        received.append(number)
        program.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        program.run()
    except RefusedError as error:
        return _said(str(error), EXIT_REFUSED)
    except GeartrainError as error:
        return _said(f"{error} (more in {config.places.spark_log})", EXIT_FAILED)
    except OSError as error:
        place = error.filename or config.places.spark
        return _said(f"{place} cannot be written: {error.strerror}: make room, or let it write", EXIT_FAILED)
    return EXIT_INTERRUPTED if signal.SIGINT in received else EXIT_OK


def _said(sentence: str, code: int) -> int:
    sys.stderr.write(f"gear-spark: {printable(' '.join(sentence.split()))}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
