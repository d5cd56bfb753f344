"""What Spark runs behind a shuffle: the class between its stateful processor and our fragment.

It stands around `embedded.py`. Before a query's first micro-batch, Spark starts a separate process that only
asks what state there is. Guarantees: nothing of the fragment is imported there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from geartrain_cloud.spark.sealed import Sealed

if TYPE_CHECKING:
    from geartrain_cloud.spark.embedded import EmbeddedFragment


class KeyedStage(StatefulProcessor):
    """One stage of a query, over packed rows grouped by shard."""

    def __init__(self, fragment: EmbeddedFragment) -> None:
        self._fragment = Sealed(fragment)
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Take hold of the state."""
        self._state = handle.getMapState("buckets", "bucket int", "packed binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Run a shard's rows of this micro-batch, `ROUTED_ROWS` to `ROUTED_ROWS`."""
        return self._fragment.open().run(self._state, rows)

    def close(self) -> None:
        """Nothing is held between calls."""
