"""Faults planted in devices that go over from one cut to another."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from geartrain_cloud.ingest import recovery, sequence
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.sequence import Sequencer
from geartrain_edge.agent import epochs
from geartrain_edge.agent.crossing import Numbers
from geartrain_edge.spool import shedding
from geartrain_edge.spool.sealing import Sealer
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.crossing_fleet import CrossingFleet


def _run(seed: int) -> object:
    return CrossingFleet(seed).run()


def _set_back_epoch_opened(patches: Patches) -> None:
    """Ingest opens an epoch that begins before a crossing that it has."""
    patches.replace(Sequencer, "_is_set_back", lambda right: lambda *args: False)
    patches.replace(sequence, "_is_of_former_cut", lambda right: lambda *args, **more: False)


def _crossings_forgotten_at_a_start(patches: Patches) -> None:
    """Ingest does not ask the ledger how often its devices have gone over."""
    patches.replace(recovery, "replace", lambda right: lambda cursor, crossing: right(cursor, crossing=0))


def _number_not_kept(patches: Patches) -> None:
    """The commit of a crossing does not hold its number."""
    patches.replace(Numbers, "stored", lambda right: lambda numbers: {})


def _crossing_not_said(patches: Patches) -> None:
    """A device announces the channels of its new cut, and no crossing."""

    def make(right: Any) -> Any:
        def cross(sealer: Sealer, crossing: Any, number: int, progress: Any) -> Any:
            return sealer.announce(progress)

        return cross

    patches.replace(Sealer, "cross", make)


def _crossing_shed(patches: Patches) -> None:
    """A full spool drops a crossing like any batch."""
    patches.replace(shedding, "_is_kept", lambda right: lambda batch: batch.seq == 1)


def _hello_says_the_last_number(patches: Patches) -> None:
    """A new epoch says the number at its end, and not that before its first batch."""

    def make(right: Any) -> Any:
        async def first_number(session: Any, effects: Any, acked_seq: int) -> int:
            return int(session.numbers.number)

        return first_number

    patches.replace(epochs, "_first_number", make)


def _fresh_spool_takes_the_former_number(patches: Patches) -> None:
    """What a fresh spool runs is not logged."""

    def make(right: Any) -> Any:
        def begin(content: Content, stream: Any, before: Any, hello: Any) -> int:
            if before is None or not hello.header.fresh:
                return int(right(content, stream, before, hello))
            return int(before.crossing)

        return begin

    patches.replace(Content, "begin", make)


OF_CROSSINGS = (
    Mutant("epoch from before a crossing opened", _set_back_epoch_opened, _run),
    Mutant("crossings forgotten at a start", _crossings_forgotten_at_a_start, _run),
    Mutant("number of a crossing not kept", _number_not_kept, _run),
    Mutant("crossing not said", _crossing_not_said, _run),
    Mutant("crossing shed", _crossing_shed, _run),
    Mutant("hello says the last number", _hello_says_the_last_number, _run),
    Mutant("fresh spool takes the former number", _fresh_spool_takes_the_former_number, _run),
)
