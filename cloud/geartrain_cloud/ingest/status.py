"""status.json: what a person, a supervisor or a page wants to know of ingest, as of its last commit.

Holds nothing that is not in the ledger. Guarantees: whoever reads the file reads a whole one. The rows,
positions, clocks and seqs in it are durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from geartrain.ports import Disk
from geartrain.records.event_time import START_OF_TIME, format_time
from geartrain_cloud.ingest.counters import ROWS_PREFIX, Counters
from geartrain_cloud.ingest.domains import Domains
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.group import Partition, Place, SealedGroup
from geartrain_cloud.ingest.streams import DeviceStream, HeldBatch
from geartrain_cloud.ports import Entry, position_key

STATUS_FILE = "status.json"

_NAMES_MAX = 20


class Durable:
    """What commits have made durable: of each channel rows, of each partition position and clocks.

    sources: those above each channel.
    """

    def __init__(
        self, partitions: Mapping[Place, Partition], flows: Mapping[str, FollowedFlow], counters: Counters
    ) -> None:
        self._counters = counters
        self.sources: dict[tuple[str, str], tuple[str, ...]] = {}
        self.rows: dict[tuple[str, str], int] = {}
        self.positions: dict[Place, int] = {}
        self.clocks: dict[Place, Mapping[str, int]] = {}
        for name, flow in flows.items():
            self.add(name, flow, [partition for place, partition in partitions.items() if place[0] == name])

    def add(self, name: str, flow: FollowedFlow, partitions: Iterable[Partition]) -> None:
        """Know a flow, and its partitions as they stand in the log."""
        self.add_channels(name, flow)
        for partition in partitions:
            place = (name, partition.index)
            self.positions[place], self.clocks[place] = partition.number, partition.logged

    def add_channels(self, name: str, flow: FollowedFlow) -> None:
        """Know the channels of a flow, also those that a later revision has brought."""
        for channel, above in flow.channels.items():
            self.sources[name, channel] = tuple(above)
            self.rows.setdefault((name, channel), self._counters[f"{ROWS_PREFIX}{name}/{channel}"])

    def forget(self, name: str) -> None:
        """Say nothing more of a flow that has ended."""
        for channel in [place for place in self.sources if place[0] == name]:
            del self.sources[channel], self.rows[channel]
        for partition in [place for place in self.positions if place[0] == name]:
            del self.positions[partition], self.clocks[partition]

    def take(self, sealed: SealedGroup) -> None:
        """Remember a group that was committed."""
        for (flow, channel), rows in sealed.rows.items():
            if (flow, channel) in self.rows:
                self.rows[flow, channel] += rows
        entry: Entry
        for entry in sealed.change.entries:
            place = (entry.flow, entry.partition)
            if place not in self.positions:
                continue  # of a flow that has ended
            self.positions[place], self.clocks[place] = entry.number, entry.clocks


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
    for name in sorted({flow for flow, _ in durable.positions}):
        several = {index: p for (flow, index), p in sorted(partitions.items()) if flow == name}
        flows[name] = _flow(name, several, durable, domains)
    for (device, flow), stream in sorted(streams.items()):
        if flow not in flows or stream.gone is not None:
            continue
        flows[flow]["devices"][device] = _device(stream)
    return {
        "written_at_us": now_us,
        "term": term,
        "connected": is_connected,
        "flows": flows,
        "counters": dict(counters),
    }


def _flow(
    name: str, partitions: Mapping[int, Partition], durable: Durable, domains: Domains
) -> dict[str, Any]:
    """All partitions of a flow together: clocks and who holds them are of the slowest."""
    positions = {position_key(index): durable.positions[name, index] for index in partitions}
    sources = sorted({source for p in partitions.values() for source in p.clocks})
    described = {source: _source(name, source, partitions, durable) for source in sources}
    channels = {
        channel: {"rows": durable.rows[flow, channel], **_clock(min(described[s]["clock"] for s in above))}
        for (flow, channel), above in sorted(durable.sources.items())
        if flow == name
    }
    return {
        "position": sum(positions.values()),
        "positions": positions,
        "sources": described,
        "channels": channels,
        "devices": {},
        "misplaced": domains.strays(name),
    }


def _source(flow: str, source: str, partitions: Mapping[int, Partition], durable: Durable) -> dict[str, Any]:
    by_partition = {i: durable.clocks[flow, i].get(source, START_OF_TIME) for i in partitions}
    clocks = {i: partition.clocks[source] for i, partition in partitions.items()}
    lowest = min(by_partition.values())
    missing = sorted(device for clock in clocks.values() for device in clock.missing())
    excluded = sorted(device for clock in clocks.values() for device in clock.excluded)
    holding = sorted(d for i, clock in clocks.items() if by_partition[i] == lowest for d in clock.holding())
    return {
        **_clock(lowest),
        "missing": missing[:_NAMES_MAX],
        "missing_count": len(missing),
        "excluded": excluded[:_NAMES_MAX],
        "excluded_count": len(excluded),
        "holding": holding[:_NAMES_MAX],
        "holding_count": len(holding),
    }


def _clock(clock: int) -> dict[str, Any]:
    return {"clock": clock, "clock_time": None if clock == START_OF_TIME else format_time(clock)}


def _device(stream: DeviceStream) -> dict[str, Any]:
    cursor, contact = stream.durable, {"last_contact_us": stream.contact_us}
    if cursor is None:
        return {"epoch": "", "ordinal": 0, "seq": 0, "crossing": 0, **contact, **_held(stream)}
    return {
        "epoch": cursor.epoch.hex(),
        "ordinal": cursor.ordinal,
        "seq": cursor.seq,
        "crossing": cursor.crossing,
        **contact,
        **_held(stream),
    }


def _held(stream: DeviceStream) -> dict[str, Any]:
    held = stream.held
    return {} if held is None else {"held": _said(held)}


def _said(held: HeldBatch) -> dict[str, Any]:
    return {"channel": held.channel, "seq": held.seq, "rows": held.rows, "why": held.why}


async def write_status(disk: Disk, status: Mapping[str, Any], name: str = STATUS_FILE) -> None:
    """Replace status.json, or the file `name`, in one step; raises `DiskError`."""
    # By compiled code: with a thousand devices acks would wait for Python's own for 15 ms, twice a second.
    text = msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n"
    await disk.write(f"{name}.new", text)
    await disk.rename(f"{name}.new", name)
