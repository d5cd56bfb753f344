"""The host, killed at a point that is named by the environment: itself and its Java, with SIGKILL.

Production has no such points: this entry puts its own reader and wrappers into the places of production's.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from geartrain.schema import ColumnBatch
from geartrain_cloud.hosting import group_query, main
from geartrain_cloud.hosting.offsets import count_name
from geartrain_cloud.hosting.source import HostReader, HostSource
from geartrain_cloud.hosting.writer import HostWriter
from geartrain_cloud.sinks.layout import Layout
from tests.spark.faults.hosts import GENERATION

POINTS = ("before the offset log", "after the offset log", "in the sink", "after the sink", "between")
"""`after the sink`: before Spark's commit; `between`: two micro-batches, where nothing is new."""

POINT, GROUP = "KILL_POINT", "KILL_GROUP"
AT = 2
"""How often one life has come to the point, this time included."""

_seen = Counter[str]()


def reached(point: str) -> None:
    """Kill the host where `point` is the one and was come to `AT` times."""
    _seen[point] += 1
    if os.environ.get(POINT) == point and _seen[point] == AT:
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        time.sleep(60)  # a worker of Spark's is in a group of its own, and ends when Java is gone


def moves(start: dict[str, int], end: dict[str, int]) -> bool:
    """Whether a micro-batch has the flow go on."""
    name = count_name(GENERATION)
    return end.get(name, -1) > start.get(name, -1)


class KilledReader(HostReader):
    """Spark asks it for the end of a micro-batch, writes that down, and asks it what to read."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        end = super().latestOffset(start, limit)
        if moves(start, end):
            reached("before the offset log")
        elif end == start and start.get(count_name(GENERATION), -1) >= 0:
            reached("between")
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if moves(start, end):
            reached("after the offset log")
        return super().partitions(start, end)


class KilledSource(HostSource):
    """Of this reader."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return KilledReader(self.options)


def patch() -> None:
    """Put the points into this process."""
    write, laid_out = HostWriter.__call__, Layout.rows

    def killed_write(self: HostWriter, frame: DataFrame, batch_id: int) -> None:
        write(self, frame, batch_id)
        offsets, former = (self._checkpoint.positions(number) for number in (batch_id, batch_id - 1))
        if moves(former, offsets):
            reached("after the sink")

    def killed_rows(self: Layout, batches: Iterable[ColumnBatch]) -> Iterator[Any]:
        for number, row in enumerate(laid_out(self, batches)):
            yield row
            if self.sink == "each" and number == 5:
                reached("in the sink")

    HostWriter.__call__ = killed_write  # type: ignore[method-assign]
    Layout.rows = killed_rows  # type: ignore[method-assign]
    vars(group_query)["HostSource"] = KilledSource


def run() -> int:
    """The host, with the points."""
    os.environ[GROUP] = str(os.getpgrp())
    patch()
    return main.main()


if __name__ == "__main__":
    from tests.spark.faults import kill_points

    sys.exit(kill_points.run())
