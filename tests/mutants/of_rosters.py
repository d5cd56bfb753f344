"""Faults planted in how ingest follows a roster: what it logs, whom it waits for, and what it takes."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from geartrain_cloud.ingest import following, ingest, recovery
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.following import Following
from geartrain_cloud.ingest.group import Group
from geartrain_cloud.ingest.membership import Membership
from geartrain_cloud.ingest.roster import Followed
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.ports import NO_SOURCE, EntryKind
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.roster_fleet import RosterFleet


def _run(seed: int) -> object:
    return RosterFleet(seed).run()


def _run_far(seed: int) -> object:
    """Worlds in which a retired device gets other hardware just before ingest is killed, which is rare."""
    return _run(930_067 + seed)


def _retired_without_an_entry(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def append_note(group: Group, partition: Any, kind: EntryKind, *rest: Any, **options: Any) -> None:
            if kind is not EntryKind.RETIRED:
                right(group, partition, kind, *rest, **options)

        return append_note

    patches.replace(Group, "append_note", make)


def _rows_of_a_retired_device_taken(patches: Patches) -> None:
    """The entry is logged, and all goes on as before it."""

    def make_move(right: Any) -> Any:
        def make(self: Following, move: Any) -> None:
            if move.kind is not EntryKind.RETIRED:
                gone.discard((move.flow, move.source, move.device))
                right(self, move)
                return
            index = partition_of(move.device, self._config.partitions)
            partition = self._known.partitions[move.flow, index]
            self._group.append_note(partition, move.kind, (move.device, b"", 0), source=move.source)
            gone.add((move.flow, move.source, move.device))

        return make

    def members(right: Any) -> Any:
        def _members(self: Following) -> Any:
            found = right(self)
            return {
                flow: [(d, source) for d, source in several if (flow, source, d) not in gone]
                for flow, several in found.items()
            }

        return _members

    gone: set[tuple[str, str, str]] = set()
    patches.replace(Following, "_make", make_move)
    patches.replace(Following, "_members", members)
    patches.replace(Following, "_settle", lambda right: lambda *args: None)


def _taken_behind_the_last_entry(patches: Patches) -> None:
    patches.replace(Following, "_forget", lambda right: lambda self, name: None)


def _members_forgotten_at_a_begin(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def make_partition(place: Any, flow: Any, newest: Any, _members: Any, *rest: Any) -> Any:
            return right(place, flow, newest, {}, *rest)

        return make_partition

    patches.replace(following, "make_partition", make)


def _clock_not_moved_by_who_comes_back(patches: Patches) -> None:
    patches.replace(Following, "_settle_clocks", lambda right: lambda self: None)


def _watermarks_of_a_retired_device_forgotten(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def _disown(content: Content, stream: Any, cursor: Any, *rest: Any) -> None:
            right(content, stream, cursor, *rest)
            stream.cursor = replace(stream.cursor, source_watermarks=cursor.source_watermarks)

        return _disown

    patches.replace(Content, "_disown", make)


def _unreadable_roster_ends_ingest(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def look(roster: Any, followed: Followed) -> bool:
            rows = await roster.after(followed.serial)
            followed.take(rows)
            return bool(rows)

        return look

    patches.replace(ingest, "look", make)


def _end_of_a_flow_unseen_while_down(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def take(followed: Followed, rows: Any) -> None:
            right(followed, [r for r in rows if not r.document.ended or r.instance in followed.flows])

        return take

    patches.replace(Followed, "take", make)


def _revisions_forgotten_at_a_begin(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def make_partition(*known: Any) -> Any:
            return right(*known[:-1], {})

        return make_partition

    patches.replace(following, "make_partition", make)
    patches.replace(recovery, "make_partition", make)


def _revision_in_the_first_partition_alone(patches: Patches) -> None:
    def make(right: Any) -> Any:
        return lambda logged, flows: [move for move in right(logged, flows) if not move.partition]

    patches.replace(following, "crossings", make)


def _revision_left_out(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def crossings(logged: Any, flows: Any) -> Any:
            newest = {(move.flow, move.partition): move for move in right(logged, flows)}
            return list(newest.values())

        return crossings

    patches.replace(following, "crossings", make)


def _fresh_spool_of_a_retired_device_forgotten(patches: Patches) -> None:
    """Ingest that was restarted takes it for a copy of a spool from before its crossing."""

    def make(right: Any) -> Any:
        def stranger(self: Following, device: str, flow: str) -> Any:
            stream = right(self, device, flow)
            if stream is not None:
                stream.is_fresh = False
            return stream

        return stranger

    patches.replace(Following, "stranger", make)


def _waited_for_since_it_was_assigned_before(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def _settle(self: Following, stream: Any, *rest: Any) -> None:
            since_s = stream.waited_since_s
            right(self, stream, *rest)
            stream.waited_since_s = since_s

        return _settle

    patches.replace(Following, "_settle", make)


def _waited_for_since_ingest_began(patches: Patches) -> None:
    """Whoever is assigned later than a device may take to join is excluded at once."""

    def make(right: Any) -> Any:
        def check(self: Membership) -> None:
            for stream in self._streams.values():
                stream.waited_since_s = -math.inf
            right(self)

        return check

    patches.replace(Membership, "check", make)


def _claims_of_who_leaves_kept(patches: Patches) -> None:
    patches.replace(Following, "_give_back", lambda right: lambda self, found: None)


def _device_without_a_source_left_out(patches: Patches) -> None:
    """It is told of the flow, and the log does not know it: what is sent to it goes nowhere."""

    def make(right: Any) -> Any:
        return lambda flow: {member for member in right(flow) if member[1] != NO_SOURCE}

    patches.replace(FollowedFlow, "memberships", make)


def _device_without_a_source_forgotten_at_a_begin(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def make_partition(place: Any, flow: Any, newest: Any, members: Any, *rest: Any) -> Any:
            having = {at: [one for one in several if one[0]] for at, several in members.items()}
            return right(place, flow, newest, having, *rest)

        return make_partition

    patches.replace(recovery, "make_partition", make)
    patches.replace(following, "make_partition", make)


def _device_without_a_source_stays(patches: Patches) -> None:
    """It has left, or has a source, and counts as a member without one all the same."""

    def make(right: Any) -> Any:
        return lambda self, partition, move: (
            right(self, partition, move) if move.kind is EntryKind.ASSIGNED else None
        )

    patches.replace(Following, "_make_without", make)


def _left_before_it_came(patches: Patches) -> None:
    """A device that exchanges its sources is no member for an entry, with its claims still open."""

    def make(right: Any) -> Any:
        return lambda *args: sorted(right(*args), key=lambda move: move.kind is EntryKind.ASSIGNED)

    patches.replace(following, "moves", make)


OF_ROSTERS = [
    Mutant("device without a source left out", _device_without_a_source_left_out, _run),
    Mutant("device without a source forgotten", _device_without_a_source_forgotten_at_a_begin, _run),
    Mutant("device without a source stays", _device_without_a_source_stays, _run),
    Mutant("left before it came", _left_before_it_came, _run),
    Mutant("retired without an entry", _retired_without_an_entry, _run),
    Mutant("rows of a retired device taken", _rows_of_a_retired_device_taken, _run),
    Mutant("taken behind the last entry", _taken_behind_the_last_entry, _run),
    Mutant("members forgotten at a begin", _members_forgotten_at_a_begin, _run),
    Mutant("clock not moved by who comes back", _clock_not_moved_by_who_comes_back, _run),
    Mutant("watermarks of a retired device forgotten", _watermarks_of_a_retired_device_forgotten, _run),
    Mutant("unreadable roster ends ingest", _unreadable_roster_ends_ingest, _run),
    Mutant("end of a flow unseen while down", _end_of_a_flow_unseen_while_down, _run),
    Mutant("claims of who leaves kept", _claims_of_who_leaves_kept, _run),
    Mutant("revisions forgotten at a begin", _revisions_forgotten_at_a_begin, _run),
    Mutant("revision in the first partition alone", _revision_in_the_first_partition_alone, _run),
    Mutant("revision left out", _revision_left_out, _run),
    Mutant("fresh spool of a retired device forgotten", _fresh_spool_of_a_retired_device_forgotten, _run_far),
    Mutant("waited for since it was assigned before", _waited_for_since_it_was_assigned_before, _run),
    Mutant("waited for since ingest began", _waited_for_since_ingest_began, _run),
]
