"""Hosted flows whose tables are schemas of PostgreSQL: locked, away, replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.platform.runs import served_run
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import ORDER_COLUMNS
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import TABLES, MillLog
from tests.hosting.test_hosting import lose_the_last_commit
from tests.postgres_server import Postgres

ROWS_MAX = 100_000


def assert_tables(wanted: Wanted, log: MillLog, dsn: str) -> None:
    """What is served equals what plain Python makes of the log, and so does what a reader shows."""
    app = AppTables(wanted.tables(log.instance), dsn)
    reader = app.reader(app.served)
    assert reader is not None
    tables: dict[str, list[tuple[Any, ...]]] = {}
    with psycopg.connect(dsn) as db:
        schema = app.place(app.served).rpartition(" ")[2]
        for name in TABLES:
            columns = ", ".join(reader.columns(name))
            statement = f"SELECT {columns} FROM {schema}.{name} ORDER BY {', '.join(ORDER_COLUMNS)}"
            tables[name] = db.execute(statement).fetchall()
            shown = [tuple(row.values()) for row in reader.page(name, 0, ROWS_MAX)]
            assert shown == sorted(tables[name])
    log.assert_rows(tables)


def schemas(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as db:
        found = db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%run%'").fetchall()
    return sorted(name for (name,) in found)


@pytest.mark.proof
def test_a_locked_schema_holds_its_flow_alone_and_a_replay_swaps_schemas(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    dsn = postgres.database("geartrain_hosted")
    wanted = Wanted(tmp_path, monkeypatch)
    stone, wheel = wanted.add("stone.1", 0), wanted.add("wheel.1", 1)
    stone.append(300)
    wheel.append(100)
    wanted.write()
    hosting = Hosting(spark, wanted, store=dsn)
    try:
        hosting.through("stone.1", "wheel.1")
        assert schemas(dsn) == ["stone_1_run_1", "wheel_1_run_1"]
        assert_tables(wanted, stone, dsn)
        with psycopg.connect(dsn) as other:
            other.execute("LOCK TABLE stone_1_run_1.each_sum")
            stone.append(100)
            hosting.until(lambda: wanted.status("stone.1")["state"] == "held")
            hosting.until(lambda: "is in use by another program" in wanted.status("stone.1")["why"])
            for _ in range(2):
                stone.append(50)
                wheel.append(50)
                hosting.through("wheel.1")
            assert_tables(wanted, wheel, dsn)
        hosting.through("stone.1", "wheel.1")
        assert_tables(wanted, stone, dsn)

        hosting.close()
        lose_the_last_commit(wanted.state)  # the schemas hold a micro-batch that Spark has not committed
        stone.append(70)
        postgres.stop("immediate")
        hosting = Hosting(spark, wanted, store=dsn)
        hosting.until(lambda: "cannot be reached" in wanted.status("stone.1").get("why", ""))
        assert wanted.status("stone.1")["state"] == "held"
        postgres.start()
        hosting.through("stone.1", "wheel.1")
        assert_tables(wanted, stone, dsn)
        assert_tables(wanted, wheel, dsn)

        with psycopg.connect(dsn) as other:
            other.execute("DELETE FROM stone_1_run_1.kept")  # what the first run holds is wrong from now on
        wanted.flows["stone.1"]["run"] = 2
        wanted.write()
        hosting.until(lambda: served_run(wanted.tables("stone.1")) == 2)
        hosting.until(lambda: schemas(dsn) == ["stone_1_run_2", "wheel_1_run_1"])
        stone.append(50)
        hosting.through("stone.1")
        assert_tables(wanted, stone, dsn)
        assert not wanted.tables("stone.1").exists()
        assert wanted.status("stone.1")["rows"] > 0
    finally:
        hosting.close()
        wanted.close()
