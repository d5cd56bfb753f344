"""How many dead letters each device has brought into the log behind a place, by the ledger alone.

Beside the log, for who judges devices by them. Guarantee: nothing is written, and no segment is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from geartrain.graph.graph import DEAD_LETTERS
from geartrain_cloud.log.opening import ledger_of
from geartrain_cloud.ports import partition_of_key

_QUERY = (
    "SELECT device, sum(count) FROM entries WHERE flow = ? AND channel = ? AND partition = ? AND number > ? "
    "GROUP BY device"
)


def letters_by_device(folder: Path, flow: str, behind: Mapping[str, int]) -> Counter[str]:
    """By device the dead letters of a flow in the log in `folder`; behind: by partition, the position behind
    which they are counted. Raises `LedgerError`.
    """
    found = Counter[str]()
    with ledger_of(folder) as ledger:
        for partition, number in behind.items():
            place = (flow, DEAD_LETTERS, partition_of_key(partition), number)
            found.update(dict(ledger.execute(_QUERY, place).fetchall()))
    return found
