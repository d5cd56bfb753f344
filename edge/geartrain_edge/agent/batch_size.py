"""Batch size: how many records the next commit may gather, so that large records do not make large commits.

Beside the reading side of the agent. A commit's size is known only once it is encoded, so that each says how
many records the next may have. Guarantees: never more than the settings allow, and never none; commits come
down to about `COMMIT_BYTES_MAX` as soon as one was larger, and grow again by doubling.
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
