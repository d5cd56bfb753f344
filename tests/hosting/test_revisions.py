"""A hosted flow goes from one revision to the next where its log says so, with its state."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain.records.event_time import END_OF_TIME
from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.sinks.tables import rows
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import MillLog

SECOND_US = 1_000_000
APP = "river.1"


class River:
    """An app that goes through the flows of `mill.revisions`, and what plain Python makes of that."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wanted = Wanted(folder, monkeypatch)
        self.log = self.wanted.add(APP, 0)
        self.revisions: list[dict[str, Any]] = []
        self.begins: list[int] = []
        """How many records there are before each revision."""

    def want(
        self,
        name: str,
        *,
        drops: list[str] | None = None,
        again: bool = False,
        follows: int = 0,
        past: dict[str, Any] | None = None,
    ) -> None:
        """Want a flow as the next revision; again: in the place of the last one; follows: after which one,
        where others are passed over; past: where new steps begin.
        """
        if again:
            self.revisions.pop()
        plan = {"flow": f"mill.revisions:{name}", "cut": "cloud", "drops": drops or [], "follows": follows}
        self.revisions.append(plan | (past or {}))
        flow = self.wanted.flows[APP]
        flow |= self.revisions[-1] | {"revision": len(self.revisions), "former": self.revisions[:-1]}
        self.wanted.write()

    def begin(self) -> None:
        """Have the log bring the newest revision here."""
        self.begins.append(len(self.log.records))
        if len(self.begins) > 1:
            self.log.writer.revise(len(self.begins))

    def levels(self) -> set[int]:
        """The counts that have come before the second revision, but for the last one, which waits."""
        first = self.log.records[: self.begins[1] - 1]
        return {number + 1 for number in range(max(Counter(r.sensor for r, *_ in first).values()))}

    def assert_tables(self, path: Path) -> None:
        """The tables hold what plain Python makes of each revision's records."""
        wanted = expected(self.log, self.begins)
        for table, held in wanted.items():
            found = [tuple(row.values()) for row in rows(path, table)]
            assert sorted(found, key=str) == sorted(held, key=str), table
            assert held


FACTORS = (0.5, 0.25, 0.25)
"""Of the revisions one, two and three."""


def expected(log: MillLog, begins: list[int]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of all tables: `levels` begins anew with the third revision, sums go on. With the second a
    column comes, and it goes with the third.
    """
    sums: dict[str, tuple[int, float]] = {}
    each, level, levels = [], [], Counter[int]()
    second: Counter[tuple[str, int]] = Counter()
    for number, (reading, time, _, _) in enumerate(log.records):
        revision = sum(number >= begin for begin in begins)
        count, total = sums.get(reading.sensor, (0, 0.0))
        sums[reading.sensor] = count + 1, total * FACTORS[revision - 1] + reading.value
        half = sums[reading.sensor][1] / 2 if revision == 2 else None
        each.append((reading.sensor, *sums[reading.sensor], *([half] if len(begins) == 2 else [])))
        if revision == 2:
            levels.clear()
            second[reading.sensor, time // SECOND_US * SECOND_US] += 1
        elif number + 1 not in begins[1:]:  # the last one waits for the clock, and goes with the step
            levels[count + 1] += 1
            level.append((count + 1, levels[count + 1]))
    last = log.records[begins[2] - 1][1] if len(begins) > 2 else END_OF_TIME
    closed = [(*key, n) for key, n in second.items() if key[1] + SECOND_US <= last]
    return {"each_sum": each, "level": level, "second": closed}


def test_steps_come_and_go_where_the_log_says_so(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    river = River(tmp_path, monkeypatch)
    wanted, log = river.wanted, river.log
    river.want("one")
    river.begin()
    log.append(100)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(APP)
        river.want("deep")  # what cannot go over is said before the log brings it
        hosting.until(lambda: "revision 2" in wanted.status(APP)["why"])
        said = wanted.status(APP)
        assert "3 shuffles" in said["why"]
        assert (said["state"], said["revision"], said["prepared"]) == ("running", 1, 1)
        river.want("none_such", again=True)
        hosting.until(lambda: "none_such" in wanted.status(APP)["why"])
        river.want("two_wide", again=True)  # the sums go on in a state of another type
        hosting.until(lambda: wanted.status(APP)["prepared"] == 2)
        assert wanted.status(APP)["revision"] == 1
        log.append(70)  # what comes before the revision is of the one before, also in one micro-batch
        river.begin()
        log.append(400)
        hosting.through(APP)
        said = wanted.status(APP)
        assert said["revision"] == 2
        assert said["dropped"] == {"levels": len(river.levels()), "levels_order": 1}
        log.writer.end()
        hosting.through(APP)
        river.assert_tables(wanted.tables(APP))
    finally:
        hosting.close()
        wanted.close()


def test_a_reader_ends_at_the_entry_of_the_next_revision(tmp_path: Path) -> None:
    log = MillLog(tmp_path, APP, 0)
    log.append(120)  # entries 1 to 3
    log.writer.revise(2)  # 4
    log.append(50)  # 5
    log.writer.revise(3)  # 6
    log.append(50)  # 7
    log.writer.close()
    reader = LogReader(tmp_path)
    assert [reader.boundary(APP, number) for number in (1, 2, 3, 4)] == [{}, {"0": 4}, {"0": 6}, {}]
    ends = {
        (after, of): reader.limit(APP, "0", after, Room(1_000), of)
        for after in (0, 3, 4, 6)
        for of in (0, 1, 2, 3)
    }
    assert [ends[0, of] for of in (0, 1, 2, 3)] == [7, 4, 6, 7]
    assert [ends[3, of] for of in (0, 1, 2, 3)] == [7, 4, 6, 7]
    assert [ends[4, of] for of in (0, 1, 2, 3)] == [7, 4, 6, 7]  # who runs revision 1 stays at its end
    assert [ends[6, of] for of in (0, 1, 2, 3)] == [7, 6, 6, 7]
    assert reader.limit(APP, "0", 0, Room(60), 1) == 1
