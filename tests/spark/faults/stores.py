"""Two stores that one flow writes, SQLite and PostgreSQL, and what goes wrong with them.

Each function brings it about on a host that runs, and fails where a row is not in each store once.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from geartrain import Flow, Table
from geartrain.sinks import PostgresTable
from geartrain.testing import TestingSource
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.postgres import PostgresTables
from geartrain_cloud.sinks.sqlite import SqliteTables
from tests.hosting.hosted_run import INSTANCE, HostedRun
from tests.postgres_server import Postgres
from tests.spark.faults.flows import Row
from tests.spark.flows import Reading, positive
from tests.waiting import WAIT_S

BAD = 66.5
"""The value at which a store breaks in the middle of its transaction."""


def two_stores(dsn: str) -> Flow:
    flow = Flow("stores")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading)
    kept = readings.filter(positive)
    kept.sink("own", Table("kept"))
    kept.sink("other", PostgresTable("kept", dsn=dsn))
    return flow


class Stores:
    """The run, and what can go wrong with its stores."""

    def __init__(self, spark: SparkSession, folder: Path, server: Postgres, dsn: str) -> None:
        self.run = HostedRun(spark, folder, two_stores(dsn).graph(), rows_max=40)
        self.server, self.dsn = server, dsn
        self.records: list[Row] = []

    def begun(self) -> Stores:
        """With some rows in both of them."""
        self.append()
        self.run.run()
        return self

    def append(self, count: int = 60) -> None:
        """More for the log; one value in the middle is `BAD`."""
        first = len(self.records)
        for number in range(first, first + count):
            value = BAD if number == first + count // 2 else 1.0 + number
            self.records.append((Reading("s", value), number, "d/readings", number))
        self.run.log.append("readings", self.records[first:], rows_per_entry=10)

    def held(self) -> tuple[list[float], list[float]]:
        """The values that either store holds, in the order of their event times."""
        with closing(sqlite3.connect(self.run.tables)) as db:
            own = db.execute("SELECT value FROM kept ORDER BY _event_time").fetchall()
        with psycopg.connect(self.dsn) as other:
            held = other.execute("SELECT value FROM kept ORDER BY _event_time").fetchall()
        return [value for (value,) in own], [value for (value,) in held]

    def wanted(self) -> list[float]:
        """What either has to hold."""
        return [reading.value for reading, *_ in self.records]

    def why(self) -> str:
        """Why the flow is held, empty where it is not."""
        status = self.run.host_folder.status(INSTANCE)
        return str(status["why"]) if status.get("state") == "held" else ""

    def says(self, said: str) -> bool:
        """Whether the flow is held for that."""
        return re.search(said, self.why()) is not None

    def assert_each_once(self) -> None:
        """Both hold each row once."""
        assert self.held() == (self.wanted(), self.wanted())

    @contextmanager
    def locked_file(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.run.tables, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def row_refused_by_the_file(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.run.tables, isolation_level=None)) as db:
            db.execute(
                f"CREATE TRIGGER broken BEFORE INSERT ON kept WHEN NEW.value = {BAD} "
                "BEGIN SELECT RAISE(ABORT, 'no space left'); END"
            )
            try:
                yield
            finally:
                db.execute("DROP TRIGGER broken")

    @contextmanager
    def closed_database(self) -> Iterator[None]:
        with psycopg.connect(self.server.dsn, autocommit=True) as db:
            db.execute("ALTER DATABASE broken ALLOW_CONNECTIONS false")
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'broken'")
            try:
                yield
            finally:
                db.execute("ALTER DATABASE broken ALLOW_CONNECTIONS true")

    @contextmanager
    def row_refused_by_the_database(self) -> Iterator[None]:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            self.trigger(db, "RAISE EXCEPTION 'no space left'")
            try:
                yield
            finally:
                db.execute("DROP FUNCTION broken() CASCADE")

    def trigger(self, db: psycopg.Connection[Any], what: str) -> None:
        """Have the database do `what` when the bad row comes."""
        body = f"BEGIN IF NEW.value = {BAD} THEN {what}; END IF; RETURN NEW; END"
        function = f"CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $body${body}$body$"
        db.execute(function.encode())
        db.execute("CREATE TRIGGER broken BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION broken()")


@contextmanager
def lost_after(store: type[Any]) -> Iterator[None]:
    """What the store is given arrives, and the host does not hear of it."""
    write = store.write

    def broken(self: Any, *arguments: Any) -> Any:
        write(self, *arguments)
        raise TableError("the answer was lost")

    store.write = broken
    try:
        yield
    finally:
        store.write = write


def each_store_fails(stores: Stores) -> list[float]:
    """Each of the two before its transaction, within it and after it, one after the other; the seconds from
    the end of each fault until all was written.
    """
    taken_s = []
    faults: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
        "is in use by another program": stores.locked_file,
        "no space left": stores.row_refused_by_the_file,
        "the answer was lost": lambda: lost_after(SqliteTables),
        "is not currently accepting connections": stores.closed_database,
        r"the database refuses a statement \(no space left": stores.row_refused_by_the_database,
        "the answer was lost ": lambda: lost_after(PostgresTables),
    }
    with stores.run.hosting() as hosting:
        for said, fault in faults.items():
            with fault():
                stores.append()
                hosting.until(partial(stores.says, said.strip()))
                assert "\n" not in stores.why()
            began_s = time.monotonic()
            hosting.through(INSTANCE)
            taken_s.append(time.monotonic() - began_s)
            stores.assert_each_once()
    stores.run.log.close()
    return taken_s


def server_restarts(stores: Stores) -> list[float]:
    """PostgreSQL is restarted as by kill -9 within a transaction; the seconds until all was written."""
    with psycopg.connect(stores.dsn, autocommit=True) as db:
        stores.trigger(db, "PERFORM pg_sleep(1.5)")
    restarted: list[float] = []

    def restart() -> None:
        deadline = time.monotonic() + WAIT_S
        with psycopg.connect(stores.server.dsn, autocommit=True) as db:
            busy = "SELECT 1 FROM pg_stat_activity WHERE datname = 'broken' AND wait_event = 'PgSleep'"
            while not db.execute(busy).fetchone() and time.monotonic() < deadline:
                time.sleep(0.02)
            restarted.append(time.monotonic())
        stores.server.stop("immediate")  # as kill -9 does
        stores.server.start()

    stores.append()
    thread = threading.Thread(target=restart)
    thread.start()
    stores.run.run()
    thread.join()
    assert restarted
    stores.assert_each_once()
    stores.run.log.close()
    return [time.monotonic() - restarted[0]]
