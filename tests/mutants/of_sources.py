"""Faults planted in sources that come to devices with a revision of their steps or go with one, and in the
notes that splits keep.
"""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from dataclasses import replace as replaced
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.roster import Followed
from geartrain_edge.sources.intake import Intake
from geartrain_edge.sources.notes import Notes
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.fleet.revision_fleet import DOORS, SOURCE
from geartrain_simulation.fleet.source_fleet import SourceFleet
from geartrain_simulation.fleet.troubles import SPOOL_POINTS, Fault


def _run(seed: int) -> object:
    return SourceFleet(seed).run()


def _taken_to_lack_it(patches: Patches) -> None:
    """A device that has not gone over is taken to lack the source that comes, and its clock goes on."""
    patches.replace(FollowedFlow, "is_to_come", lambda right: lambda flow, source, revision: False)


def _waited_for_until_it_ends(patches: Patches) -> None:
    """Ingest does not hear which revision a device has gone over to, and knows nothing of its new source."""

    def make(right: Any) -> Any:
        def moved(content: Content, stream: Any, cursor: Any, header: Any) -> Any:
            return right(content, stream, cursor, replace(header, source_watermarks=_without(header)))

        return moved

    patches.replace(Content, "_move_clocks", make)


def _without(header: Any) -> dict[str, int]:
    return {source: mark for source, mark in header.source_watermarks.items() if source != DOORS}


def _begins_where_the_others_stand(patches: Patches) -> None:
    """A source that comes is read from the row at which the other one stands."""

    def make(right: Any) -> Any:
        def restore(intake: Intake, positions: Any, *said: Any, **how: Any) -> None:
            ends = [at for (step, _), at in positions.items() if step == SOURCE]
            if ends and not any(step == DOORS for step, _ in positions):
                device = next(split for step, split in positions if step == SOURCE)
                positions = {**positions, (DOORS, device): ends[0]}
            right(intake, positions, *said, **how)

        return restore

    patches.replace(Intake, "restore", make)


def _position_not_kept(patches: Patches) -> None:
    """A spool keeps no position of a source that was not there from the beginning."""

    def make(right: Any) -> Any:
        def restore(intake: Intake, positions: Any, *said: Any, **how: Any) -> None:
            right(intake, {at: one for at, one in positions.items() if at[0] != DOORS}, *said, **how)

        return restore

    patches.replace(Intake, "restore", make)


def _waited_for_behind_it(patches: Patches) -> None:
    """A device that has gone over to a revision without a source is still waited for."""

    def make(right: Any) -> Any:
        def believe(content: Content, stream: Any, header: Any, marks: Any) -> None:
            clock = content._of(stream).clocks.get(DOORS)
            is_held = clock is not None and not clock.is_excluded(stream.device)
            right(content, stream, header, {DOORS: START_OF_TIME, **marks} if is_held else marks)

        return believe

    patches.replace(Content, "_believe", make)


def _not_waited_for_from_its_revision_on(patches: Patches) -> None:
    """A source goes from all devices as the log brings the revision, also from those that read it yet."""

    def make(right: Any) -> Any:
        def take(followed: Followed, rows: Any) -> None:
            right(followed, rows)
            for name, flow in followed.flows.items():
                if flow.revision >= until[0]:
                    followed.flows[name] = replaced(flow, sources={**flow.sources, DOORS: ()})

        return take

    def drawn(right: Any) -> Any:
        def _drawn_forms(fleet: SourceFleet, seed: int) -> Any:
            forms = right(fleet, seed)
            until[0] = fleet.until
            return forms

        return _drawn_forms

    until = [0]
    patches.replace(SourceFleet, "_drawn_forms", drawn)
    patches.replace(Followed, "take", make)


def _noting(seed: int) -> None:
    """A run in which a device reads from a source that notes how far, with kills and loss of power."""
    random, name = Random(f"{seed}/noting"), "device-1"
    faults = [
        Fault(random.choice(("kill", "power loss")), name, point=random.choice(SPOOL_POINTS), nth=nth)
        for nth in random.sample(range(1, 20), 3)
    ]
    Fleet(seed, devices=[Device(name, 12, others=40, spool_bytes_max=1 << 20)], faults=faults).run()


def _notes_not_kept(patches: Patches) -> None:
    patches.replace(Notes, "changes", lambda right: lambda notes: {})


def _notes_in_the_next_commit(patches: Patches) -> None:
    """What a read has noted is written with the rows of the read behind it."""
    held = WeakKeyDictionary[Notes, dict[Any, Any]]()

    def make(right: Any) -> Any:
        def changes(notes: Notes) -> Any:
            former = held.get(notes, {})
            held[notes] = right(notes)
            return former

        return changes

    patches.replace(Notes, "changes", make)


def _notes_of_another_split(patches: Patches) -> None:
    """A split finds the notes of the source before its own."""

    def make(right: Any) -> Any:
        return lambda notes, split: right(notes, (SOURCE, split[1]))

    patches.replace(Notes, "of", make)


OF_SOURCES = (
    Mutant("source that comes taken to be lacking", _taken_to_lack_it, _run),
    Mutant("source that comes not heard of", _waited_for_until_it_ends, _run),
    Mutant("source that comes begins where the others stand", _begins_where_the_others_stand, _run),
    Mutant("position of a source that comes not kept", _position_not_kept, _run),
    Mutant("source that goes waited for behind it", _waited_for_behind_it, _run),
    Mutant("source that goes not waited for", _not_waited_for_from_its_revision_on, _run),
    Mutant("notes not kept", _notes_not_kept, _noting),
    Mutant("notes kept a commit late", _notes_in_the_next_commit, _noting),
    Mutant("notes of another split", _notes_of_another_split, _noting),
)
