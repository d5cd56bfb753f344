"""Faults planted in what an update drops while its step comes to devices, or leaves them."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain.graph.graph import STATE
from geartrain.state.claims import ASKS, HAS, Taking
from geartrain_cloud.spark import buckets, claims
from geartrain_cloud.spark.moved_state import MovedState
from geartrain_edge.agent import session
from geartrain_edge.agent.crossing import CLAIM, LastClaim
from geartrain_edge.spool.sealing import Sealer
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.dropping_fleet import DroppingFleet


def _run(seed: int) -> object:
    return DroppingFleet(seed).run()


def _run_asks(seed: int) -> object:
    return DroppingFleet(seed, behind=ASKS).run()


def _run_has(seed: int) -> object:
    return DroppingFleet(seed, behind=HAS).run()


def _run_leaves(seed: int) -> object:
    return DroppingFleet(seed, behind=STATE).run()


def _began_ignored(patches: Patches) -> None:
    """A device does not heed with which revision a step has begun empty where its cells come from."""

    def make(right: Any) -> Any:
        def take(taking: Taking, given: Any) -> None:
            right(taking, given)
            taking.began.clear()

        return take

    patches.replace(Taking, "take", make)


def _all_forgotten(patches: Patches) -> None:
    """A device that crosses forgets all that was dropped, what has come since as well."""

    def make(right: Any) -> Any:
        def forgotten(state: Any, *args: Any, **more: Any) -> Any:
            claim = replace(LastClaim.of(state.get(CLAIM)), began={})
            return right({**state, CLAIM: claim.stored()}, *args, **more)

        return forgotten

    patches.replace(session, "forgotten", make)


def _kept_though_dropped(patches: Patches) -> None:
    """A device that goes over keeps what the update drops."""
    patches.replace(session, "forgotten", lambda right: lambda *args, **more: frozenset())


def _revision_not_said(patches: Patches) -> None:
    """Cells that leave a device do not say which revision has kept them."""
    patches.replace(
        Sealer, "moved", lambda right: lambda sealer, cells, forms, _, at: right(sealer, cells, forms, 0, at)
    )


def _dropped_taken_in(patches: Patches) -> None:
    """A shard takes in what was kept before its step has begun empty."""
    patches.replace(
        MovedState,
        "_of_now",
        lambda right: lambda moved, step, form, _, cell: right(moved, step, form, 0, cell),
    )


def _aside_kept(patches: Patches) -> None:
    """A shard that forgets a step keeps what is aside of it for devices."""
    patches.replace(buckets, "_owner", lambda right: lambda name: name)


def _said_with_cells_alone(patches: Patches) -> None:
    """A shard that gives no cells does not say with which revision their step has begun empty."""

    def make(right: Any) -> Any:
        return lambda number, shard, shards, steps, cells, why, forms, began: right(
            number, shard, shards, steps, cells, why, forms, began if cells else {}
        )

    patches.replace(claims, "given_cells", make)


OF_DROPPING = (
    Mutant("device takes what began empty with a later revision", _began_ignored, _run_leaves),
    Mutant("device forgets what came since its step began empty", _all_forgotten, _run),
    Mutant("device keeps what an update drops", _kept_though_dropped, _run_has),
    Mutant("revision of state not said that a device leaves", _revision_not_said, _run_leaves),
    Mutant("state of before its step began empty taken in", _dropped_taken_in, _run_leaves),
    Mutant("state aside kept of a step that begins empty", _aside_kept, _run_asks),
    Mutant("beginning of a step not said without cells", _said_with_cells_alone, _run),
)
