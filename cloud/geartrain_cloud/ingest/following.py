"""Following the roster: flows begin and end, devices come and go, while ingest runs.

Between the roster and the parts of ingest that know of flows and devices. Guarantees: each change is an entry
of each partition and source concerned, in the group that is committed next, so that the clocks are a function
of the log alone. A device that was retired, and one whose flow has ended, is still answered: what it has
spooled is declared dropped by count, and acked. One that is assigned again goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from geartrain.delivery.receiver import WaitingBudget
from geartrain.errors import LedgerError
from geartrain.errors.reason import make_reason
from geartrain.graph.graph import CLAIMS
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.ingest.advance import Advance
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.clock import SourceClock
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.domains import Domains
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.group import Group, Partition, Place
from geartrain_cloud.ingest.recovery import Recovered, make_partition, make_stream
from geartrain_cloud.ingest.roster import Followed, Move, Roster, crossings, moves
from geartrain_cloud.ingest.status import Durable
from geartrain_cloud.ingest.streams import DeviceStream, Gone
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.ports import NO_SOURCE, AckCursor, EntryKind

_LOG = logging.getLogger("geartrain.ingest")

NOBODY = FollowedFlow((), {}, {})
"""Stands in the place of a flow that has ended."""


class Following:
    """What ingest does with the roster. `flows` is what all its parts know, and changes here alone."""

    def __init__(
        self,
        config: IngestConfig,
        flows: dict[str, FollowedFlow],
        known: Recovered,
        budget: WaitingBudget,
        group: Group,
        advance: Advance,
        durable: Durable,
        domains: Domains,
        alarm: Alarm,
    ) -> None:
        self._config, self._flows, self._known, self._budget = config, flows, known, budget
        self._group, self._advance, self._durable = group, advance, durable
        self._domains, self._alarm = domains, alarm
        self._ended = {flow for (flow, _), entry in known.newest.items() if entry.kind is EntryKind.ENDED}
        for name in self._ended & flows.keys():
            self._forget(name)

    def follow(self, followed: Followed) -> bool:
        """Begin, end and change what the roster says; whether there is anything to commit."""
        for why in followed.take_unusable():
            self._known.counters.add(Counter.ROSTER_REFUSED)
            self._alarm.warn(Counter.ROSTER_REFUSED, "roster", why)
        for name, flow in followed.flows.items():
            if name in self._ended:
                self._known.counters.add(Counter.ROSTER_REFUSED)
                self._alarm.warn(Counter.ROSTER_REFUSED, name, "the roster lets a flow live that has ended")
                continue
            if name not in self._flows:
                self._begin(name, flow)
            self._flows[name] = flow
            self._add_clocks(name, flow)
            self._durable.add_channels(name, flow)
        found = moves(self._members(), self._flows, followed.ended, self._ours())
        self._give_back(found)
        for move in found:
            self._make(move)
        if found:
            self._settle_clocks()
        for move in crossings(self._revisions(), self._flows):
            self._cross(move)
            found.append(move)
        for name in sorted(followed.ended - self._ended):  # while ingest was down, or before it took anything
            found += [Move(EntryKind.ENDED, name)]
            self._end(name)
        self._settle_streams()
        return bool(found)

    def stranger(self, device: str, flow: str) -> DeviceStream | None:
        """The stream of a device that has left its flow, so that it is answered; None for any other."""
        cursor = self._known.cursors.get((device, flow))
        if flow in self._ended:
            gone = Gone.ENDED
        elif flow in self._flows and cursor is not None:
            gone = Gone.RETIRED
        else:
            return None
        if partition_of(device, self._config.partitions) not in self._config.owned:
            return None
        stream = self._stream(device, flow, self._flows.get(flow, NOBODY))
        stream.gone = gone
        self._known.streams[device, flow] = stream
        return stream

    def _stream(self, device: str, name: str, flow: FollowedFlow) -> DeviceStream:
        """The stream of a device in the flow `name` that has none, as the ledger had it."""
        known, place = self._known, (device, name)
        return make_stream(
            (device, name, partition_of(device, self._config.partitions)),
            flow,
            known.cursors.get(place),
            self._budget,
            is_fresh=place in known.fresh,
            revision=known.ran.get(place, 0),
        )

    def _members(self) -> dict[str, list[tuple[str, str]]]:
        """Who the log says is a member, of the flows that it has partitions of."""
        found: dict[str, list[tuple[str, str]]] = {}
        for (name, _), partition in self._known.partitions.items():
            members = found.setdefault(name, [])
            members += partition.memberships()
        return found

    def _revisions(self) -> dict[Place, int]:
        """The newest that each partition has brought."""
        return {place: partition.revision for place, partition in self._known.partitions.items()}

    def _cross(self, move: Move) -> None:
        partition = self._known.partitions[move.flow, move.partition]
        why = make_reason(EntryCode.REVISION, number=move.number)
        self._group.append_note(partition, EntryKind.REVISION, ("", b"", move.number), why)
        partition.revision = move.number
        self._known.counters.add(Counter.REVISIONS)

    def _ours(self) -> set[str]:
        devices = {device for flow in self._flows.values() for device in flow.devices}
        return {d for d in devices if partition_of(d, self._config.partitions) in self._config.owned}

    def _begin(self, name: str, flow: FollowedFlow) -> None:
        partitions = []
        for index in self._config.owned:
            known, place = self._known, (name, index)
            partition = make_partition(
                *(place, flow, known.newest, known.members, known.cursors, known.revisions)
            )
            self._known.partitions[place] = partition
            self._advance.add(partition)
            partitions.append(partition)
        self._durable.add(name, flow, partitions)
        _LOG.info("flow %s: from here on it is taken", name)

    def _add_clocks(self, name: str, flow: FollowedFlow) -> None:
        """Have a clock for each source that a later revision has brought."""
        for index in self._config.owned:
            partition = self._known.partitions[name, index]
            for source in sorted(flow.sources.keys() - partition.clocks.keys()):
                partition.clocks[source] = SourceClock(partition.logged.get(source, START_OF_TIME))

    def _give_back(self, found: Sequence[Move]) -> None:
        """Have the data centre go on with what devices that leave have claimed and not taken, before clocks
        go on without them: nobody says anything of these claims any more.
        """
        for name, device in sorted(
            {(one.flow, one.device) for one in found if one.kind is EntryKind.RETIRED}
        ):
            flow = self._flows[name]
            if CLAIMS in flow.channels and device not in flow.devices:
                partition = self._known.partitions[name, partition_of(device, self._config.partitions)]
                why = make_reason(EntryCode.CLAIM_GIVEN_BACK)
                self._group.append_note(partition, EntryKind.CROSSING, (device, b"", 0), why, channel=CLAIMS)

    def _make(self, move: Move) -> None:
        if move.kind is EntryKind.ENDED:
            self._end(move.flow)
            return
        partition = self._known.partitions[move.flow, partition_of(move.device, self._config.partitions)]
        if move.source == NO_SOURCE:
            self._make_without(partition, move)
            return
        clock, batch = partition.clocks[move.source], (move.device, b"", 0)
        if move.kind is EntryKind.ASSIGNED:
            cursor = self._cursor(move.device, move.flow)
            marks = {} if cursor is None else cursor.source_watermarks
            # One that comes back has said what it has, and may have nothing more to say.
            comes = self._flows[move.flow].is_to_come(move.source, self._ran(move.device, move.flow))
            lacks = cursor is not None and cursor.seq > 0 and move.source not in marks and not comes
            clock.assign(move.device, marks.get(move.source, START_OF_TIME), excluded=lacks)
            self._group.append_note(partition, EntryKind.ASSIGNED, batch, source=move.source)
            if lacks:
                why = make_reason(EntryCode.SPLIT_LACKING)
                self._group.append_note(partition, EntryKind.LACKS, batch, why, source=move.source)
        else:
            clock.retire(move.device)
            why = make_reason(EntryCode.RETIRED)
            self._group.append_note(partition, EntryKind.RETIRED, batch, why, source=move.source)

    def _make_without(self, partition: Partition, move: Move) -> None:
        """Log that a device without a source comes or goes: no clock has waited for it, nor does."""
        if move.kind is EntryKind.ASSIGNED:
            partition.without.add(move.device)
            why = make_reason(EntryCode.WITHOUT_SOURCE)
        else:
            partition.without.discard(move.device)
            why = make_reason(EntryCode.NOT_WITHOUT_SOURCE)
        self._group.append_note(partition, move.kind, (move.device, b"", 0), why)

    def _cursor(self, device: str, flow: str) -> AckCursor | None:
        stream = self._known.streams.get((device, flow))
        return self._known.cursors.get((device, flow)) if stream is None else stream.cursor

    def _ran(self, device: str, flow: str) -> int:
        """The number of the revision that a device has said that it runs."""
        stream = self._known.streams.get((device, flow))
        return self._known.ran.get((device, flow), 0) if stream is None else stream.revision

    def _end(self, name: str) -> None:
        """Log the last entry of each partition, and forget the flow."""
        for index in self._config.owned:
            newest = self._known.newest.get((name, index))
            partition = self._known.partitions.get((name, index))
            if partition is None and newest is not None and newest.kind is not EntryKind.ENDED:
                partition = make_partition((name, index), NOBODY, self._known.newest, {}, {}, {})
            if partition is not None and partition.number:
                why = make_reason(EntryCode.FLOW_ENDED)
                self._group.append_note(partition, EntryKind.ENDED, ("", b"", 0), why)
        self._ended.add(name)
        self._forget(name)
        self._known.counters.add(Counter.FLOWS_ENDED)
        _LOG.info("flow %s has ended", name)

    def _forget(self, name: str) -> None:
        self._flows.pop(name, None)
        for place in [place for place in self._known.partitions if place[0] == name]:
            del self._known.partitions[place]
        self._advance.forget(name)
        self._durable.forget(name)
        self._domains.forget(name)

    def _settle_clocks(self) -> None:
        """Move on where all that is waited for has come back with a watermark beyond the clock."""
        for partition in self._known.partitions.values():
            for clock in partition.clocks.values():
                clock.settle()

    def _settle_streams(self) -> None:
        """Let each device of a flow have a stream with its sources, and those that have left be told so."""
        streams = self._known.streams
        for (device, name), stream in streams.items():
            flow = self._flows.get(name)
            if flow is None:
                stream.gone = Gone.ENDED if name in self._ended else stream.gone
            else:
                self._settle(stream, flow, device)
        ours = self._ours()
        for name, flow in self._flows.items():
            for device in flow.devices:
                if device in ours and (device, name) not in streams:
                    streams[device, name] = self._stream(device, name, flow)
                    self._known.counters.add(Counter.DEVICES_ASSIGNED)

    def _settle(self, stream: DeviceStream, flow: FollowedFlow, device: str) -> None:
        was, stream.gone = stream.gone, None if device in flow.devices else Gone.RETIRED
        stream.sources, stream.channels = tuple(flow.sources_of(device)), tuple(flow.fed_by(device))
        stream.held = None
        if was is None and stream.gone is not None:
            self._known.counters.add(Counter.DEVICES_RETIRED)
            _LOG.info("%s was retired: what it still sends is declared dropped", stream.name)
        elif was is not None and stream.gone is None:
            stream.waited_since_s = None
            self._known.counters.add(Counter.DEVICES_ASSIGNED)
            _LOG.info("%s was assigned again", stream.name)


async def look(roster: Roster, followed: Followed) -> bool:
    """Take what has changed in the roster; whether there is anything new to follow or to say.

    A roster that cannot be read changes nothing, and is said once.
    """
    try:
        rows = await roster.after(followed.serial)
    except LedgerError as error:
        return followed.fail(str(error))
    followed.fail("")
    followed.take(rows)
    return bool(rows)
