"""The seams of I7: every effect (time, net, disk, randomness, the two stores) enters through these protocols.

Production forms stand in `geartrain.adapters`, `geartrain_edge` and `geartrain_cloud`; simulated ones in
`geartrain_simulation`. The code above a port starts no thread and touches no socket, file or clock of its
own. What concerns the ledger is imported when it is first asked for: no device has one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geartrain.ports.clock import Clock, Randomness
from geartrain.ports.disk import Disk
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

if TYPE_CHECKING:
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

_LEDGER = "geartrain.ports.ledger"


def __getattr__(name: str) -> Any:
    """Import a name of the ledger when it is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'geartrain.ports' has no attribute {name!r}")
    return getattr(import_module(_LEDGER), name)
