"""status.json: what a person, a supervisor or a page wants to know of ingest, as of its last commit.

Holds nothing that is not in the ledger. Guarantees: whoever reads the file reads a whole one. The rows,
positions, clocks and seqs in it are durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from geartrain.ports import Disk
from geartrain.records.event_time import START_OF_TIME, format_time
from geartrain_cloud.ingest.counters import ROWS_PREFIX, Counters
from geartrain_cloud.ingest.domains import Domains
from geartrain_cloud.ingest.group import Partition, Place, SealedGroup
from geartrain_cloud.ingest.streams import DeviceStream
from geartrain_cloud.ports import Entry, position_key

STATUS_FILE = "status.json"

_NAMES_MAX = 20


class Durable:
    """What commits have made durable: of each channel rows, of each partition position and clock."""

    def __init__(self, partitions: Mapping[Place, Partition], counters: Counters) -> None:
        channels = {place[:2] for place in partitions}
        self.rows = {(f, c): counters[f"{ROWS_PREFIX}{f}/{c}"] for f, c in channels}
        self.positions = {place: partition.number for place, partition in partitions.items()}
        self.clocks = {place: partition.logged_clock for place, partition in partitions.items()}

    def take(self, sealed: SealedGroup) -> None:
        """Remember a group that was committed."""
        for (flow, channel, _), rows in sealed.rows.items():
            self.rows[flow, channel] += rows
        entry: Entry
        for entry in sealed.change.entries:
            place = (entry.flow, entry.channel, entry.partition)
            self.positions[place], self.clocks[place] = entry.number, entry.clock


def make_status(
    now_us: int,
    term: int,
    is_connected: bool,
    partitions: Mapping[Place, Partition],
    streams: Mapping[tuple[str, str], DeviceStream],
    durable: Durable,
    counters: Mapping[str, int],
    domains: Domains,
) -> dict[str, Any]:
    """The content of status.json; docs/data_files.md describes it."""
    flows: dict[str, Any] = {}
    for flow, channel in sorted(durable.rows):
        several = {p.index: p for p in partitions.values() if (p.flow, p.channel) == (flow, channel)}
        empty = {"channels": {}, "devices": {}, "misplaced": domains.strays(flow)}
        channels = flows.setdefault(flow, empty)["channels"]
        channels[channel] = _channel(several, (flow, channel), durable)
    for (device, flow), stream in sorted(streams.items()):
        flows[flow]["devices"][device] = _device(stream)
    return {
        "written_at_us": now_us,
        "term": term,
        "connected": is_connected,
        "flows": flows,
        "counters": dict(counters),
    }


def _channel(
    partitions: Mapping[int, Partition], channel: tuple[str, str], durable: Durable
) -> dict[str, Any]:
    """All partitions of a channel together: clocks and who holds them are of the slowest."""
    places = {index: (*channel, index) for index in sorted(partitions)}
    clocks = {index: durable.clocks[place] for index, place in places.items()}
    clock = min(clocks.values())
    missing = sorted(d for p in partitions.values() for d in p.clock.missing())
    excluded = sorted(d for p in partitions.values() for d in p.clock.excluded)
    holding = sorted(d for i, p in partitions.items() if clocks[i] == clock for d in p.clock.holding())
    return {
        "rows": durable.rows[channel],
        "position": sum(durable.positions[place] for place in places.values()),
        "positions": {position_key(channel[1], i): durable.positions[place] for i, place in places.items()},
        "clock": clock,
        "clock_time": None if clock == START_OF_TIME else format_time(clock),
        "missing": missing[:_NAMES_MAX],
        "missing_count": len(missing),
        "excluded": excluded[:_NAMES_MAX],
        "excluded_count": len(excluded),
        "holding": holding[:_NAMES_MAX],
        "holding_count": len(holding),
    }


def _device(stream: DeviceStream) -> dict[str, Any]:
    cursor, contact = stream.durable, {"last_contact_us": stream.contact_us}
    if cursor is None:
        return {"epoch": "", "ordinal": 0, "seq": 0, **contact, **_held(stream)}
    return {
        "epoch": cursor.epoch.hex(),
        "ordinal": cursor.ordinal,
        "seq": cursor.seq,
        **contact,
        **_held(stream),
    }


def _held(stream: DeviceStream) -> dict[str, Any]:
    held = stream.held
    return {} if held is None else {"held": {"channel": held.channel, "seq": held.seq, "rows": held.rows}}


async def write_status(disk: Disk, status: Mapping[str, Any], name: str = STATUS_FILE) -> None:
    """Replace status.json, or the file `name`, in one step; raises `DiskError`."""
    # By compiled code: with a thousand devices acks would wait for Python's own for 15 ms, twice a second.
    text = msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n"
    await disk.write(f"{name}.new", text)
    await disk.rename(f"{name}.new", name)
