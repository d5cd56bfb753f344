"""Steps that leave put out first what they hold: open windows, and records that wait for their order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting.admission import Admission
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.offsets import count_name
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.whole import numbers
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import MillLog

SECOND_US = 1_000_000
APP = "river.1"


def want(wanted: Wanted, number: int, former: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Want the flow with levels and windows as revision `number`; more: what that one takes from it."""
    plan = {"flow": "mill.revisions:both", "cut": "cloud", **more}
    for gone in ("without", "drain"):
        wanted.flows[APP].pop(gone, None)
    wanted.flows[APP] |= plan | {"revision": number, "former": former}
    wanted.write()
    return plan


def expected(log: MillLog, begin: int) -> dict[str, list[tuple[Any, ...]]]:
    """What plain Python makes of the records; those before `begin` also come to the steps that leave, all of
    them, whether their window or their turn had come or not.
    """
    sums: dict[str, tuple[int, float]] = {}
    each, level, levels = [], [], Counter[int]()
    seconds: Counter[tuple[str, int]] = Counter()
    for number, (reading, time, _, _) in enumerate(log.records):
        count, total = sums.get(reading.sensor, (0, 0.0))
        sums[reading.sensor] = count, total = count + 1, total * 0.25 + reading.value
        each.append((reading.sensor, count, total, total / 2))
        if number < begin:
            levels[count] += 1
            level.append((count, levels[count]))
            seconds[reading.sensor, time // SECOND_US * SECOND_US] += 1
    return {"each_sum": each, "level": level, "second": [(*key, n) for key, n in seconds.items()]}


def test_what_steps_hold_that_leave_is_put_out_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log = wanted.add(APP, 0)
    first = want(wanted, 1, [])
    log.append(170)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(APP)
        held = {table: len(rows(wanted.tables(APP), table)) for table in ("level", "second")}
        begin = len(log.records)
        full = expected(log, begin)
        assert held["level"] < len(full["level"])  # some wait for their order
        assert held["second"] < len(full["second"])  # and windows are open
        with monkeypatch.context() as patch:
            # Nothing crosses, so the micro-batch that puts out is the last one when the host ends.
            cross = Group.cross

            def drains_only(group: Group, admission: Admission) -> bool:
                is_begun = any(one.drains for one in group.version.flows.values())
                return False if is_begun else cross(group, admission)

            patch.setattr(Group, "cross", drains_only)
            want(wanted, 2, [first], without=["levels", "per_second"], drain=True)
            hosting.until(lambda: wanted.status(APP)["prepared"] == 2)
            log.writer.revise(2)
            log.append(80)
            group = hosting.host.groups.shared
            hosting.until(lambda: has_drained(group))
        location = group._checkpoint.location
        assert wanted.status(APP)["revision"] == 1
        hosting.close()
        last = numbers(location / "commits")[-1]
        for path in location.joinpath("commits").glob(f"*{last}*"):
            if path.name.strip(".").removesuffix(".crc") == str(last):
                path.unlink()  # as if it were killed before that, so the micro-batch runs again
        hosting = Hosting(spark, wanted)
        hosting.through(APP)
        said = wanted.status(APP)
        assert said["revision"] == 2
        assert said["dropped"]["levels_order"] == said["dropped"]["per_second"] == 0  # nothing was left there
        noted = hosting.host.groups.shared._places.dropped(f"{APP}~2")
        for name, text in (("0.9.a1", '{"levels_order": 7}'), ("0.9.b2", '{"levels_or'), ("0.9.c3", "")):
            (noted / f".{name}").write_text(text)  # as workers leave them that are killed there
        log.append(30)
        hosting.through(APP)
        assert wanted.status(APP)["dropped"] == said["dropped"]
        for table, rows_wanted in expected(log, begin).items():
            found = [tuple(row.values()) for row in rows(wanted.tables(APP), table)]
            assert sorted(found, key=str) == sorted(rows_wanted, key=str), table
            assert rows_wanted
    finally:
        hosting.close()
        wanted.close()


def has_drained(group: Group) -> bool:
    """Whether Spark has committed the micro-batch in which steps put out what they hold."""
    drains = [one for one in group.version.flows.values() if one.drains]
    offsets = group.committed()
    return any(offsets.get(count_name(one.name), -1) > one.drain_count for one in drains)
