"""status.json: what a person, a supervisor or a page wants to know of ingest, as of its last commit.

Stands beside the log and holds nothing that is not in the ledger. Guarantees: whoever reads the file reads a
whole one; rows, positions, clocks and seqs in it are durable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from geartrain.event_time import START_OF_TIME, format_time
from geartrain.ports import Disk, Entry
from geartrain_cloud.ingest.counters import ROWS_PREFIX, Counters
from geartrain_cloud.ingest.group import Partition, SealedGroup
from geartrain_cloud.ingest.streams import DeviceStream

STATUS_FILE = "status.json"

_NAMES_MAX = 20


class Durable:
    """What commits have made durable: of each channel rows, position and clock."""

    def __init__(self, partitions: Mapping[tuple[str, str], Partition], counters: Counters) -> None:
        self.rows = {place: counters[f"{ROWS_PREFIX}{place[0]}/{place[1]}"] for place in partitions}
        self.positions = {place: partition.number for place, partition in partitions.items()}
        self.clocks = {place: partition.logged_clock for place, partition in partitions.items()}

    def take(self, sealed: SealedGroup) -> None:
        """Remember a group that was committed."""
        for place, rows in sealed.rows.items():
            self.rows[place] += rows
        entry: Entry
        for entry in sealed.change.entries:
            self.positions[entry.flow, entry.channel] = entry.number
            self.clocks[entry.flow, entry.channel] = entry.clock


def make_status(
    now_us: int,
    term: int,
    is_connected: bool,
    partitions: Mapping[tuple[str, str], Partition],
    streams: Mapping[tuple[str, str], DeviceStream],
    durable: Durable,
    counters: Mapping[str, int],
) -> dict[str, Any]:
    """The content of status.json; docs/data_files.md describes it."""
    flows: dict[str, Any] = {}
    for (flow, channel), partition in sorted(partitions.items()):
        missing, holding = partition.clock.missing(), partition.clock.holding()
        clock = durable.clocks[flow, channel]
        flows.setdefault(flow, {"channels": {}, "devices": {}})["channels"][channel] = {
            "rows": durable.rows[flow, channel],
            "position": durable.positions[flow, channel],
            "clock": clock,
            "clock_time": None if clock == START_OF_TIME else format_time(clock),
            "missing": missing[:_NAMES_MAX],
            "missing_count": len(missing),
            "excluded": partition.clock.excluded[:_NAMES_MAX],
            "excluded_count": len(partition.clock.excluded),
            "holding": holding[:_NAMES_MAX],
            "holding_count": len(holding),
        }
    for (device, flow), stream in sorted(streams.items()):
        flows[flow]["devices"][device] = _device(stream)
    return {
        "written_at_us": now_us,
        "term": term,
        "connected": is_connected,
        "flows": flows,
        "counters": dict(counters),
    }


def _device(stream: DeviceStream) -> dict[str, Any]:
    cursor, contact = stream.durable, {"last_contact_us": stream.contact_us}
    if cursor is None:
        return {"epoch": "", "ordinal": 0, "seq": 0, **contact}
    return {"epoch": cursor.epoch.hex(), "ordinal": cursor.ordinal, "seq": cursor.seq, **contact}


async def write_status(disk: Disk, status: Mapping[str, Any]) -> None:
    """Replace status.json in one step; raises `DiskError`."""
    text = json.dumps(status, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    await disk.write(f"{STATUS_FILE}.new", text.encode())
    await disk.rename(f"{STATUS_FILE}.new", STATUS_FILE)
