"""Faults planted in devices that go over before they have heard where they stand, and in fresh spools."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain.ports import SpoolCommit
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.sequence import Sequencer
from geartrain_edge.agent import agent, epochs
from geartrain_edge.agent.crossing import REVISION
from geartrain_edge.agent.session import GoingOver
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.revision_fleet import RevisionFleet


def _run(seed: int) -> object:
    return RevisionFleet(seed).run()


def _goes_over_unheard(patches: Patches) -> None:
    """A device goes over at once, though it has not heard its number."""

    def make(right: Any) -> Any:
        def prepare(session: Any, *args: Any) -> Any:
            change = right(session, *args)
            session.numbers = replace(session.numbers, is_known=True)
            return change

        return prepare

    patches.replace(epochs, "_prepare", make)


def _hello_says_what_is_to_run(patches: Patches) -> None:
    """The hello of a spool that is to go over says what runs from then on."""

    def make(right: Any) -> Any:
        def hello(session: Any, ordinal: int) -> Any:
            if session.change is None or session.numbers.is_known:
                return right(session, ordinal)
            return session.sealer.hello(ordinal, fresh=session.change.runs)

        return hello

    patches.replace(agent, "hello", make)


def _crossing_not_said_with_the_welcome(patches: Patches) -> None:
    """A device hears its number, and announces its new channels without a crossing."""

    def make(right: Any) -> Any:
        def opened(session: Any, opening: Any, after: Any) -> Any:
            change, session.change = session.change, None
            numbers, said = right(session, opening, after)
            if change is not None:
                state = {REVISION: change.revision.to_json().encode()}
                made = SpoolCommit([session.sealer.announce(session.progress)], state=state)
                session.going_over = GoingOver(change, made, {}, numbers)
            return numbers, said

        return opened

    patches.replace(agent, "opened", make)


def _crossing_before_what_was_read(patches: Patches) -> None:
    """The crossing with the first welcome says that it stands where the spool had nothing."""

    def make(right: Any) -> Any:
        return lambda session, opening, after: right(session, opening, session.progress)

    patches.replace(agent, "opened", make)


def _fresh_spool_opened_before_the_cloud(patches: Patches) -> None:
    """Ingest opens a fresh spool of a revision that the log has not brought."""
    patches.replace(Content, "ahead", lambda right: lambda content, stream, arrival: "")


def _set_back_spool_welcomed(patches: Patches) -> None:
    """Ingest welcomes the epoch that it has open, though its spool does not know that it has gone over."""

    def make(right: Any) -> Any:
        def is_set_back(sequencer: Sequencer, stream: Any, header: Any) -> bool:
            is_open = stream.current is not None and stream.current.epoch == header.epoch
            return not is_open and bool(right(sequencer, stream, header))

        return is_set_back

    patches.replace(Sequencer, "_is_set_back", make)


def _first_loss_of_a_spool_not_said(patches: Patches) -> None:
    """What a fresh spool runs is logged only of a device that has gone over."""

    def make(right: Any) -> Any:
        def begin(content: Content, stream: Any, before: Any, hello: Any) -> int:
            if before is not None and not before.crossing and hello.header.fresh:
                return 0
            return int(right(content, stream, before, hello))

        return begin

    patches.replace(Content, "begin", make)


OF_WELCOMES = (
    Mutant("device goes over unheard", _goes_over_unheard, _run),
    Mutant("hello says what is to run", _hello_says_what_is_to_run, _run),
    Mutant("crossing with the welcome not said", _crossing_not_said_with_the_welcome, _run),
    Mutant("crossing with the welcome before its place", _crossing_before_what_was_read, _run),
    Mutant("fresh spool opened before the cloud", _fresh_spool_opened_before_the_cloud, _run),
    Mutant("set back spool welcomed in its epoch", _set_back_spool_welcomed, _run),
    Mutant("first loss of a spool not said", _first_loss_of_a_spool_not_said, _run),
)
