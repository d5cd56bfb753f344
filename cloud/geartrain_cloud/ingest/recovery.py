"""What ingest does before it takes anything: it repairs the log and learns from it where ingest stands.

At the start of the process. Guarantees: afterwards the segment files are exactly those that the ledger
names. What ingest knows of a flow's past comes from the ledger alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from geartrain.delivery.receiver import Receiver, WaitingBudget
from geartrain.errors import LedgerError
from geartrain.errors.reason import NO_REASON
from geartrain.ports import Disk
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import Schema
from geartrain_cloud.ingest.clock import SourceClock
from geartrain_cloud.ingest.closed import ClosedEpochs
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.group import SEGMENTS, Partition, Place
from geartrain_cloud.ingest.streams import DeviceStream
from geartrain_cloud.log.entry_reasons import EntryCode, number_of
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.ports import NO_SOURCE, AckCursor, Entry, LedgerStore

_LOG = logging.getLogger("geartrain.ingest")

_SEGMENT = re.compile(
    rf"{SEGMENTS}(?P<flow>[^/]+)/(?P<channel>[^/]+)/p(?P<partition>\d+)/(?P<number>\d+)-\d+(?:m\d+)?\.arrow"
)


Member = tuple[str, str, bool]
"""(source or NO_SOURCE, device, whether it is excluded)."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the ledger says: partitions by place, schemas by (flow, channel), each by its id, and streams by
    (device, flow).

    cursors: by (device, flow), of flows and devices without a stream too; newest: by place, the last entry,
    of flows that the roster does not have too; members: whom these wait for, as the process began;
    revisions: by place, the newest that it has brought by then; fresh: (device, flow) whose newest crossing
    is that of a fresh spool; ran: of devices that have gone over, the number of the revision.
    """

    term: int
    partitions: dict[Place, Partition]
    schemas: dict[tuple[str, str], dict[str, Schema]]
    streams: dict[tuple[str, str], DeviceStream]
    closed: ClosedEpochs
    counters: Counters
    cursors: dict[tuple[str, str], AckCursor]
    newest: dict[Place, Entry]
    members: Mapping[Place, Sequence[Member]]
    revisions: Mapping[Place, int]
    fresh: Collection[tuple[str, str]]
    ran: Mapping[tuple[str, str], int]


async def recover(
    config: IngestConfig,
    flows: Mapping[str, FollowedFlow],
    ledger: LedgerStore,
    disk: Disk,
    budget: WaitingBudget,
) -> Recovered:
    """Open the ledger, take the term, remove orphans, and rebuild clocks and streams of `flows`, all of the
    partitions that the configuration has.

    Raises `LedgerError` when a segment that the ledger names is missing, `DiskError` when the disk cannot be
    read.
    """
    total, owned = config.partitions, config.owned
    term = await ledger.open(total, owned)
    counters = Counters(await ledger.counters())
    last = await ledger.last_entries()
    await _match_segments(ledger, disk, last, counters, owned)
    crossings = await ledger.crossings()
    cursors = {
        (c.device, c.flow): replace(c, crossing=crossings.get((c.device, c.flow), (0, NO_REASON))[0])
        for c in await ledger.cursors()
    }
    assigned = [place for place in await ledger.devices() if partition_of(place[2], total) in owned]
    schemas: dict[tuple[str, str], dict[str, Schema]] = {}
    for stored in await ledger.schemas():
        of_channel = schemas.setdefault((stored.flow, stored.channel), {})
        of_channel[stored.schema_id] = Schema.from_json(stored.text)
    excluded, members = set(await ledger.excluded()), dict[Place, list[Member]]()
    for name, source, device in assigned:
        member = source, device, (name, source, device) in excluded
        members.setdefault((name, partition_of(device, total)), []).append(member)
    newest = {(entry.flow, entry.partition): entry for entry in last}
    revisions = await ledger.revisions()
    partitions = {
        (name, index): make_partition((name, index), flow, newest, members, cursors, revisions)
        for (name, flow), index in product(sorted(flows.items()), owned)
    }
    ran = {place: number_of(reason) for place, (_, reason) in crossings.items()}
    fresh = {place for place, (_, reason) in crossings.items() if reason.code == EntryCode.FRESH_SPOOL}
    streams = {
        (device, name): make_stream(
            (device, name, partition_of(device, total)),
            flow,
            cursors.get((device, name)),
            budget,
            is_fresh=(device, name) in fresh,
            revision=ran.get((device, name), 0),
        )
        for name, flow in sorted(flows.items())
        for device in sorted(flow.devices)
        if partition_of(device, total) in owned
    }
    closed = ClosedEpochs(await ledger.closed_epochs())
    known = (cursors, newest, members, revisions, fresh, ran)
    return Recovered(term, partitions, schemas, streams, closed, counters, *known)


async def _match_segments(
    ledger: LedgerStore, disk: Disk, last: list[Entry], counters: Counters, owned: Sequence[int]
) -> None:
    named, found = await ledger.segments(), set(await disk.list(SEGMENTS))
    kept = {one.name for one in await ledger.replaced_files()}
    if missing := sorted(named - found):
        raise LedgerError(
            f"segment {missing[0]} is missing, which holds {_positions(missing[0], named, last)}"
            + (f", and so are {len(missing) - 1} more" if len(missing) > 1 else "")
            + ": restore the log's folder from a copy"
        )
    for name in sorted(found - named - kept):
        parts = _SEGMENT.fullmatch(name)
        if parts is None:
            _LOG.warning("%r in the log's folder is no segment; it is left alone", name)
            continue
        if int(parts["partition"]) not in owned:
            continue  # another ingest may be about to name it
        await disk.remove(name)
        counters.add(Counter.ORPHAN_SEGMENTS)
        _LOG.warning("removed segment %s: the ledger does not name it, so it was never acked", name)


def _positions(name: str, named: set[str], last: list[Entry]) -> str:
    """Which positions a segment's entries lie between, from the names of the segments around it."""
    parts = _SEGMENT.fullmatch(name)
    if parts is None:
        return "rows of the log"
    first, folder = int(parts["number"]), name.rpartition("/")[0]
    firsts = [
        int(m["number"])
        for other in named
        if other.startswith(f"{folder}/") and (m := _SEGMENT.fullmatch(other))
    ]
    ends = [e.number for e in last if (e.flow, str(e.partition)) == parts.group(1, 3)]
    upto = min([number - 1 for number in firsts if number > first] or ends or [first])
    return f"rows of {parts['flow']}/{parts['channel']} between positions {first} and {upto}"


