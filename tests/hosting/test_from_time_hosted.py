"""A hosted flow gets steps that first read the log of before: its host is started again meanwhile, it is put
out, and a replay does the same.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.platform.runs import tables_of_run
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting
from tests.hosting.mill_log import MillLog
from tests.hosting.test_revisions import APP, River

SECOND_US = 1_000_000
FIRST = 150
"""The first record that new steps read: an entry has 50, and the clock moves with every second entry."""
NEW = ("by_count_too", "by_name", "level_too", "levels_too", "levels_too_order", "per_second", "second")


@pytest.mark.proof
def test_new_steps_begin_in_the_log_of_before_over_restarts_and_in_a_replay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    river = River(tmp_path, monkeypatch)
    wanted, log = river.wanted, river.log
    river.want("one")
    river.begin()
    for _ in range(3):
        log.append(100)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(APP)
        time = log.records[FIRST][1]
        river.want("with_more", past={"begin": str(time), "attached": NEW})
        wanted.flows[APP] |= {"rows_max": 50}
        wanted.write()
        hosting.until(lambda: wanted.status(APP)["prepared"] == 2)
        river.begin()
        log.append(100)  # live records come meanwhile
        hosting.until(lambda: "read the log of before" in wanted.status(APP)["why"])
        hosting.close()  # amid what the new steps read
        hosting = Hosting(spark, wanted)
        wanted.flows[APP] |= {"attempt": 2}  # it is put out where it is, and comes in again
        wanted.write()
        hosting.until(lambda: wanted.status(APP).get("why") == "")
        hosting.through(APP)
        log.append(100)
        log.writer.end()
        hosting.through(APP)
        assert_tables(log, wanted.tables(APP))
        assert not wanted.status(APP)["dropped"]

        wanted.flows[APP] |= {"run": 2}
        wanted.write()
        hosting.until(lambda: wanted.status(APP)["run"] == 2)
        assert_tables(log, tables_of_run(wanted.tables(APP), 2))
    finally:
        hosting.close()
        wanted.close()


def assert_tables(log: MillLog, path: Path) -> None:
    """The tables hold what plain Python makes of the records, each row once."""
    for table, held in expected(log).items():
        found = [tuple(row.values()) for row in rows(path, table)]
        assert sorted(found, key=str) == sorted(held, key=str), table
        assert held


def expected(log: MillLog) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of all tables."""
    sums: dict[str, tuple[int, float]] = {}
    each, level, late = [], [], []
    seconds: Counter[tuple[str, int]] = Counter()
    levels, too = Counter[int](), Counter[int]()
    for number, (reading, time, _, _) in enumerate(log.records):
        count, total = sums.get(reading.sensor, (0, 0.0))
        sums[reading.sensor] = count + 1, total * 0.5 + reading.value
        each.append((reading.sensor, *sums[reading.sensor]))
        levels[count + 1] += 1
        level.append((count + 1, levels[count + 1]))
        if number >= FIRST:
            too[count + 1] += 1
            late.append((count + 1, too[count + 1]))
            seconds[reading.sensor, time // SECOND_US * SECOND_US] += 1
    return {
        "each_sum": each,
        "level": level,
        "level_too": late,
        "second": [(*key, n) for key, n in seconds.items()],
    }
