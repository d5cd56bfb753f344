"""Rows of one batch on their way into a segment: what ingest hands to the encoder.

Between the decoding of a batch and the file that keeps it. This module does not know Arrow, so ingest can
run with another encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from geartrain.errors import LedgerError
from geartrain.schema import ColumnBatch, Schema
from geartrain.wire.topics import BUCKETS, bucket

SYSTEM_NAMES: tuple[str, ...] = (
    "_event_time",
    "_origin_name",
    "_origin_number",
    "_origin_path",
    "_device",
    "_seq",
    "_late",
    "_overtaken",
)
"""Columns of every row of the log beside the record's own, in order. Names with _ are reserved for such."""


def partition_of(device: str, partitions: int) -> int:
    """Which of `partitions` the batches of a device go to: that of its bucket.

    Each partition has a run of neighbouring buckets, so that whoever owns a range of buckets owns partitions.
    """
    return int(bucket(device), 16) * partitions // BUCKETS


def buckets_of(partition: int, partitions: int) -> range:
    """The buckets whose devices go to a partition."""
    return range(-(-partition * BUCKETS // partitions), -(-(partition + 1) * BUCKETS // partitions))


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Rows of one batch, and what ingest knows of them.

    device, seq: the batch they came in; late: they were late at birth; overtaken: one flag a row, or None
    where no row is (a row below the partition's clock, of a device assigned after the clock had moved).
    """

    device: str
    seq: int
    rows: ColumnBatch
    late: bool = False
    overtaken: tuple[bool, ...] | None = None


class UnlikeError(LedgerError):
    """Segments cannot be merged, since the one at index `at` has rows of another type than those before."""

    def __init__(self, at: int) -> None:
        super().__init__("segments of different schemas cannot be merged")
        self.at = at


def segment_digest(data: bytes | memoryview) -> bytes:
    """The checksum by which the ledger knows a segment's bytes: blake2b of 16 bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


SegmentEncoder = Callable[[Schema, Sequence[SegmentPart]], bytes]
"""Makes the bytes of a segment; the parts' rows follow one another in it. Raises `LedgerError`."""
