"""The seams of I7: every effect (time, net, disk, randomness, the two stores) enters through these protocols.

Production forms stand in `geartrain.adapters`, `geartrain_edge` and `geartrain_cloud`; simulated ones in
`geartrain_simulation`. The code above a port starts no thread and touches no socket, file or clock of its
own.
"""

from geartrain.ports.clock import Clock, Randomness
from geartrain.ports.disk import Disk
from geartrain.ports.ledger import (
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
    position_key,
    split_key,
)
from geartrain.ports.net import Connection, Incoming, Net
from geartrain.ports.spool import (
    Rewrite,
    SplitProgress,
    SpoolCommit,
    SpooledBatch,
    SpoolImage,
    SpoolStore,
    SpoolTip,
)

__all__ = [
    "AckCursor",
    "BatchDigest",
    "Clock",
    "ClosedEpoch",
    "Connection",
    "Disk",
    "Entry",
    "EntryKind",
    "HeldSegment",
    "Incoming",
    "LedgerChange",
    "LedgerStore",
    "Net",
    "QuarantinedBatch",
    "QueryProgress",
    "Randomness",
    "ReplacedFile",
    "Rewrite",
    "SplitProgress",
    "SpoolCommit",
    "SpoolImage",
    "SpoolStore",
    "SpoolTip",
    "SpooledBatch",
    "StoredSchema",
    "StoredSegment",
    "position_key",
    "split_key",
]