def make_partition(
    place: Place,
    flow: FollowedFlow,
    newest: Mapping[Place, Entry],
    members: Mapping[Place, Sequence[Member]],
    cursors: Mapping[tuple[str, str], AckCursor],
    revisions: Mapping[Place, int],
) -> Partition:
    """A partition of a flow behind its newest entry, with the members that the log waits for there."""
    last = newest.get(place)
    number, logged = (0, {}) if last is None else (last.number, last.clocks)
    clocks = {source: SourceClock(logged.get(source, START_OF_TIME)) for source in sorted(flow.sources)}
    without = set[str]()
    for source, device, is_excluded in members.get(place, ()):
        if source == NO_SOURCE:
            without.add(device)
            continue
        cursor = cursors.get((device, place[0]))
        marks = {} if cursor is None else cursor.source_watermarks
        clocks[source].assign(device, marks.get(source, START_OF_TIME), excluded=is_excluded)
    for clock in clocks.values():
        clock.settle()  # the log may stand behind all of its devices
    return Partition(*place, clocks, number, logged, revision=revisions.get(place, 1), without=without)


def make_stream(
    which: tuple[str, str, int],
    flow: FollowedFlow,
    cursor: AckCursor | None,
    budget: WaitingBudget,
    *,
    is_fresh: bool = False,
    revision: int = 0,
) -> DeviceStream:
    """The stream of a device in a flow (`which`, with its partition), as the ledger has it; is_fresh and
    revision: as in `DeviceStream`.
    """
    device, flow_name, partition = which
    current = None
    if cursor is not None:
        current = Receiver(cursor.epoch, budget, cursor.seq, cursor.digest, passes_loss=True)
    sources, channels = tuple(flow.sources_of(device)), tuple(flow.fed_by(device))
    return DeviceStream(
        *(device, flow_name, sources, channels, cursor, cursor, current),
        partition=partition,
        is_fresh=is_fresh,
        revision=revision,
    )
