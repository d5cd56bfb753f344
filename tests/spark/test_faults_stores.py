"""SQLite and PostgreSQL that fail before, within and after their transaction, and a server that is restarted
in the middle of one: the query stops with one sentence or waits, and each row is in each store once.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from geartrain import Flow, PostgresTable, Table
from geartrain.testing import TestingSource
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.postgres import PostgresTables
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.spark.compile import STATELESS
from geartrain_cloud.spark.errors import QueryError
from tests.postgres_server import Postgres
from tests.spark.cloud import Cloud
from tests.spark.faults.flows import Row
from tests.spark.flows import Reading, positive

BAD = 66.5
"""The value at which a store breaks in the middle of its transaction."""


def two_stores(dsn: str) -> Flow:
    flow = Flow("stores")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading)
    kept = readings.filter(positive)
    kept.sink("own", Table("kept"))
    kept.sink("other", PostgresTable("kept", dsn=dsn))
    return flow


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database("broken")


class Stores:
    """The run, and what can go wrong with its stores."""

    def __init__(self, spark: SparkSession, folder: Path, server: Postgres, dsn: str) -> None:
        self.cloud = Cloud(spark, folder, rows_max=40, flow=two_stores(dsn))
        self.server, self.dsn = server, dsn
        self.records: list[Row] = []

    def append(self, count: int = 60) -> None:
        """More for the log; one value in the middle is `BAD`."""
        first = len(self.records)
        for number in range(first, first + count):
            value = BAD if number == first + count // 2 else 1.0 + number
            self.records.append((Reading("s", value), number, "d/readings", number))
        self.cloud.writer.append("readings", self.records[first:], rows_per_entry=10)

    def assert_each_once(self) -> None:
        wanted = [reading.value for reading, *_ in self.records]
        with closing(sqlite3.connect(self.cloud.tables_file)) as db:
            own = db.execute("SELECT value FROM kept ORDER BY _event_time").fetchall()
        with psycopg.connect(self.dsn) as other:
            held = other.execute("SELECT value FROM kept ORDER BY _event_time").fetchall()
        assert [value for (value,) in own] == wanted
        assert [value for (value,) in held] == wanted

    @contextmanager
    def locked_file(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.cloud.tables_file, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def row_refused_by_the_file(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.cloud.tables_file, isolation_level=None)) as db:
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
def lost_after(store: type[Any], failures: int = 1) -> Iterator[None]:
    """The store's first write arrives, and the driver does not hear of it."""
    write, calls = store.write, list[int]()

    def broken(self: Any, *arguments: Any) -> Any:
        written = write(self, *arguments)
        calls.append(1)
        if len(calls) <= failures:
            raise TableError("the answer was lost")
        return written

    store.write = broken
    try:
        yield
    finally:
        store.write = write


def test_each_row_is_in_each_store_once_wherever_one_fails(
    spark: SparkSession, tmp_path: Path, postgres: Postgres, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain_cloud.sinks.sqlite._BUSY_TIMEOUT_S", 0.2)
    stores = Stores(spark, tmp_path, postgres, dsn)
    stores.append()
    stores.cloud.run([STATELESS])
    faults: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
        "database is locked": stores.locked_file,
        "no space left": stores.row_refused_by_the_file,
        "the answer was lost": lambda: lost_after(SqliteTables),
        "is not currently accepting connections": stores.closed_database,
        "the database refused: no space left": stores.row_refused_by_the_database,
        "the answer was lost ": lambda: lost_after(PostgresTables),
    }
    for said, fault in faults.items():
        stores.append()
        with pytest.raises((QueryError, TableError), match=said.strip()) as stopped, fault():
            stores.cloud.run([STATELESS])
        assert "\n" not in str(stopped.value)
        stores.cloud.run([STATELESS])
        stores.assert_each_once()
    stores.cloud.writer.close()


def test_a_server_restarted_within_a_transaction_is_waited_for(
    spark: SparkSession, tmp_path: Path, postgres: Postgres, dsn: str
) -> None:
    stores = Stores(spark, tmp_path, postgres, dsn)
    stores.append()
    stores.cloud.run([STATELESS])
    with psycopg.connect(dsn, autocommit=True) as db:
        stores.trigger(db, "PERFORM pg_sleep(1.5)")
    restarted: list[float] = []

    def restart() -> None:
        deadline = time.monotonic() + 120
        with psycopg.connect(postgres.dsn, autocommit=True) as db:
            busy = "SELECT 1 FROM pg_stat_activity WHERE datname = 'broken' AND wait_event = 'PgSleep'"
            while not db.execute(busy).fetchone() and time.monotonic() < deadline:
                time.sleep(0.02)
            restarted.append(time.monotonic())
        postgres.stop("immediate")  # as kill -9 does
        postgres.start()

    stores.append()
    thread = threading.Thread(target=restart)
    thread.start()
    stores.cloud.run([STATELESS])
    thread.join()
    assert restarted
    stores.assert_each_once()
    stores.cloud.writer.close()
