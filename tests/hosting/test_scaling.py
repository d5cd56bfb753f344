"""The keys of a hosted flow are dealt over other slots while it runs: its tables are as plain Python's."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill.revisions import REFUSED
from tests.hosting.mill_log import MillLog

APP = "river.1"
SECOND_US = 1_000_000


def expected(log: MillLog) -> dict[str, list[tuple[Any, ...]]]:
    """What plain Python makes of the records: running sums, counts behind a second shuffle that wait for
    their order, windows, and what a broadcast knows when each record comes.
    """
    sums: dict[str, tuple[int, float]] = {}
    each, level, levels = [], [], Counter[int]()
    seconds: Counter[tuple[str, int]] = Counter()
    sensors, seen = set(), []
    for reading, time, _, _ in log.records:
        count, total = sums.get(reading.sensor, (0, 0.0))
        sums[reading.sensor] = count, total = count + 1, total * 0.25 + reading.value
        each.append((reading.sensor, count, total, total / 2))
        levels[count] += 1
        level.append((count, levels[count]))
        seconds[reading.sensor, time // SECOND_US * SECOND_US] += 1
        sensors.add(reading.sensor)
        if reading.value != REFUSED:
            seen.append((reading.sensor, len(sensors), reading.value))
    windows = [(*key, count) for key, count in seconds.items()]
    return {"each_sum": each, "level": level, "second": windows, "seen": seen}


def river(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Wanted, MillLog]:
    """An app with all of these, which is wanted, and its log."""
    wanted = Wanted(folder, monkeypatch)
    log = wanted.add(APP, 0)
    wanted.flows[APP] |= {
        "flow": "mill.revisions:with_table",
        "broadcasts": ["looked"],
        "letters_percent": 100,
    }
    wanted.write()
    return wanted, log


def assert_tables(wanted: Wanted, log: MillLog) -> None:
    for table, held in expected(log).items():
        found = [tuple(row.values()) for row in rows(wanted.tables(APP), table)]
        assert sorted(found, key=str) == sorted(held, key=str), table
        assert held
    letters = [bytes.fromhex(row["raw"]) for row in rows(wanted.tables(APP), "dead_letters")]
    refused = [reading for reading, *_ in log.records if reading.value == REFUSED]
    assert sorted(letters) == sorted(map(msgspec.json.encode, refused))


def has_slots(wanted: Wanted, slots: int) -> bool:
    return bool(wanted.status(APP).get("slots") == slots)


def test_slots_change_while_it_runs_and_no_row_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, log = river(tmp_path, monkeypatch)
    log.append(170)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(APP)
        hosting.until(lambda: bool(wanted.status(APP)["skew"]))  # counted once the rows are in their tables
        assert wanted.status(APP)["slots"] == 2
        skew = {one["step"]: one for one in wanted.status(APP)["skew"]}
        assert set(skew) == {"by_sensor", "by_count", "by_name"}
        assert 0.5 <= skew["by_sensor"]["share"] < 1
        assert wanted.status(APP)["state_bytes"] > 1_000
        for slots in (5, 1):
            wanted.flows[APP]["slots"] = slots
            wanted.write()
            log.append(60)
            hosting.until(partial(has_slots, wanted, slots))
        log.append(60)
        log.writer.end()
        hosting.through(APP)
        said = wanted.status(APP)
        assert (said["slots_wanted"], said["generation"], said["why"]) == (0, 3, "")
        assert said["state_bytes"] > 1_000
        assert_tables(wanted, log)
    finally:
        hosting.close()
        wanted.close()
