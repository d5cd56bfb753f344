"""The interface between the cloud and its ledger."""

from geartrain_cloud.ports.ledger import (
    NO_SOURCE,
    AckCursor,
    BatchDigest,
    ClosedEpoch,
    Entry,
    EntryKind,
    HeldSegment,
    LedgerChange,
    LedgerStore,
    QuarantinedBatch,
    QueryProgress,
    ReplacedFile,
    StoredSchema,
    StoredSegment,
    partition_of_key,
    position_key,
)

__all__ = [
    "NO_SOURCE",
    "AckCursor",
    "BatchDigest",
    "ClosedEpoch",
    "Entry",
    "EntryKind",
    "HeldSegment",
    "LedgerChange",
    "LedgerStore",
    "QuarantinedBatch",
    "QueryProgress",
    "ReplacedFile",
    "StoredSchema",
    "StoredSegment",
    "partition_of_key",
    "position_key",
]
