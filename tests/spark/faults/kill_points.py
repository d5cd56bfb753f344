"""The driver, killed at a point that is named by the environment: itself and its Java, with SIGKILL.

Production has no such points: this entry puts its own reader and wrappers into the places of production's.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from geartrain.schema import ColumnBatch
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.spark import driver, reading
from geartrain_cloud.spark.compile import KEYED
from geartrain_cloud.spark.micro_batch import MicroBatchWriter
from geartrain_cloud.spark.sealed import Sealed
from tests.spark.faults.flows import LEFT

POINTS = ("before the offset log", "after the offset log", "in the sink", "after the sink", "between")
"""`after the sink`: before Spark's commit; `between`: two micro-batches, where nothing is new."""

POINT, GROUP = "KILL_POINT", "KILL_GROUP"
AT = 2
"""How often one life has come to the point, this time included."""


def reached(point: str, seen: dict[str, int]) -> None:
    """Kill the driver where `point` is the one and was come to `AT` times."""
    seen[point] = seen.get(point, 0) + 1
    if os.environ.get(POINT) == point and seen[point] == AT:
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        time.sleep(60)  # a worker of Spark's is in a group of its own, and ends when Java is gone


class KilledReader(reading.QueryReader):
    """Spark asks it for the end of a micro-batch, writes that down, and asks it what to read."""

    def __init__(self, options: Any, stage: Sealed[reading.Reading]) -> None:
        super().__init__(options, stage)
        self._is_watched = LEFT in self._channels
        self._seen: dict[str, int] = {}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        end = super().latestOffset(start, limit)
        if self._is_watched and end != start:
            reached("before the offset log", self._seen)
        elif self._is_watched and any(start.values()):
            reached("between", self._seen)
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if self._is_watched:
            reached("after the offset log", self._seen)
        return super().partitions(start, end)


def patch() -> None:
    """Put the points into this process."""
    seen: dict[str, int] = {}
    write, laid_out = MicroBatchWriter.__call__, Layout.rows

    def killed_write(self: MicroBatchWriter, frame: DataFrame, batch_id: int) -> None:
        write(self, frame, batch_id)
        if self._checkpoint.query == KEYED:
            reached("after the sink", seen)

    def killed_rows(self: Layout, batches: Iterable[ColumnBatch]) -> Iterator[Any]:
        for number, row in enumerate(laid_out(self, batches)):
            yield row
            if self.sink == "each" and number == 5:
                reached("in the sink", seen)

    MicroBatchWriter.__call__ = killed_write  # type: ignore[method-assign]
    Layout.rows = killed_rows  # type: ignore[method-assign]
    vars(reading)["QueryReader"] = KilledReader


def main() -> int:
    """The driver, with the points."""
    os.environ[GROUP] = str(os.getpgrp())
    patch()
    return driver.main()


if __name__ == "__main__":
    from tests.spark.faults import kill_points

    sys.exit(kill_points.main())
