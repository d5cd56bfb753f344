"""Flows without a shuffle have a query without stages; the first shuffle of a revision gives it some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.group_file import has_stages
from geartrain_cloud.hosting.places import DIRECT, SHARED, HostPlaces
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import FACTORS, MillLog

PLAIN = {"flow": "mill.plain:direct", "cut": "cloud"}


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wanted]:
    made = Wanted(tmp_path, monkeypatch)
    yield made
    made.close()


def add(wanted: Wanted, instance: str) -> MillLog:
    """Want an instance of the flow without a shuffle."""
    log = wanted.add(instance, 0)
    wanted.flows[instance] |= PLAIN
    return log


def sum_up(wanted: Wanted, instance: str) -> None:
    """Want its revision with a shuffle."""
    wanted.flows[instance] |= {"flow": "mill.plain:summed", "revision": 2, "former": [PLAIN]}
    wanted.write()


def check(wanted: Wanted, instance: str, begin: int | None = None) -> None:
    """The tables hold what plain Python makes of the log; begin: from which record on there are sums."""
    kept = [r for r, *_ in wanted.logs[instance].records if r.value > 3.0]
    tables = wanted.tables(instance)
    assert [tuple(row.values()) for row in rows(tables, "kept", canonical=True)] == [
        (r.sensor, r.value) for r in kept
    ]
    if begin is None:
        return
    sums: dict[str, tuple[int, float]] = {}
    expected = list[tuple[Any, ...]]()
    for reading, *_ in wanted.logs[instance].records[begin:]:
        if reading.value > 3.0:
            count, total = sums.get(reading.sensor, (0, 0.0))
            sums[reading.sensor] = count + 1, total * FACTORS[0] + reading.value
            expected.append((reading.sensor, *sums[reading.sensor]))
    assert expected
    assert [tuple(row.values()) for row in rows(tables, "each_sum", canonical=True)] == expected


def groups_of(wanted: Wanted) -> list[str]:
    return sorted(path.name for path in HostPlaces(wanted.state).groups.iterdir())


def cross(wanted: Wanted, hosting: Hosting, instance: str) -> int:
    """Have an instance go over to its second revision; behind which record it does."""
    sum_up(wanted, instance)
    hosting.until(lambda: wanted.status(instance)["prepared"] == 2)
    log = wanted.logs[instance]
    log.writer.revise(2)
    begin = len(log.records)
    log.append(80)
    return begin


def test_a_first_shuffle_gives_the_query_stages_and_no_row_is_lost_or_doubled(
    spark: SparkSession, wanted: Wanted
) -> None:
    mill = wanted.add("mill.1", 1)
    logs = {name: add(wanted, name) for name in ("stone.1", "wheel.1")}
    wanted.write()
    hosting = Hosting(spark, wanted)
    places = HostPlaces(wanted.state)
    try:
        for log in (mill, *logs.values()):
            log.append(170)
        hosting.through("mill.1", *logs)
        assert groups_of(wanted) == [SHARED, DIRECT]
        assert not (places.group(DIRECT).folder / "spark" / "state").exists()
        begin = cross(wanted, hosting, "stone.1")
        logs["wheel.1"].append(60)
        hosting.through("stone.1", "wheel.1")
        assert wanted.status("stone.1")["revision"] == 2
        assert has_stages(places.group(DIRECT))
        logs["stream.1"] = add(wanted, "stream.1")
        wanted.write()
        for log in (mill, *logs.values()):
            log.append(60)
        hosting.through("mill.1", *logs)
        assert groups_of(wanted) == [SHARED, DIRECT, f"{DIRECT}~2"]
        hosting.close()
        hosting = Hosting(spark, wanted)
        for log in (mill, *logs.values()):
            log.append(60)
        hosting.through("mill.1", *logs)
        for name in logs:
            check(wanted, name, begin if name == "stone.1" else None)
        mill.assert_tables(wanted.tables("mill.1"))
        for name in ("stone.1", "wheel.1"):
            del wanted.flows[name]
        wanted.write()
        hosting.until(lambda: groups_of(wanted) == [SHARED, f"{DIRECT}~2"])
    finally:
        hosting.close()


def test_a_host_that_ends_while_its_query_gets_stages_goes_on_where_all_stood(
    spark: SparkSession, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {name: add(wanted, name) for name in ("stone.1", "wheel.1")}
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        for log in logs.values():
            log.append(170)
        hosting.through(*logs)

        def end(group: Group) -> None:
            raise HostError("it ends here")

        with monkeypatch.context() as patch:
            patch.setattr(Group, "_empty_checkpoint", end)
            begin = cross(wanted, hosting, "stone.1")
            hosting.until(lambda: has_stages(HostPlaces(wanted.state).group(DIRECT)))
        hosting.close()
        hosting = Hosting(spark, wanted)
        logs["wheel.1"].append(60)
        hosting.through(*logs)
        assert wanted.status("stone.1")["revision"] == 2
        check(wanted, "stone.1", begin)
        check(wanted, "wheel.1")
    finally:
        hosting.close()
