"""Faults planted in devices that go over from one revision of their steps to the next."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain.ports import SpoolCommit
from geartrain.tasks import migration
from geartrain.wire.codec import decode_header
from geartrain.wire.envelope import BatchKind, NackReason
from geartrain_cloud.ingest import sequence
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.sequence import Sequencer
from geartrain_edge.agent import agent, crossing, epochs, session
from geartrain_edge.agent.crossing import REVISION, Numbers
from geartrain_edge.spool.sealing import Sealer
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.revision_fleet import RevisionFleet

_HIDING = 940_371
"""The first world in which a gap would hide a crossing: one in thousands does."""


def _run(seed: int) -> object:
    return RevisionFleet(seed).run()


def _run_hiding(seed: int) -> object:
    return RevisionFleet(_HIDING + seed).run()


def _former_steps_go_on(patches: Patches) -> None:
    """The life in which a device goes over still runs the steps of before."""
    former: dict[bytes, Any] = {}

    def make(right: Any) -> Any:
        def fragment(plan: Any, effects: Any, image: Any, without: Any) -> Any:
            before = former.get(image.epoch, plan)
            former[image.epoch] = plan
            goes_on = {c.id for c in before.channels} <= {c.id for c in plan.channels}
            return right(before if goes_on else plan, effects, image, without)

        return fragment

    patches.replace(session, "_fragment", make)


def _state_not_kept(patches: Patches) -> None:
    """A device that goes over forgets what all of its steps keep."""

    def make(right: Any) -> Any:
        def forgotten(state: Any, plan: Any, settings: Any, *, is_fresh: bool) -> Any:
            numbers = Numbers.of(state.get(crossing.NUMBERS), is_fresh=is_fresh)
            if REVISION not in state or settings.revision <= numbers.revision:
                return right(state, plan, settings, is_fresh=is_fresh)
            return frozenset(cell for cell in state if not cell[0].startswith("_"))

        return forgotten

    patches.replace(session, "forgotten", make)


def _cells_of_removed_steps_stay(patches: Patches) -> None:
    """What a removed step kept is there for a step of its name, once that is back."""

    def make(right: Any) -> Any:
        def forgotten(state: Any, plan: Any, settings: Any, *, is_fresh: bool) -> Any:
            steps = {step.id for step in plan.graph.steps}
            return frozenset(c for c in right(state, plan, settings, is_fresh=is_fresh) if c[0] in steps)

        return forgotten

    patches.replace(session, "forgotten", make)


def _drops_not_heeded(patches: Patches) -> None:
    """A step that is to begin anew goes on with what it kept."""
    patches.replace(crossing, "_told", lambda right: lambda numbers, settings: set())


def _only_the_newest_drop_heeded(patches: Patches) -> None:
    """A device that has left a revision out keeps what it would have lost by that."""

    def make(right: Any) -> Any:
        def told(numbers: Any, settings: Any) -> set[str]:
            return {step for step, number in settings.drops.items() if number == settings.revision}

        return told

    patches.replace(crossing, "_told", make)


def _committing(change: Any) -> Any:
    """Have what `epochs` commits be changed first; a crossing, and nothing else."""

    def make(right: Any) -> Any:
        def commit(batches: Any = (), **rest: Any) -> SpoolCommit:
            made: SpoolCommit = right(batches, **rest)
            is_crossing = any(decode_header(one.header).kind is BatchKind.CROSSING for one in made.batches)
            return change(made) if is_crossing else made

        return commit

    return make


def _forgotten_cells_stay_on_the_disk(patches: Patches) -> None:
    """What is forgotten is back with the next start."""

    def change(made: SpoolCommit) -> SpoolCommit:
        return replace(made, state={at: value for at, value in made.state.items() if value is not None})

    patches.replace(epochs, "SpoolCommit", _committing(change))


def _revision_not_in_the_commit(patches: Patches) -> None:
    """The commit of a crossing does not say of which revision the spool is now."""

    def change(made: SpoolCommit) -> SpoolCommit:
        return replace(made, state={at: value for at, value in made.state.items() if at != REVISION})

    patches.replace(epochs, "SpoolCommit", _committing(change))


def _number_of_the_revision_not_kept(patches: Patches) -> None:
    """A spool does not say the number of the revision that it is of."""

    def make(right: Any) -> Any:
        return lambda numbers: right(replace(numbers, revision=0))

    patches.replace(Numbers, "stored", make)


def _crossing_in_two_commits(patches: Patches) -> None:
    """The batch of a crossing is there before what the spool says of itself."""

    def change(sealed: Any, going: Any) -> Any:
        return SpoolCommit(sealed), replace(going, change=replace(going.change, batches=[]))

    patches.replace(epochs, "_go_over", _beforehand(change))


def _beforehand(change: Any) -> Any:
    """Have a part of a crossing that waits for records be committed before these."""

    def make(right: Any) -> Any:
        async def go_over(session: Any, effects: Any, *rest: Any) -> None:
            await right(session, effects, *rest)
            if session.going_over is not None:
                sealed = session.going_over.change.batches
                made, session.going_over = change(sealed, session.going_over)
                await effects.store.commit(made)
                session.backlog.committed(made.batches)

        return go_over

    return make


def _state_of_the_next_revision_before_its_records(patches: Patches) -> None:
    """What a spool says of itself, and the cells that go, are written before the batch of the crossing."""

    def change(sealed: Any, going: Any) -> Any:
        return replace(going.change, batches=[]), replace(going, change=SpoolCommit(sealed))

    patches.replace(epochs, "_go_over", _beforehand(change))


def _records_before_their_crossing(patches: Patches) -> None:
    """The first records of the next steps are committed, and their crossing with those behind them."""

    def make(right: Any) -> Any:
        def with_crossing(session: Any, batches: Any, state: Any) -> Any:
            if session.going_over is None or not batches or session in seen:
                return right(session, batches, state)
            seen.add(session)
            going, session.going_over = session.going_over, None
            waiting[session] = going
            return batches, state

        return with_crossing

    seen, waiting = set[Any](), dict[Any, Any]()

    def later(right: Any) -> Any:
        def committed_crossing(session: Any) -> None:
            right(session)
            session.going_over = waiting.pop(session, None)

        return committed_crossing

    patches.replace(session.Session, "with_crossing", make)
    patches.replace(session.Session, "committed_crossing", later)


def _crossing_forgotten_in_a_new_epoch(patches: Patches) -> None:
    """A new epoch that begins while a crossing waits knows nothing of it, and its seqs leave it out."""

    def make(right: Any) -> Any:
        async def renew(session: Any, *rest: Any) -> None:
            session.going_over = None
            await right(session, *rest)

        return renew

    patches.replace(agent, "renew", make)


def _last_records_read_again(patches: Patches) -> None:
    """A crossing sets the positions back: the new steps are given records that the former ones had."""

    def make(right: Any) -> Any:
        async def go_over(session: Any, *rest: Any) -> None:
            await right(session, *rest)
            positions = session.intake.progress().positions
            back = {at: replace(one, position=max(one.position - 3, 0)) for at, one in positions.items()}
            session.intake.restore(back, hold=False)

        return go_over

    patches.replace(epochs, "_go_over", make)


def _boundary_before_its_place(patches: Patches) -> None:
    """A crossing says that it stands some records before those that the former steps had."""

    def make(right: Any) -> Any:
        def cross(sealer: Sealer, said: Any, number: int, progress: Any) -> Any:
            back = {
                at: replace(one, position=max(one.position - 3, 0)) for at, one in progress.positions.items()
            }
            return right(sealer, said, number, replace(progress, positions=back))

        return cross

    patches.replace(Sealer, "cross", make)


def _revision_not_said(patches: Patches) -> None:
    """A crossing does not name the number of its revision, so that nobody can hold it."""

    def make(right: Any) -> Any:
        return lambda revision, base_cut, number=0: right(revision, base_cut)

    patches.replace(epochs, "runs", make)


def _back_to_a_former_revision(patches: Patches) -> None:
    """An agent that is started with a former revision takes that for the next one."""

    def make(right: Any) -> Any:
        def is_next(held: Any, ours: Any, numbers: Any, settings: Any) -> bool:
            return bool(right(held, ours, replace(numbers, revision=0), settings))

        return is_next

    patches.replace(epochs, "is_next", make)


def _crossing_taken_before_the_cloud(patches: Patches) -> None:
    """Ingest takes a crossing to a revision that the log has not brought."""

    def make(right: Any) -> Any:
        def stranger(content: Content, stream: Any, arrival: Any) -> Any:
            partition = content._of(stream)
            brought, partition.revision = partition.revision, 1 << 30
            try:
                return right(content, stream, arrival)
            finally:
                partition.revision = brought

        return stranger

    patches.replace(Content, "stranger", make)


def _former_batch_decoded_by_the_newest_schema(patches: Patches) -> None:
    """Rows are decoded by the schema that was announced last, whatever their channel."""

    def make(right: Any) -> Any:
        def rows(content: Content, stream: Any, arrival: Any) -> Any:
            known = content._schemas
            names = [name for flow, name in known if flow == stream.flow and not name.startswith("_")]
            place = stream.flow, arrival.header.channel
            if place not in known or len(names) < 2 or names[-1] == place[1]:
                return right(content, stream, arrival)
            newest = next(reversed(known[stream.flow, names[-1]].values()))
            due, known[place] = known[place], dict.fromkeys(known[place], newest)
            try:
                return right(content, stream, arrival)
            finally:
                known[place] = due

        return rows

    patches.replace(Content, "_rows", make)


def _laggards_refused(patches: Patches) -> None:
    """What a device sends by a former revision counts as of a spool that was set back."""

    def make(right: Any) -> Any:
        def is_over(sequencer: Sequencer, stream: Any, receiver: Any, event: Any) -> bool:
            header = event.arrival.header
            newest = sequencer._content._of(stream).revision
            if header.channel and header.crossing + 1 < newest:
                place = stream.device, stream.flow, header.epoch, header.seq
                sequencer._outbox.nack(*place, NackReason.CLOSED)
                return True
            return bool(right(sequencer, stream, receiver, event))

        return is_over

    patches.replace(Sequencer, "_is_over", make)


def _crossing_hidden_by_a_gap(patches: Patches) -> None:
    """A gap is taken whatever stands before it in its spool."""
    patches.replace(sequence, "_is_of_another_history", lambda right: lambda *args: False)


def _state_not_made_anew(patches: Patches) -> None:
    """A step goes on with the state of its former code, as it is."""
    patches.replace(session, "migrated", lambda right: lambda *args, **more: {})


def _state_made_anew_not_written(patches: Patches) -> None:
    """What was made of a former state is in memory only: the next start finds the former one."""

    def change(made: SpoolCommit) -> SpoolCommit:
        kept = {at: value for at, value in made.state.items() if value is None or at[0].startswith("_")}
        return replace(made, state=kept)

    patches.replace(epochs, "SpoolCommit", _committing(change))


def _one_step_of_a_chain(patches: Patches) -> None:
    """A state of the first layout gets no further than to the next one."""

    def make(right: Any) -> Any:
        def brought(step: str, task: Any, value: Any) -> Any:
            function = type(task).migrate.get(type(value))
            return value if function is None else function(value)

        return brought

    patches.replace(migration, "_brought", make)


def _made_anew_though_it_begins_anew(patches: Patches) -> None:
    """A step that is to begin anew goes on with what was made of its former state."""

    def make(right: Any) -> Any:
        def changes(*args: Any, **more: Any) -> Any:
            gone, _ = right(*args, **more)
            made = {at: new for at, new in crossing.migrated(*args, **more).items() if new is not None}
            return frozenset(gone) - made.keys(), made

        return changes

    patches.replace(session, "_changes", make)


def _former_type_refused(patches: Patches) -> None:
    """Once the flow has another type of a channel, ingest takes that one alone."""

    def make(right: Any) -> Any:
        def takes(flow: FollowedFlow, channel: str, schema_id: str) -> bool:
            return schema_id == flow.schemas.get(channel)

        return takes

    patches.replace(FollowedFlow, "takes", make)


def _former_type_read_as_the_newest(patches: Patches) -> None:
    """Rows of a channel are decoded as the type that its flow has now, whatever their header says."""

    def make(right: Any) -> Any:
        def schema(content: Content, flow: str, channel: str, schema_id: str) -> Any:
            told = content._flows[flow].schemas.get(channel, "")
            found = right(content, flow, channel, schema_id)
            return found and (right(content, flow, channel, told) or found)

        return schema

    patches.replace(Content, "_schema", make)


OF_REVISIONS = (
    Mutant("former steps go on behind a crossing", _former_steps_go_on, _run),
    Mutant("state not kept over a revision", _state_not_kept, _run),
    Mutant("cells of removed steps stay", _cells_of_removed_steps_stay, _run),
    Mutant("steps go on that are to begin anew", _drops_not_heeded, _run),
    Mutant("drops of a revision left out not heeded", _only_the_newest_drop_heeded, _run),
    Mutant("forgotten cells stay on the disk", _forgotten_cells_stay_on_the_disk, _run),
    Mutant("revision not in the commit of a crossing", _revision_not_in_the_commit, _run),
    Mutant("number of a revision not kept", _number_of_the_revision_not_kept, _run),
    Mutant("crossing in two commits", _crossing_in_two_commits, _run),
    Mutant(
        "state of the next revision before its crossing", _state_of_the_next_revision_before_its_records, _run
    ),
    Mutant("records before their crossing", _records_before_their_crossing, _run),
    Mutant("crossing forgotten in a new epoch", _crossing_forgotten_in_a_new_epoch, _run),
    Mutant("last records read again behind a crossing", _last_records_read_again, _run),
    Mutant("boundary said before its place", _boundary_before_its_place, _run),
    Mutant("number of a revision not said", _revision_not_said, _run),
    Mutant("device goes back to a former revision", _back_to_a_former_revision, _run),
    Mutant("crossing taken before the cloud", _crossing_taken_before_the_cloud, _run),
    Mutant("former batch decoded by the newest schema", _former_batch_decoded_by_the_newest_schema, _run),
    Mutant("device of a former revision refused", _laggards_refused, _run),
    Mutant("crossing hidden by a gap", _crossing_hidden_by_a_gap, _run_hiding),
    Mutant("state of another type not made anew", _state_not_made_anew, _run),
    Mutant("state made anew not written", _state_made_anew_not_written, _run),
    Mutant("state of the first layout made anew once", _one_step_of_a_chain, _run),
    Mutant("state made anew of a step that begins anew", _made_anew_though_it_begins_anew, _run),
    Mutant("rows of a former type refused", _former_type_refused, _run),
    Mutant("rows of a former type read as the newest", _former_type_read_as_the_newest, _run),
)
