"""Faults planted in what happens over time: lost and full spools, devices out of reach, two ingests."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from geartrain.concurrency.connecting import Connector
from geartrain.delivery.sender import Sender
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.ingest import upkeep
from geartrain_cloud.ingest.advance import Advance
from geartrain_cloud.ingest.clock import SourceClock
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.membership import Membership
from geartrain_cloud.ingest.sequence import Sequencer
from geartrain_cloud.ingest.upkeep import Upkeep
from geartrain_cloud.ports import AckCursor
from geartrain_edge.sources.intake import Intake
from geartrain_edge.spool.disk_floor import DiskFloor
from geartrain_edge.spool.shedding import Shedder
from geartrain_edge.uplink.uplink import Uplink
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.denied_fleet import DeniedFleet
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.fleet.floor_fleet import FloorFleet
from geartrain_simulation.fleet.troubles import Fault
from geartrain_simulation.machine.world import Process
from geartrain_simulation.stores.ledger_book import LedgerBook

# Of epochs


def _dedup_per_seq_only(patches: Patches) -> None:
    """Ingest takes a batch for a duplicate by its seq, whatever its epoch."""
    highest: dict[tuple[str, str], int] = {}

    def make(right: Any) -> Any:
        async def take(sequencer: Sequencer, stream: Any, arrival: Any) -> None:
            place, header, current = (stream.device, stream.flow), arrival.header, stream.current
            known = current is not None and header.epoch == current.epoch
            if known and current.seq < header.seq <= highest.get(place, 0):
                done = (header.seq, arrival.digest_after)
                sequencer._outbox.ack(AckCursor(*place, header.epoch, stream.cursor.ordinal, *done))
                return
            await right(sequencer, stream, arrival)
            if stream.current is not None:
                highest[place] = max(highest.get(place, 0), stream.current.seq)

        return take

    patches.replace(Sequencer, "take", make)


def _stale_epochs_ack_accepted(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def receive_control(sender: Sender, control: Any, now_s: float) -> bool:
            return bool(right(sender, msgspec.structs.replace(control, epoch=sender.epoch), now_s))

        return receive_control

    patches.replace(Sender, "receive_control", make)


def _digest_ignored_in_ack(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def compared(sender: Sender, ack: Any, seq: int, digest: bytes, now_s: float) -> None:
            right(sender, msgspec.structs.replace(ack, digest=digest), seq, digest, now_s)

        return compared

    patches.replace(Sender, "compared", make)


def _fresh_epoch_from_position_0(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def release(intake: Intake, positions: Any, fragment: Any) -> Any:
            return await right(intake, {}, fragment)

        return release

    patches.replace(Intake, "release", make)


# Of full spools


def _drop_oldest_undeclared(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def _gap(shedder: Shedder, run: Any) -> Any:
            run.rows = []
            return right(shedder, run)

        return _gap

    patches.replace(Shedder, "_gap", make)


def _dropped_seq_counted_though_durable(patches: Patches) -> None:
    patches.replace(
        Content,
        "_gap",
        lambda right: lambda content, arrival, first: right(content, arrival, arrival.first_seq),
    )


# Of disks that others fill


def _floor_not_asked(patches: Patches) -> None:
    patches.replace(DiskFloor, "now", lambda right: lambda floor, bytes_max: bytes_max)


def _floor_asked_once(patches: Patches) -> None:
    """What the disk left when the agent first looked is left for good."""
    left: dict[DiskFloor, int] = {}

    def make(right: Any) -> Any:
        return lambda floor, bytes_max: left.setdefault(floor, right(floor, bytes_max))

    patches.replace(DiskFloor, "now", make)


def floor(seed: int) -> None:
    """A run in which disks are low for a while."""
    FloorFleet(seed).run()


# Of devices that the broker does not accept


def _denied_as_often_as_refused(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def pause(connector: Connector, *, is_quick_refusal: bool) -> float:
            denied, connector._denied = connector._denied, ""
            found = float(right(connector, is_quick_refusal=is_quick_refusal))
            connector._denied = denied
            return found

        return pause

    patches.replace(Connector, "_pause_s", make)


def _denied_without_a_bound(patches: Patches) -> None:
    """It pauses ever longer, and does not come back within its bound."""

    def make(right: Any) -> Any:
        def pause(connector: Connector, *, is_quick_refusal: bool) -> float:
            found = float(right(connector, is_quick_refusal=is_quick_refusal))
            return found * 2.0**connector._failures if connector._denied else found

        return pause

    patches.replace(Connector, "_pause_s", make)


def _denial_not_said(patches: Patches) -> None:
    patches.replace(Uplink, "denied_why", lambda right: property(lambda uplink: ""))


def denied(seed: int) -> None:
    """A run in which the broker does not accept devices for a while."""
    DeniedFleet(seed).run()


# Of devices out of reach, and of partitions


def _excluded_device_not_readmitted(patches: Patches) -> None:
    def note(right: Any) -> Any:
        def contact(membership: Membership, stream: Any) -> None:
            stream.contact_s, stream.contact_us = membership._clock.monotonic_s(), membership._clock.now_us()

        return contact

    def ignore(right: Any) -> Any:
        def observe(clock: SourceClock, device: str, watermark: int) -> bool:
            return not clock.is_excluded(device) and bool(right(clock, device, watermark))

        return observe

    def believe(right: Any) -> Any:
        def lacks_only(content: Content, stream: Any, header: Any, marks: Any) -> None:
            clocks = content._of(stream).clocks
            left_out = {s for s in marks if s in clocks and clocks[s].is_excluded(stream.device)}
            right(content, stream, header, {s: mark for s, mark in marks.items() if s not in left_out})

        return lacks_only

    patches.replace(Membership, "contact", note)
    patches.replace(SourceClock, "observe", ignore)
    patches.replace(Content, "_believe", believe)


def _readmitted_device_sets_the_clock_back(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def readmit(clock: SourceClock, device: str) -> bool:
            moved = bool(right(clock, device))
            least = min(clock._live.values(), default=START_OF_TIME)
            clock.value = min(clock.value, least)
            return moved

        return readmit

    patches.replace(SourceClock, "readmit", make)


def _advance_entry_missing(patches: Patches) -> None:
    patches.replace(Advance, "apply", lambda right: lambda advance, group: None)


# Of what stands beside the way


def _merge_deletes_a_file_in_use(patches: Patches) -> None:
    patches.replace(Upkeep, "_is_over", lambda right: lambda upkeep, one, done, now_us: True)


def _retention_asks_no_query(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def find_all_due(segments: Any, queries: Any, *limits: Any) -> Any:
            return right(segments, [replace(query, position=FAR) for query in queries], *limits)

        return find_all_due

    patches.replace(upkeep, "find_all_due", make)


def _fencing_term_ignored(patches: Patches) -> None:
    patches.replace(LedgerBook, "check", lambda right: lambda book, term: None)


TWO_UNTIL_S = 8.0
FAR = 1 << 62
"""A position that no log comes to."""


def two_ingests(seed: int) -> None:
    """A run in which a second ingest takes the log over from the first, which lives on, and so on."""

    def plot(fleet: Fleet) -> None:
        async def second(process: Process) -> None:
            if fleet.world.loop.time() < TWO_UNTIL_S:
                fleet.world.later(TWO_UNTIL_S - fleet.world.loop.time(), node.stop)
                await fleet._ingest(process)

        fleet.checkers.delivery.shares_the_log = True
        node = fleet.world.node("ingest-2", second)
        fleet.world.later(fleet.world.random("second").uniform(0.5, 4.0), node.start)

    Fleet(seed, plot=plot).run()


def restored_out_of_reach(seed: int) -> None:
    """A run in which a device goes back to an old spool and cannot send for a while."""
    random = Random(f"{seed}/restored")
    at_s, for_s = random.uniform(1, 4), random.uniform(0.3, 2)
    faults = [
        Fault("restore", "device-1", at_s=at_s, for_s=for_s),
        Fault("cut", "device-1", at_s=at_s + for_s, for_s=5.0),
    ]
    Fleet(seed, devices=[Device("device-1", 60, spool_bytes_max=1 << 20)], faults=faults).run()


OF_LIFE = (
    Mutant("dedup per seq only", _dedup_per_seq_only),
    Mutant("stale epoch's ack accepted", _stale_epochs_ack_accepted),
    Mutant("digest ignored in ack", _digest_ignored_in_ack, restored_out_of_reach),
    Mutant("fresh epoch from position 0", _fresh_epoch_from_position_0),
    Mutant("drop_oldest undeclared", _drop_oldest_undeclared),
    Mutant("dropped seq counted though durable", _dropped_seq_counted_though_durable),
    Mutant("floor not asked", _floor_not_asked, floor),
    Mutant("floor asked once", _floor_asked_once, floor),
    Mutant("denied as often as refused", _denied_as_often_as_refused, denied),
    Mutant("denied without a bound", _denied_without_a_bound, denied),
    Mutant("denial not said", _denial_not_said, denied),
    Mutant("excluded device not readmitted", _excluded_device_not_readmitted),
    Mutant("readmitted device sets the clock back", _readmitted_device_sets_the_clock_back),
    Mutant("advance entry missing", _advance_entry_missing),
    Mutant("merge deletes a file in use", _merge_deletes_a_file_in_use),
    Mutant("retention asks no query", _retention_asks_no_query),
    Mutant("fencing term ignored", _fencing_term_ignored, two_ingests),
)
