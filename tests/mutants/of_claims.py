"""Faults planted in devices that claim the state of a step, and in the host that gives it to them."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain.runtime.fragment import Output
from geartrain.state.claims import BACK, HAS, Taking
from geartrain.state.keyed import NEVER, saved_cell
from geartrain_cloud.ingest import content
from geartrain_cloud.spark import claims, embedded
from geartrain_cloud.spark.buckets import BucketState
from geartrain_cloud.spark.moved_state import MovedState
from geartrain_edge.agent import claiming, epochs
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.crossing import CLAIM
from geartrain_edge.spool.sealing import Sealer
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.claiming_fleet import LOST, SET_BACK, TOO_LARGE, ClaimingFleet


def _run(seed: int) -> object:
    return ClaimingFleet(seed).run()


def _run_lost(seed: int) -> object:
    return ClaimingFleet(seed, LOST).run()


def _run_set_back(seed: int) -> object:
    return ClaimingFleet(seed, SET_BACK).run()


def _run_too_large(seed: int) -> object:
    return ClaimingFleet(seed, TOO_LARGE).run()


def _open_claim_forgotten(patches: Patches) -> None:
    """A life that finds a claim open says nothing of it, and goes on."""

    def make(right: Any) -> Any:
        async def give_back(session: Any, effects: Any) -> None:
            return None

        return give_back

    patches.replace(epochs, "give_back", make)


def _claim_served_again(patches: Patches) -> None:
    """A shard keeps aside what a device has taken, and goes on with it at the next claim."""

    def make(right: Any) -> Any:
        return lambda giving, said: None if said.says == HAS else right(giving, said)

    patches.replace(claims.Giving, "_settle", make)


def _claim_not_given_back(patches: Patches) -> None:
    """A shard does not go on with what a device has gone on without."""

    def make(right: Any) -> Any:
        return lambda giving, said: None if said.says == BACK else right(giving, said)

    patches.replace(claims.Giving, "_settle", make)


def _cells_kept_by_both(patches: Patches) -> None:
    """A shard gives cells, and goes on with them."""

    def make(right: Any) -> Any:
        def lend(giving: Any, claim: Any) -> Any:
            saved, before = giving._saved, dict[Any, Any]()
            for key, cell in saved.cells(claim.step):
                before[claim.step, key] = cell
            cells = right(giving, claim)
            saved.save({at: cell for at, cell in before.items() if at in cells})
            return cells

        return lend

    patches.replace(claims.Giving, "_lend", make)


def _cells_of_others_given(patches: Patches) -> None:
    """A shard gives a device all that it keeps of a step."""

    def make(right: Any) -> Any:
        def lend(giving: Any, claim: Any) -> Any:
            load = BucketState.load
            mine = saved_cell(NEVER, claim.device.encode())
            BucketState.load = lambda saved, step, key: (  # type: ignore[method-assign,assignment]
                mine if step.startswith("_owner") else load(saved, step, key)
            )
            try:
                return right(giving, claim)
            finally:
                BucketState.load = load  # type: ignore[method-assign]

        return lend

    patches.replace(claims.Giving, "_lend", make)


def _output_not_handed_on(patches: Patches) -> None:
    """What comes out of cells that are brought up is forgotten."""

    def make(right: Any) -> Any:
        return lambda *args: replace(right(*args), output=Output())

    patches.replace(claims, "brought_up", make)


def _reads_while_it_waits(patches: Patches) -> None:
    """A device that has claimed reads on meanwhile."""

    def make(right: Any) -> Any:
        async def claim(agent: Any, session: Any, claiming: Any) -> bool:
            commit = agent._commit

            async def reading(session: Any, *args: Any, **more: Any) -> bool:
                await session.intake.read(session.fragment, session.counters, 8)
                return bool(await commit(session, *args, **more))

            agent._commit = reading
            try:
                return bool(await right(agent, session, claiming))
            finally:
                agent._commit = commit

        return claim

    patches.replace(Agent, "_claim", make)


def _has_not_said(patches: Patches) -> None:
    """The commit of a crossing does not say that the cells have come."""
    patches.replace(epochs, "claims", lambda right: lambda *args: [])


def _number_used_again(patches: Patches) -> None:
    """A claim has the number behind the last one that the spool knows."""

    def make(right: Any) -> Any:
        return lambda session, effects: max(session.claim.number, session.numbers.number << 16) + 1

    patches.replace(claiming, "_new_number", make)


def _lost_spool_unheard(patches: Patches) -> None:
    """The entry of a fresh spool says nothing to who gives state."""
    patches.replace(content, "CLAIMS", lambda right: "")


def _no_claim_unheard(patches: Patches) -> None:
    """Ingest does not say of a spool that begins a new epoch that it knows of no claim."""
    patches.replace(content.Content, "_note_no_claim", lambda right: lambda *args: None)


def _set_back_unsaid(patches: Patches) -> None:
    """A new epoch does not say which claim the spool knows."""

    def make(right: Any) -> Any:
        return lambda number: replace(right(number), says=BACK)

    patches.replace(epochs, "lost", make)


def _given_of_any_claim(patches: Patches) -> None:
    """A device takes what it was given for another claim."""

    def make(right: Any) -> Any:
        return lambda taking, given: right(taking, replace(given, number=taking.number))

    patches.replace(Taking, "take", make)


def _whole_by_one_step(patches: Patches) -> None:
    """A device takes the answer for one step of its claim for that of all."""

    def make(right: Any) -> Any:
        def take_manifest(taking: Any, given: Any) -> None:
            right(taking, given)
            for shards in taking._answered.values():
                shards.add(given.shard)

        return take_manifest

    patches.replace(Taking, "_take_manifest", make)


def _given_and_forgotten(patches: Patches) -> None:
    """A shard keeps nothing aside of what it has given."""

    def make(right: Any) -> Any:
        def lend(giving: Any, claim: Any) -> Any:
            cells = right(giving, claim)
            giving._saved.save({(f"_aside:{name}", key): None for name, key in cells})
            return cells

        return lend

    patches.replace(claims.Giving, "_lend", make)


def _left_out(patches: Patches) -> None:
    """A shard takes cells for a device aside, and gives none of them."""

    def make(right: Any) -> Any:
        return lambda number, shard, shards, steps, cells, *rest: right(
            number, shard, shards, steps, {}, *rest
        )

    patches.replace(claims, "given_cells", make)


def _has_without_cells(patches: Patches) -> None:
    """A device notes that it has the cells, and does not write them."""

    def make(right: Any) -> Any:
        def commit(batches: Any = (), *args: Any, state: Any = None, **more: Any) -> Any:
            if not batches:
                state = {at: value for at, value in (state or {}).items() if at == CLAIM}
            return right(batches, *args, state=state or {}, **more)

        return commit

    patches.replace(claiming, "SpoolCommit", make)


def _given_up_in_silence(patches: Patches) -> None:
    """A device goes on without the cells, and does not say so."""

    def make(right: Any) -> Any:
        async def say(session: Any, effects: Any, kept: Any, gone: Any = ()) -> None:
            if kept.says != BACK:
                await right(session, effects, kept, gone)

        return say

    patches.replace(claiming, "_say", make)


def _asked_for_ever(patches: Patches) -> None:
    """A device claims again what is more than moves at once."""
    patches.replace(claiming, "NEVER_S", lambda right: 0.0)


def _form_not_said(patches: Patches) -> None:
    """What a device leaves does not say by which code it was kept."""
    patches.replace(
        Sealer, "moved", lambda right: lambda sealer, cells, forms, *rest: right(sealer, cells, {}, *rest)
    )


def _later_form_taken(patches: Patches) -> None:
    """A device takes what later code has kept as if its own had."""

    def make(right: Any) -> Any:
        def take(taking: Taking, given: Any) -> None:
            right(taking, given)
            taking.forms.clear()

        return take

    patches.replace(Taking, "take", make)


def _aside_not_made_anew(patches: Patches) -> None:
    """A shard that goes over to other code leaves what is aside for devices as it is."""
    patches.replace(embedded, "remakers", lambda right: lambda step, remake: {step: remake})


def _left_not_made_anew(patches: Patches) -> None:
    """What a device leaves is taken as it is, whatever its form."""
    patches.replace(MovedState, "_of_now", lambda right: lambda moved, *said: said[-1])


OF_CLAIMS = (
    Mutant("open claim forgotten at a start", _open_claim_forgotten, _run),
    Mutant("claim served again after it was taken", _claim_served_again, _run),
    Mutant("cells given back not taken in", _claim_not_given_back, _run),
    Mutant("cells kept by both tiers", _cells_kept_by_both, _run),
    Mutant("cells of other devices given", _cells_of_others_given, _run),
    Mutant("output of cells not handed on", _output_not_handed_on, _run),
    Mutant("device reads while it waits for cells", _reads_while_it_waits, _run),
    Mutant("crossing does not say that cells came", _has_not_said, _run),
    Mutant("number of a claim used again", _number_used_again, _run_set_back),
    Mutant("claims of a lost spool not given back", _lost_spool_unheard, _run_lost),
    Mutant("set back spool does not say what it knows", _set_back_unsaid, _run_set_back),
    Mutant("spool without a claim not heard in a new epoch", _no_claim_unheard, _run_set_back),
    Mutant("cells of another claim taken", _given_of_any_claim, _run),
    Mutant("claim whole by the answer for one step", _whole_by_one_step, _run),
    Mutant("cells given and forgotten", _given_and_forgotten, _run),
    Mutant("cells left out of what is given", _left_out, _run),
    Mutant("cells said to be there and not written", _has_without_cells, _run),
    Mutant("claim given up in silence", _given_up_in_silence, _run),
    Mutant("claim made again that was too large", _asked_for_ever, _run_too_large),
    Mutant("form of state not said that a device leaves", _form_not_said, _run),
    Mutant("state of later code taken by a device", _later_form_taken, _run),
    Mutant("state aside not made anew", _aside_not_made_anew, _run),
    Mutant("state that a device leaves not made anew", _left_not_made_anew, _run),
)
