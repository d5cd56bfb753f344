"""`python -m geartrain_cloud.spark.driver --config FILE.toml`: the cloud part of one flow as a process.

It stands around the record's path from the log to the tables: it starts the queries, watches them and says
how far they are. Guarantees:

- Each state folder has one driver; another one ends with code 3.
- After a kill -9 the next driver goes on exactly where the tables stand.
- A query that fails, or from which Spark drops a row, ends the process with one sentence and code 1.
- A checkpoint that is lost or torn is refused with code 3 before Spark starts.
- A bounded run ends by itself with code 0 once every source has ended and everything is in the tables.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from geartrain.adapters.signals import EXIT_INTERRUPTED
from geartrain.errors import ConfigError, GeartrainError
from geartrain.planning import Plan
from geartrain.printable import printable
from geartrain.records.event_time import END_OF_TIME
from geartrain.revision import differences, in_short, is_mended, way_on
from geartrain_cloud.bounded_log import bound_log
from geartrain_cloud.log.queries import Registration
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import SPARK_LOG_FILE
from geartrain_cloud.revision_file import read_revision, write_revision
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.sinks.store import Store, Tables
from geartrain_cloud.spark.breaker import Breaker
from geartrain_cloud.spark.checkpoint import Checkpoint, open_checkpoint, remove_checkpoint
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_cloud.spark.config import DriverConfig, read_config
from geartrain_cloud.spark.error_texts import root_cause
from geartrain_cloud.spark.errors import BreakerError, QueryError, RefusedError
from geartrain_cloud.spark.lock import StateLock
from geartrain_cloud.spark.restore import restored_checkpoint, sound_checkpoint
from geartrain_cloud.spark.session import open_session
from geartrain_cloud.spark.shards import SHARDS
from geartrain_cloud.spark.status import StatusFile, describe, is_flushed, query_clock
from geartrain_cloud.spark.streams import LogInput, RunningQuery

EXIT_OK = 0
EXIT_FAILED = 1
"""A query failed, or the log, the tables or Spark cannot be used."""
EXIT_CONFIG = 2
"""The configuration is wrong, or dead letters have stopped a query: a new start does not help."""
EXIT_REFUSED = 3
"""Another driver runs on the state folder, it was begun with another revision, or a checkpoint is lost or
torn: a new start does not help.
"""

_POLL_S = 0.2
_SAY_EVERY_S = 10.0

_log = logging.getLogger("driver")


class _Stopped(BaseException):
    """A signal came while the driver was starting."""


class Driver:
    """The driver of one flow. `run` is called once, on the main thread."""

    def __init__(
        self, config: DriverConfig, plan: Plan, *, reset: bool = False, restore: bool = False
    ) -> None:
        """`reset`: empty tables and checkpoints first; `restore`: make a checkpoint that is lost or torn
        again from the log. Raises `PlacementError`.
        """
        self._config, self._plan, self._reset, self._restore = config, plan, reset, restore
        self._revision = config.revision(plan)
        self._queries = compile_queries(plan)
        self._log = LogReader(config.log)
        self._stopping = threading.Event()
        self._starting = True
        self._status = StatusFile(config.status_file, plan.graph.name)

    def stop(self) -> None:
        """End the run; called from a signal handler on the main thread."""
        self._stopping.set()
        if self._starting:
            raise _Stopped

    def run(self) -> None:
        """Run until the flow has ended or `stop` is called; raises `GeartrainError` when it cannot go on."""
        lock = StateLock(self._config.state)
        try:
            self._run_locked(lock)
        except _Stopped:
            self._status.enter("stopped")
        except (Py4JError, PySparkException) as error:
            failure = QueryError(f"Spark failed: {root_cause(str(error))}")
            self._status.enter("failed", str(failure))
            raise failure from error
        except GeartrainError as error:
            self._status.enter("tripped" if isinstance(error, BreakerError) else "failed", str(error))
            raise
        finally:
            lock.release()

    def _run_locked(self, lock: StateLock) -> None:
        self._status.enter("waiting")
        self._check_revision()
        self._wait_for_log()
        tables = self.open_tables()
        try:
            for query in self._queries:
                Breaker(query.name, self._folder(query))  # one that it stopped is known before Spark starts
            checkpoints = [self._checkpoint(query, tables) for query in self._queries]
            if self._reset or read_revision(self._config.state) is None:
                write_revision(self._config.state, self._revision)
            self._status.enter("starting")
            session = self._open_session(lock)
            try:
                self._run_queries(session, tables, checkpoints)
            finally:
                session.stop()
        finally:
            tables.close()

    def _check_revision(self) -> None:
        """Refuse checkpoints and tables that were begun with another revision."""
        if self._reset or (held := read_revision(self._config.state)) is None:
            return
        old, new = held.on("cloud"), self._revision.on("cloud")
        found = differences(old, new)
        if found and is_mended(old, new, self._config.mended):
            _log.warning("going on with changed files (%s)", in_short(found))
            write_revision(self._config.state, self._revision)
        elif found:
            raise RefusedError(
                f"the checkpoints in {self._config.state} were made by another revision of flow "
                f"{self._plan.graph.name} ({in_short(found)}): run that one, run this one as a new instance "
                "in a state folder of its own, or begin anew with --reset"
                f"{way_on(old, new)}"
            )

    def _wait_for_log(self) -> None:
        began = time.monotonic()
        said = began - _SAY_EVERY_S
        while not self._log.ready():
            now = time.monotonic()
            if now - began > self._config.log_wait_s:
                raise QueryError(
                    f"there is no log in {self._config.log} after {self._config.log_wait_s} s: start "
                    "gear-ingest with that folder"
                )
            if now - said >= _SAY_EVERY_S:
                said = now
                _log.info("waiting for ingest to make its log in %s", self._config.log)
            time.sleep(_POLL_S)

    def open_tables(self) -> Tables:
        """The flow's tables, declared, and emptied with all checkpoints where that was asked for.

        Raises `TableError` or `QueryError`.
        """
        tables = open_tables(
            self._plan.graph, self._config.tables, self._outbox() if self._plan.down else None
        )
        if self._reset:
            for query in self._queries:
                self._unregister(query)
                remove_checkpoint(self._folder(query))
            tables.reset()
        return tables

    def _outbox(self) -> Callable[[], Store]:
        """How the outbox is opened, to which what goes down to devices is written."""
        from geartrain_cloud.spark.outbox import outbox_of

        return outbox_of(self._plan, self._queries, self._log, self._config.outbox)

    def _registration(self, checkpoint: Checkpoint) -> Registration:
        flow = self._plan.graph.name
        return Registration(self._config.log, checkpoint.query, checkpoint.identity, flow)

    def _unregister(self, query: Query) -> None:
        """Take a query whose checkpoint goes out of those for which the log is kept."""
        folder = self._folder(query)
        if self._log.ready() and (folder / "identity.json").is_file():
            try:
                self._registration(open_checkpoint(folder, query, SHARDS)).unregister()
            except QueryError as error:
                _log.warning(
                    "the log may be kept for query %s for ever: see gear log queries (%s)", query.name, error
                )

    def _folder(self, query: Query) -> Path:
        return self._config.state / "checkpoints" / query.name

    def _open_session(self, lock: StateLock) -> SparkSession:
        began = time.monotonic()
        _log.info("starting Spark on %s", self._config.master)
        fds = [lock.descriptor]
        session = open_session(self._config.master, self._config.state, self._config.spark, fds)
        _log.info("Spark started in %.1f s", time.monotonic() - began)
        return session

    def _checkpoint(self, query: Query, tables: Tables) -> Checkpoint:
        folder = self._folder(query)
        if not self._restore:
            return sound_checkpoint(query, folder, tables, SHARDS)
        checkpoint = restored_checkpoint(query, folder, tables, SHARDS, self._log)
        if checkpoint.restored:
            _log.info("query %s goes on from %s", query.name, dict(checkpoint.restored[0]))
        return checkpoint

    def _run_queries(self, session: SparkSession, tables: Tables, checkpoints: Sequence[Checkpoint]) -> None:
        running: list[RunningQuery] = []
        log_input, percent = LogInput(self._config.log, self._config.rows_max), self._config.letters_percent
        try:
            for query, checkpoint in zip(self._queries, checkpoints, strict=True):
                self._registration(checkpoint).register(self._log.keys())
                running.append(RunningQuery(session, query, checkpoint, log_input, tables, percent))
            self._starting = False
            self._status.enter("running")
            self._watch(tables, running)
        finally:
            self._starting = False  # a signal no longer interrupts
            for one in running:
                one.stop()
        self._status.show_last(describe(self._log, tables, running))
        self._status.enter("stopped" if self._stopping.is_set() else "finished")

    def _watch(self, tables: Tables, running: Sequence[RunningQuery]) -> None:
        while not self._stopping.is_set():
            for one in running:
                one.check()
            if self._has_ended(tables):
                # Progress reports come after the write: these are the last ones.
                for one in running:
                    one.settle()
                    one.check()
                    one.writer.release(one.writer.last.batch_id)
                _log.info("every source has ended and everything is in the tables")
                return
            self._status.show(lambda: describe(self._log, tables, running))
            bound_log(self._config.state / SPARK_LOG_FILE)
            self._stopping.wait(_POLL_S)

    def _has_ended(self, tables: Tables) -> bool:
        newest, keys = self._log.positions(self._plan.graph.name), self._log.keys()
        for query in self._queries:
            held = tables.positions(query.name)
            if any(held.get(key, 0) < newest.get(key, 1) for key in keys):
                return False
            if query_clock(self._log, query, held) < END_OF_TIME or not is_flushed(self._log, query, held):
                return False
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the driver until its flow has ended or a signal stops it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="geartrain_cloud.spark.driver",
        description="Run a flow's cloud part on Spark, from log to tables.",
    )
    parser.add_argument("--config", required=True, metavar="FILE.toml", type=Path)
    anew = parser.add_mutually_exclusive_group()
    anew.add_argument("--reset", action="store_true", help="empty tables and checkpoints first")
    anew.add_argument(
        "--restore",
        action="store_true",
        help="make a checkpoint that is lost or torn again from the log, up to where the tables stand",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    os.umask(0o077)
    try:
        config = read_config(options.config)
        driver = Driver(config, config.plan(), reset=options.reset, restore=options.restore)
    except ConfigError as error:
        return _said(str(error), EXIT_CONFIG)
    except GeartrainError as error:
        return _said(f"{options.config}: {error}", EXIT_CONFIG)
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        received.append(number)
        driver.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        driver.run()
    except BreakerError as error:
        return _said(str(error), EXIT_CONFIG)
    except RefusedError as error:
        return _said(str(error), EXIT_REFUSED)
    except GeartrainError as error:
        return _said(f"{error} (more in {config.state / SPARK_LOG_FILE})", EXIT_FAILED)
    return EXIT_INTERRUPTED if signal.SIGINT in received else EXIT_OK


def _said(sentence: str, code: int) -> int:
    sys.stderr.write(f"driver: {printable(' '.join(sentence.split()))}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
