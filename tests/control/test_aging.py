"""Rows of tables that control removes by age: of which apps and runs, and by which limit."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from geartrain import Table
from geartrain.adapters.system import SystemClock
from geartrain.schema import ColumnBatch, derive
from geartrain_cloud.control.aging import Aging, tables_age_s
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import State
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig, TablesSection, read_platform
from geartrain_cloud.sinks.app_tables import AppTables
from tests.control.test_reconciler import ASKED, OUTLINE
from tests.spark.flows import Reading

DAY_US = 86_400_000_000


def values(app: AppTables, run: int) -> list[float]:
    reader = app.reader(run)
    assert reader is not None
    return [row["value"] for row in reader.page("readings", 0, 10)]


def fill(app: AppTables, run: int, times: list[int]) -> None:
    own = app.open("heat.1", run, 0.1)
    own.declare("readings", Table("readings"), derive(Reading))
    own.attach("main", "c", has_run=False)
    count = len(times)
    ages = [float(number) for number in range(count)]
    own.write(
        "main",
        0,
        {"0": 1},
        {"readings": [ColumnBatch([["s"] * count, ages], times, ["a"] * count, [*range(count)])]},
    )
    own.close()


def test_the_stricter_limit_holds_for_all_runs_and_after_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, config = SystemClock(), PlatformConfig(tmp_path)
    store = ControlStore(config.places.control, clock.now_us)
    instance, app = store.apps.submit(ASKED, OUTLINE), AppTables(config.places.tables("heat.1"))
    now_us = clock.now_us()
    for run in (1, 2):
        fill(app, run, [now_us - 3 * DAY_US, now_us - 2 * DAY_US, now_us])
    aging = Aging(store, config, clock)
    asyncio.run(aging.round())
    assert values(app, 1) == values(app, 2) == [0.0, 1.0, 2.0]
    assert tables_age_s(instance, config) is None

    instance = store.apps.retain(instance.name, None, None, 2.5 * 86_400)
    asyncio.run(aging.round())
    assert values(app, 1) == values(app, 2) == [1.0, 2.0]

    store.apps.enter(instance.instance, State.ENDED)
    with pytest.raises(ConflictError, match="its log stays as it is"):
        store.apps.retain(instance.name, 1.0, None)
    strict = PlatformConfig(tmp_path, tables=TablesSection(retain_s=86_400.0))
    assert tables_age_s(instance, strict) == 86_400.0
    asyncio.run(Aging(store, strict, clock).round())
    assert values(app, 1) == values(app, 2) == [2.0]
    assert (app.removed_rows(1), app.removed_rows(2)) == (2, 2)

    app.first.write_bytes(b"no database, but something of this length")
    with caplog.at_level(logging.WARNING):
        asyncio.run(Aging(store, strict, clock).round())
    assert "old rows of app heat stay for now" in caplog.text
    assert "is damaged" in caplog.text
    store.close()


def test_the_configuration_holds_an_age(tmp_path: Path) -> None:
    path = tmp_path / "platform.toml"
    path.write_text("[tables]\nretain_s = 3600\n")
    assert read_platform(path).tables.retain_s == 3600.0
