"""What the works on Spark share: streaming queries that are run to their end, and timed by the clock.

Most of the work is done in other processes (Java, Python workers), so it is the clock that counts; the
contenders of a work run in one session, in turns, after a round that is not counted: the first micro-batches
of a session are several times slower, because Java still interprets what it later compiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tests.bench.harness import SIZE, Contender

ForEach = Callable[[DataFrame, int], None]


def run_to_end(frame: DataFrame, sink: ForEach, folder: Path) -> float:
    """Seconds by the clock from the start of a query to its end, all that is there now being read."""
    began = time.perf_counter()
    checkpoint = folder / f"checkpoint-{time.monotonic_ns()}"
    writer = frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query: Any = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return time.perf_counter() - began


def warmed(contenders: Mapping[str, Contender]) -> Mapping[str, Contender]:
    """The contenders, after one run of each; at the size of the proofs nothing is timed, so none is run."""
    if SIZE > 0.01:
        for contender in contenders.values():
            contender()
    return contenders
