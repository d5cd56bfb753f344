"""Faults planted in devices that claim the state of a step, and in the host that gives it to them."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain.runtime.fragment import Output
from geartrain.state.claims import BACK, HAS
from geartrain.state.keyed import NEVER, saved_cell
from geartrain_cloud.spark import claims
from geartrain_cloud.spark.buckets import BucketState
from geartrain_edge.agent import epochs
from geartrain_edge.agent.agent import Agent
from geartrain_simulation.fleet.claiming_fleet import ClaimingFleet
from geartrain_simulation.mutants.planting import Mutant, Patches


def _run(seed: int) -> object:
    return ClaimingFleet(seed).run()


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
            saved, before = giving._saved, dict[Any, Any]()  # noqa: SLF001
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
            commit = agent._commit  # noqa: SLF001

            async def reading(session: Any, *args: Any, **more: Any) -> bool:
                await session.intake.read(session.fragment, session.counters, 8)
                return bool(await commit(session, *args, **more))

            agent._commit = reading  # noqa: SLF001
            try:
                return bool(await right(agent, session, claiming))
            finally:
                agent._commit = commit  # noqa: SLF001

        return claim

    patches.replace(Agent, "_claim", make)


def _has_not_said(patches: Patches) -> None:
    """The commit of a crossing does not say that the cells have come."""
    patches.replace(epochs, "claims", lambda right: lambda *args: [])


OF_CLAIMS = (
    Mutant("open claim forgotten at a start", _open_claim_forgotten, _run),
    Mutant("claim served again after it was taken", _claim_served_again, _run),
    Mutant("cells given back not taken in", _claim_not_given_back, _run),
    Mutant("cells kept by both tiers", _cells_kept_by_both, _run),
    Mutant("cells of other devices given", _cells_of_others_given, _run),
    Mutant("output of cells not handed on", _output_not_handed_on, _run),
    Mutant("device reads while it waits for cells", _reads_while_it_waits, _run),
    Mutant("crossing does not say that cells came", _has_not_said, _run),
)
