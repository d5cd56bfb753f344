"""Faults planted in ingest: what it appends, when it acks, and what it keeps."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain.delivery.receiver import Receiver
from geartrain.records.event_time import END_OF_TIME
from geartrain.wire import checks, codec
from geartrain.wire import geartrain_pb2 as pb
from geartrain.wire.codec import encode_envelope, encode_header
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import VERSION, BatchKind, Envelope, Header
from geartrain.wire.topics import up_topic
from geartrain_cloud.ingest import recovery
from geartrain_cloud.ingest.advance import Advance
from geartrain_cloud.ingest.clock import SourceClock
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.group import Group, Partition
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_cloud.ingest.sequence import Sequencer
from geartrain_cloud.log.roster import RosterDocument
from geartrain_cloud.ports import StoredSchema
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.checkers import ViolationError
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.fleet.spark_model import SparkModel
from geartrain_simulation.fleet.troubles import INGEST
from geartrain_simulation.machine.disk import SimDisk
from geartrain_simulation.machine.faults import Faults

_FORMER_EPOCH = b"former!!"


class _Later:
    """A port whose calls of some names are kept back until `release`."""

    def __init__(self, right: Any, names: tuple[str, ...]) -> None:
        self._right, self._names = right, names
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            return getattr(self._right, name)

        async def keep(*args: Any) -> None:
            self._calls.append((name, args))

        return keep

    async def release(self) -> None:
        for name, args in self._calls:
            await getattr(self._right, name)(*args)


def _commit_with(patches: Patches, *, disk: tuple[str, ...] = (), ledger: tuple[str, ...] = ()) -> None:
    """Have the calls of these names happen only after the whole commit and the acks that it releases."""

    def make(right: Any) -> Any:
        async def _commit(ingest: Ingest, core: Any) -> None:
            ports = ingest._disk, ingest._ledger
            late_disk, late_ledger = _Later(ports[0], disk), _Later(ports[1], ledger)
            ingest._disk, ingest._ledger = late_disk, late_ledger
            try:
                await right(ingest, core)
            finally:
                ingest._disk, ingest._ledger = ports
            await late_disk.release()
            await late_ledger.release()

        return _commit

    patches.replace(Ingest, "_commit", make)


def _ack_before_fsync(patches: Patches) -> None:
    _commit_with(patches, disk=("fsync",), ledger=("commit",))


def _ack_before_ledger(patches: Patches) -> None:
    _commit_with(patches, ledger=("commit",))


def _ledger_before_segment(patches: Patches) -> None:
    _commit_with(patches, disk=("write", "fsync"))


def _ledger_before_fsync(patches: Patches) -> None:
    _commit_with(patches, disk=("fsync",))


def _no_fsync(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def fsync(disk: SimDisk, name: str) -> None:
            disk._process.point("disk.fsync", name)

        return fsync

    patches.replace(SimDisk, "fsync", make)


def _no_dedup(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def _answer_repeated(sequencer: Sequencer, stream: Any, event: Any) -> None:
            cursor, arrival = stream.cursor, event.arrival
            if cursor is not None:
                sequencer._content.append(stream, cursor, arrival, arrival.header.seq)
                stream.cursor = cursor
                sequencer._group.move(cursor, 0)
            await right(sequencer, stream, event)

        return _answer_repeated

    patches.replace(Sequencer, "_answer_repeated", make)


def _gap_accepted(patches: Patches) -> None:
    patches.replace(Receiver, "_claims_loss", lambda right: lambda receiver, arrival: True)


def _digest_ignored_in_append(patches: Patches) -> None:
    patches.replace(Receiver, "_fits", lambda right: lambda receiver, arrival: True)


def _orphan_segment_kept(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def _match_segments(*args: Any) -> None:
            return None

        return _match_segments

    patches.replace(recovery, "_match_segments", make)


def _clock_of_the_last_to_speak(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def observe(clock: SourceClock, device: str, watermark: int) -> bool:
            clock._live[device] = watermark
            clock.value, before = max(clock.value, watermark), clock.value
            return clock.value > before

        return observe

    patches.replace(SourceClock, "observe", make)


def _clock_of_the_first(patches: Patches) -> None:
    """The highest of the watermarks, where the lowest is meant."""

    def make(right: Any) -> Any:
        def settle(clock: SourceClock) -> bool:
            value = max(clock._live.values(), default=clock.value)
            clock.value, before = max(clock.value, value), clock.value
            return clock.value > before

        return settle

    patches.replace(SourceClock, "settle", make)


def _clock_by_channel(patches: Patches) -> None:
    """A source is taken to be as far as the furthest channel of the flow."""

    def make(right: Any) -> Any:
        def move_clocks(self: Any, stream: Any, cursor: Any, header: Header) -> Any:
            furthest = max(header.watermarks.values(), default=0)
            marks = dict.fromkeys(header.source_watermarks, furthest)
            return right(self, stream, cursor, replace(header, source_watermarks=marks))

        return move_clocks

    patches.replace(Content, "_move_clocks", make)


def _overtaken_by_the_furthest_source(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def logged_clock(partition: Partition, sources: Any) -> int:
            return max(int(right(partition, [source])) for source in sources)

        return logged_clock

    patches.replace(Partition, "logged_clock", make)


def _overtaken_by_the_channels_last_entry(patches: Patches) -> None:
    """Rows are compared with what readers of their channel alone had seen."""

    def part(right: Any) -> Any:
        def _part(taker: Content, stream: Any, header: Any, rows: Any) -> Any:
            partition = taker._of(stream)
            now = partition.logged
            partition.logged = seen.get((id(partition), header.channel), {})
            try:
                return right(taker, stream, header, rows)
            finally:
                partition.logged = now

        return _part

    def append(right: Any) -> Any:
        def append_rows(group: Group, partition: Partition, channel: str, *rest: Any) -> None:
            right(group, partition, channel, *rest)
            seen[id(partition), channel] = partition.logged

        return append_rows

    seen: dict[tuple[int, str], Any] = {}
    patches.replace(Content, "_part", part)
    patches.replace(Group, "append_rows", append)


def _source_that_nobody_has_ends(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def _targets(advance: Advance, flow: str) -> Any:
            targets, least = dict(right(advance, flow)), advance._least(flow)
            for source, clock in advance._flows[flow][0].clocks.items():
                if source not in least and least and clock.value < min(least.values()) == END_OF_TIME:
                    targets[source] = END_OF_TIME
            return targets

        return _targets

    patches.replace(Advance, "_targets", make)


def _device_waited_for_though_it_lacks_the_source(patches: Patches) -> None:
    patches.replace(Content, "_believe", lambda right: lambda *args: None)


def _order_between_channels_lost(patches: Patches) -> None:
    """A reader that takes channel by channel, as each had a sequence of its own."""

    def make(right: Any) -> Any:
        def _read(spark: SparkModel, entries: Any) -> Any:
            return right(spark, sorted(entries, key=lambda entry: entry.channel))

        return _read

    patches.replace(SparkModel, "_read", make)


def _clock_moves_back(patches: Patches) -> None:
    """Ingest begins anew with the clocks, each time it starts, until a device moves them."""

    def make(right: Any) -> Any:
        class Anew(right):  # type: ignore[misc]
            def __init__(self, value: int) -> None:
                super().__init__()
                self._is_new = True

            def settle(self) -> bool:
                if self._is_new:
                    self._is_new = False
                    return False
                return bool(super().settle())

        return Anew

    patches.replace(recovery, "SourceClock", make)


def damage_on_the_way(seed: int) -> None:
    """A run in which bits flip between device and ingest."""

    def plot(fleet: Fleet) -> None:
        fleet.broker.faults = Faults(damage=0.3, damage_filter="geartrain/v1/+/+/+/up")
        fleet.world.later(8.0, heal, fleet)

    def heal(fleet: Fleet) -> None:
        fleet.broker.faults = Faults()

    Fleet(seed, plot=plot).run()


def _unknown_channel_acked(patches: Patches) -> None:
    patches.replace(Content, "stranger", lambda right: lambda taker, stream, arrival: None)


def channel_named_late(seed: int) -> int:
    """A run in which ingest is told of one of the flow's channels only after a while; how often it held."""

    def plot(fleet: Fleet) -> None:
        whole = fleet.roster.document(fleet.flow)
        missing = next(iter(whole.channels))
        fewer = {channel: one for channel, one in whole.channels.items() if channel != missing}
        fleet.roster.put(fleet.flow, replace(whole, channels=fewer))
        fleet.world.later(20.0, name_it, fleet, whole)

    def name_it(fleet: Fleet, whole: RosterDocument) -> None:
        fleet.roster.put(fleet.flow, whole)
        fleet.world.nodes[INGEST].crash()

    fleet = Fleet(seed, plot=plot)
    fleet.run()
    lost = [batch for batch in fleet.ledger.quarantined if batch.acked and batch.count]
    if lost:
        raise ViolationError("held", f"{len(lost)} batches with rows were acked and are not in the log")
    return fleet.ledger.counters.get(Counter.HELD_BATCHES, 0)


