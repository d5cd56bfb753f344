"""How many dead letters, late records and others each device has brought into the log, by the ledger alone.

Beside the log, for who judges devices by them. Guarantee: nothing is written, and no segment is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from geartrain.graph.graph import DEAD_LETTERS, LATE, is_of_system
from geartrain_cloud.log.opening import ledger_of
from geartrain_cloud.ports import partition_of_key

_QUERY = (
    "SELECT device, sum(count) FROM entries WHERE flow = ? AND channel = ? AND partition = ? AND number > ? "
    "GROUP BY device"
)
_OF_ALL = (
    "SELECT device, channel, sum(count) FROM entries WHERE flow = ? AND partition = ? AND number > ? "
    "AND number <= ? AND kind = 'rows' GROUP BY device, channel"
)
_BEGUN = (
    "SELECT partition, max(number) FROM entries WHERE flow = ? AND kind = 'revision' AND seq = ? "
    "GROUP BY partition"
)
_LAST = (1 << 63) - 1
ENTRIES_BEFORE = 10_000
"""Of each partition, that are looked at for who sent records before a place."""


class Brought(msgspec.Struct, frozen=True):
    """What a device has brought behind a place. records: of the flow's streams, late: too late for a window,
    before: of the flow's streams, shortly before that place.
    """

    records: int = 0
    late: int = 0
    before: int = 0


def begun(folder: Path, flow: str, revision: int) -> dict[str, int]:
    """By partition, the position at which the log in `folder` is told of a revision; raises `LedgerError`."""
    with ledger_of(folder) as ledger:
        return {str(partition): number for partition, number in ledger.execute(_BEGUN, (flow, revision))}


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


def brought_by_device(folder: Path, flow: str, behind: Mapping[str, int]) -> dict[str, Brought]:
    """By device what it has brought into the log in `folder` of a flow, as `letters_by_device`."""
    records, late, before = Counter[str](), Counter[str](), Counter[str]()
    with ledger_of(folder) as ledger:
        for partition, number in behind.items():
            place = (flow, partition_of_key(partition))
            rows = ledger.execute(_OF_ALL, (*place, number - ENTRIES_BEFORE, number)).fetchall()
            for device, channel, count in rows:
                before[device] += 0 if is_of_system(channel) else count
            for device, channel, count in ledger.execute(_OF_ALL, (*place, number, _LAST)).fetchall():
                records[device] += 0 if is_of_system(channel) else count
                late[device] += count if channel == LATE else 0
    return {one: Brought(records[one], late[one], before[one]) for one in records | late | before}
