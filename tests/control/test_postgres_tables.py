"""What control shows and purges of apps whose tables are in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from geartrain import Table
from geartrain.schema import ColumnBatch, derive
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.reconciler import PURGE_EVERY_US, Reconciler
from geartrain_cloud.control_store.errors import NotFoundError
from geartrain_cloud.control_store.model import Mode
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig, TablesSection
from geartrain_cloud.platform.runs import serve_run
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import TableError
from tests.control.test_reconciler import ASKED, OUTLINE
from tests.postgres_server import Postgres
from tests.spark.flows import Reading


def fill(app: AppTables, run: int, count: int, sensor: str = "s") -> None:
    own = app.open("heat.1", run, 0.1)
    own.declare("readings", Table("readings"), derive(Reading))
    own.attach("main", "c", has_run=False)
    columns = ColumnBatch([[sensor] * count, [1.0] * count], [0] * count, ["a"] * count, [*range(count)])
    own.write("main", 0, {"0": 1}, {"readings": [columns]}, count)
    own.close()


def test_the_schema_that_is_served_is_shown_and_all_are_purged(postgres: Postgres, tmp_path: Path) -> None:
    dsn, now = postgres.database("geartrain_control"), [10**15]

    def clock() -> int:
        now[0] += 1
        return now[0]

    config = PlatformConfig(tmp_path, tables=TablesSection(dsn))
    store = ControlStore(config.places.control, clock)
    reconciler = Reconciler(store, config, clock)
    observer = Observer(store, config, reconciler, lambda: "", lambda: 0.0)
    instance = store.apps.submit(ASKED, OUTLINE)
    assert observer.tables(instance) == {"items": [], "next": None}
    with pytest.raises(NotFoundError, match="has no tables yet"):
        observer.rows(instance, "readings", 0, 10, as_written=False)
    app = AppTables(config.places.tables("heat.1"), dsn)
    for run in (1, 2):
        fill(app, run, run)
    for run in (1, 2):
        serve_run(app.first, run)
        page = observer.rows(instance, "readings", 0, 10, as_written=False)
        assert page["rows"] == [["s", 1.0]] * run
        assert observer.rows(instance, "readings", 0, 1, as_written=True)["next"] == "1"
        assert {one["name"]: one["rows"] for one in observer.tables(instance)["items"]}["readings"] == run
        assert observer.info(instance)["tables"] == f"PostgreSQL, schema heat_1_run_{run}"

    store.apps.kill("heat", Mode.NOW, purge=True)
    postgres.stop("immediate")
    for _ in range(5):
        reconciler.round()
    assert [one.instance for one in store.apps.every()] == ["heat.1"]  # its tables are there
    with pytest.raises(TableError, match="cannot be reached"):
        observer.tables(instance)
    postgres.start()
    reconciler.round()
    assert len(store.apps.every()) == 1  # not tried at each round
    now[0] += PURGE_EVERY_US
    for _ in range(3):
        reconciler.round()
    assert store.apps.every() == []
    assert not config.places.app("heat.1").exists()
    with psycopg.connect(dsn) as db:
        found = db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'heat%'").fetchall()
    assert found == []
    store.close()


def test_no_byte_of_a_run_that_was_replayed_stays_in_the_files_of_its_tables(
    postgres: Postgres, tmp_path: Path
) -> None:
    gone, stays = "secret-of-d1", "reading-of-d2"
    app = AppTables(tmp_path / "tables.sqlite", postgres.database("geartrain_bytes"))

    def do(*statements: str) -> None:
        with psycopg.connect(postgres.dsn, autocommit=True) as db:
            for one in statements:
                db.execute(one)

    def held(text: str, folder: str = "base") -> bool:
        files = (path for path in (postgres.folder / "data" / folder).rglob("*") if path.is_file())
        return any(text.encode() in path.read_bytes() for path in files)

    fill(app, 1, 300, gone)
    do("CHECKPOINT")
    assert held(gone)
    fill(app, 2, 300, stays)
    app.remove(1)
    do("CHECKPOINT")
    assert (held(gone), held(stays)) == (False, True)
    again = ("SELECT pg_switch_wal()", "CHECKPOINT")
    do(*again)
    assert held(gone, "pg_wal")  # in files that are to be written over
    # As docs/platform.md has it.
    do("ALTER SYSTEM SET wal_recycle = off", "SELECT pg_reload_conf()")
    for _ in list((postgres.folder / "data" / "pg_wal").glob("0*")):
        do(*again)
    assert not held(gone, "")
    do("ALTER SYSTEM RESET wal_recycle", "SELECT pg_reload_conf()")
