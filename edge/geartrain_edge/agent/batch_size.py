"""Batch size: how many records the next commit may gather, so that large records do not make large commits.

The reading side of the agent uses it. The size of a commit is known only after it is encoded, so each commit
sets the number of records for the next one. Guarantees: that number is at least one, and never more than the
settings allow. After a commit larger than `COMMIT_BYTES_MAX`, it falls until a commit has about that size. It
then grows again, and each commit doubles it at most.
"""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.ports import SpooledBatch

COMMIT_BYTES_MAX = 4 << 20
"""Bytes of batches in one commit, about."""
_FIRST_RECORDS = 1_000


class BatchSize:
    """How many records the commits of one agent may gather."""

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self.records = min(_FIRST_RECORDS, records_max)
        """Records that the next commit may gather."""

    def committed(self, records: int, batches: Sequence[SpooledBatch]) -> None:
        """Note that so many records were gathered for a commit of these batches."""
        if not records:
            return
        size = sum(batch.size for batch in batches)
        fitting = records * COMMIT_BYTES_MAX // size if size else self._records_max
        self.records = max(1, min(self._records_max, fitting, 2 * max(self.records, records)))
