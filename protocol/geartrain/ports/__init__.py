"""The seams of I7: every effect (time, net, disk, randomness, the spool) enters through these protocols.

Production forms stand in `geartrain.adapters`, `geartrain_edge` and `geartrain_cloud`; simulated ones in
`geartrain_simulation`. The code above a port starts no thread and touches no socket, file or clock of its
own. The ledger has its port in the cloud, where it is: no device has one.
"""

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
    StateSize,
)

__all__ = [
    "Clock",
    "Connection",
    "Disk",
    "Incoming",
    "Net",
    "Randomness",
    "Rewrite",
    "SplitProgress",
    "SpoolCommit",
    "SpoolImage",
    "SpoolStore",
    "SpoolTip",
    "SpooledBatch",
    "StateSize",
]