def _submitted_schema_not_compared(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def differs(taker: Content, flow: str, channel: str, schema_id: str, first: str = "") -> str:
            why = right(taker, flow, channel, schema_id, first)
            return "" if channel in taker._flows[flow].channels else why

        return differs

    patches.replace(Content, "_differs", make)


def schema_told_late(seed: int) -> int:
    """A run in which ingest has another schema of a channel than its devices for a while; how often it
    held.
    """
    taken: list[StoredSchema] | None = None

    def plot(fleet: Fleet) -> None:
        whole = fleet.roster.document(fleet.flow)
        channel = next(iter(whole.channels))
        other = replace(whole.channels[channel], schema="0" * 16)
        fleet.roster.put(fleet.flow, replace(whole, channels={**whole.channels, channel: other}))
        fleet.world.later(20.0, tell, fleet, whole, channel)

    def tell(fleet: Fleet, whole: RosterDocument, channel: str) -> None:
        nonlocal taken
        taken = [schema for schema in fleet.ledger.schemas.values() if schema.channel == channel]
        fleet.roster.put(fleet.flow, whole)
        fleet.world.nodes[INGEST].crash()

    fleet = Fleet(seed, plot=plot)
    fleet.run()
    if taken is None or taken:
        raise ViolationError("held", "a schema that nobody submitted was taken")
    return fleet.ledger.counters.get(Counter.HELD_BATCHES, 0)


def _other_wire_version_taken(patches: Patches) -> None:
    for module in (checks, codec):
        patches.replace(module, "check_version", lambda right: lambda version: None)


def former_agent_speaks(seed: int) -> int:
    """A run in which an agent of the former wire version asks for each device; how often it was refused."""

    def plot(fleet: Fleet) -> None:
        for after_s in (0.5, 1.0, 2.0, 4.0):
            fleet.world.later(after_s, send_hellos, fleet)

    def send_hellos(fleet: Fleet) -> None:
        for device in fleet.devices:
            asked = Header(BatchKind.HELLO, fleet.flow, device.name, _FORMER_EPOCH, 0, ordinal=2)
            header = pb.Header.FromString(encode_header(asked))
            header.version = VERSION - 1
            data = header.SerializeToString()
            sent = Envelope(data, b"", next_digest(FIRST_DIGEST, data, b""), 1)
            fleet.broker.inject(up_topic(device.name, fleet.flow), encode_envelope(sent))

    fleet = Fleet(seed, plot=plot)
    fleet.run()
    epochs = {cursor.epoch for cursor in fleet.ledger.cursors.values()}
    if _FORMER_EPOCH in epochs | {epoch for _, _, epoch in fleet.ledger.closed}:
        raise ViolationError("wire", "the log has opened an epoch of a former agent")
    return fleet.ledger.counters.get(Counter.OTHER_WIRE_VERSION, 0)


OF_INGEST = (
    Mutant("ack before fsync", _ack_before_fsync),
    Mutant("ack before ledger", _ack_before_ledger),
    Mutant("ledger before segment", _ledger_before_segment),
    Mutant("ledger before fsync", _ledger_before_fsync),
    Mutant("no fsync", _no_fsync),
    Mutant("no dedup", _no_dedup),
    Mutant("gap accepted", _gap_accepted),
    Mutant("digest ignored in append", _digest_ignored_in_append, damage_on_the_way),
    Mutant("unknown channel acked", _unknown_channel_acked, channel_named_late),
    Mutant("submitted schema not compared", _submitted_schema_not_compared, schema_told_late),
    Mutant("other wire version taken", _other_wire_version_taken, former_agent_speaks),
    Mutant("orphan segment kept", _orphan_segment_kept),
    Mutant("clock of the last to speak", _clock_of_the_last_to_speak),
    Mutant("clock moves back", _clock_moves_back),
    Mutant("clock of the first", _clock_of_the_first),
    Mutant("clock by channel", _clock_by_channel),
    Mutant("overtaken by the furthest source", _overtaken_by_the_furthest_source),
    Mutant("overtaken by the channel's last entry", _overtaken_by_the_channels_last_entry),
    Mutant("source that nobody has ends", _source_that_nobody_has_ends),
    Mutant("device waited for though it lacks the source", _device_waited_for_though_it_lacks_the_source),
    Mutant("order between channels lost", _order_between_channels_lost),
)
