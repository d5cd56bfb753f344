"""`gear-spark`, killed with its Java at a point that is named by the environment, with SIGKILL.

The points are the steps of a flow that goes over to its next revision, of one whose new steps read the log of
before, and of one whose keys are dealt over other slots. Production has none: this entry puts its own classes
into the places of production's.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from geartrain_cloud.hosting import group_query, main
from geartrain_cloud.hosting.admission import Admission
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.offsets import LEAVING, PLAN
from geartrain_cloud.hosting.source import HostReader, HostSource
from geartrain_cloud.hosting.stage import HostStage
from geartrain_cloud.hosting.versions import Hosted, Version
from geartrain_cloud.hosting.writer import HostWriter
from geartrain_cloud.spark.rows import CLOCKS

UPDATE = (
    *("prepared", "at the boundary", "tables opened", "version published", "before the offsets"),
    *("after the offsets", "state made anew", "rows written", "in force"),
)
"""`rows written`: before Spark's commit."""
PAST = ("past published", "past after the offsets", "past kept", "past written", "past taken")
"""Where new steps read the log of before. `past kept`: in the state, beside that of the flow; `past written`:
in a micro-batch that Spark has not committed; `past taken`: the same in the one that makes it the flow's.
"""
REBUILD = ("told to leave", "amid writing", "written", "slots named", "amid taking", "taken")
"""`written`, `taken`: in a micro-batch that Spark has not committed."""
POINT, NTH, GROUP = "KILL_POINT", "KILL_NTH", "KILL_GROUP"
"""NTH: at which of the times that a process comes to the point it is killed, 1 where nobody says."""

_PUBLISHED = {
    "update": "version published",
    "past": "past published",
    "leaving": "told to leave",
    "coming": "slots named",
}
_RAN = {
    "update": "rows written",
    "past": "past written",
    "from past": "past taken",
    "leaving": "written",
    "coming": "taken",
}
_times = Counter[str]()


def reached(point: str) -> None:
    """Kill the host where `point` is the one."""
    _times[point] += 1
    if point and os.environ.get(POINT) == point and _times[point] == int(os.environ.get(NTH, "1")):
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        time.sleep(60)  # a worker of Spark's is in a group of its own, and ends when Java is gone


def phase(version: Version) -> str:
    """How far the one flow of a version is."""
    flows = version.flows.values()
    if any(hosted.leaves_for for hosted in flows):
        return "leaving"
    if any(hosted.comes_from for hosted in flows):
        return "coming"
    if any(hosted.past for hosted in flows):
        return "past"
    if any(hosted.takes for hosted in flows):
        return "from past"
    return "update" if any(hosted.revision > 1 for hosted in flows) else ""


class KilledReader(HostReader):
    """Spark asks it for the end of a micro-batch, writes that down, and asks it what to read."""

    def _phase(self, offsets: dict[str, int]) -> str:
        return phase(self._versions.read(offsets[PLAN]))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        end = super().latestOffset(start, limit)
        if self._phase(start) == "update":
            reached("in force")
        elif self._phase(end) == "update":
            reached("before the offsets")
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        reached({"update": "after the offsets", "past": "past after the offsets"}.get(self._phase(end), ""))
        return super().partitions(start, end)


class KilledSource(HostSource):
    """Of this reader."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return KilledReader(self.options)


class KilledStage(HostStage):
    """In Spark's workers, where the state is."""

    def _run(self, rows: list[Row], *, drains: bool) -> Iterator[Row]:
        yield from super()._run(rows, drains=drains)
        version = next(row.sequence for row in rows if row.stream == CLOCKS)
        made = {"update": "state made anew", "past": "past kept"}
        reached(made.get(phase(self._opened().version(version)), ""))

    def _move(self, row: Row) -> None:
        super()._move(row)
        reached("amid writing" if row.stream == LEAVING else "amid taking")


def patch() -> None:
    """Put the points into this process."""
    check, hand_over = Group.check_crossing, Group._hand_over
    publish, write = Group._publish, HostWriter.__call__

    def killed_check(self: Group, admission: Admission) -> None:
        check(self, admission)
        reached("prepared")

    def killed_hand_over(self: Group, earlier: Hosted, hosted: Hosted, *more: Any) -> None:
        if not hosted.comes_from:
            reached("at the boundary")
        hand_over(self, earlier, hosted, *more)

    def killed_publish(self: Group, slots: int, flows: dict[str, Hosted]) -> None:
        before, now = phase(self.version), phase(Version(0, slots, flows))
        if now == "update" and before != now:
            reached("tables opened")
        publish(self, slots, flows)
        if before != now:
            reached(_PUBLISHED.get(now, ""))

    def killed_write(self: HostWriter, frame: DataFrame, batch_id: int) -> None:
        write(self, frame, batch_id)
        ran = phase(self._version(self._checkpoint.positions(batch_id)[PLAN]))
        reached(_RAN.get(ran, ""))

    Group.check_crossing = killed_check  # type: ignore[method-assign]
    Group._hand_over = killed_hand_over  # type: ignore[method-assign,assignment]
    Group._publish = killed_publish  # type: ignore[method-assign]
    HostWriter.__call__ = killed_write  # type: ignore[method-assign]
    vars(group_query)["HostSource"] = KilledSource
    vars(group_query)["HostStage"] = KilledStage


def run() -> int:
    """The host, with the points."""
    os.environ[GROUP] = str(os.getpgrp())
    patch()
    return main.main()


if __name__ == "__main__":
    from tests.hosting import killed_host

    sys.exit(killed_host.run())
