"""Faults planted in sources that come to devices with a revision of their steps."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain_cloud.ingest.config import FlowConfig
from geartrain_cloud.ingest.content import Content
from geartrain_edge.sources.intake import Intake
from geartrain_simulation.fleet.revision_fleet import SOURCE
from geartrain_simulation.fleet.source_fleet import DOORS, SourceFleet
from geartrain_simulation.mutants.planting import Mutant, Patches


def _run(seed: int) -> object:
    return SourceFleet(seed).run()


def _taken_to_lack_it(patches: Patches) -> None:
    """A device that has not gone over is taken to lack the source that comes, and its clock goes on."""
    patches.replace(FlowConfig, "is_to_come", lambda right: lambda flow, source, revision: False)


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
        def restore(intake: Intake, positions: Any, *, hold: bool = False) -> None:
            ends = [at for (step, _), at in positions.items() if step == SOURCE]
            if ends and not any(step == DOORS for step, _ in positions):
                device = next(split for step, split in positions if step == SOURCE).partition("/")[0]
                positions = {**positions, (DOORS, f"{device}/{DOORS}"): ends[0]}
            right(intake, positions, hold=hold)

        return restore

    patches.replace(Intake, "restore", make)


def _position_not_kept(patches: Patches) -> None:
    """A spool keeps no position of a source that was not there from the beginning."""

    def make(right: Any) -> Any:
        def restore(intake: Intake, positions: Any, *, hold: bool = False) -> None:
            right(intake, {at: one for at, one in positions.items() if at[0] != DOORS}, hold=hold)

        return restore

    patches.replace(Intake, "restore", make)


OF_SOURCES = (
    Mutant("source that comes taken to be lacking", _taken_to_lack_it, _run),
    Mutant("source that comes not heard of", _waited_for_until_it_ends, _run),
    Mutant("source that comes begins where the others stand", _begins_where_the_others_stand, _run),
    Mutant("position of a source that comes not kept", _position_not_kept, _run),
)
