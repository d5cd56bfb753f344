"""The process from which Spark's Python workers are forked, with all that they import already there.

`python -m geartrain_cloud.spark.worker_daemon MODULE` stands in the place of `pyspark.daemon`. Spark forks a
worker for each task that runs at a time. With `pyspark.daemon`, a worker imports for a second before it does
anything: at a query's start, and again wherever workers have died.

Guarantees: nothing that is imported here has started a thread, which a fork would lose. No user code is
imported before the fork.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

from pyspark.daemon import manager

STAGES = "pyspark.worker"
"""The module of those that run stages; the others, which plan, are started once and need little of this."""

SINGLE_THREADED = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
"""Which keep pyarrow and numpy from starting threads when they are imported; Spark runs a worker a core."""

PRELOADED = (
    "pyspark.worker",
    "pyarrow",
    "pandas",
    "pyspark.sql.conversion",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.streaming.stateful_processor_util",
    "geartrain_cloud.spark.chains",
    "geartrain_cloud.spark.embedded",
    "geartrain_cloud.spark.columns",
    "geartrain_cloud.hosting.source",
    "geartrain_cloud.hosting.stage",
)


def preload() -> None:
    """Import what a worker of a stage needs, and have collections of garbage in workers leave it alone."""
    for name, value in SINGLE_THREADED.items():
        os.environ.setdefault(name, value)
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if sys.argv[1:2] == [STAGES]:
        preload()
    manager()
