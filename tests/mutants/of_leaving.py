"""Faults planted in devices that leave a step to the cloud with what it keeps."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from geartrain.graph.graph import STATE
from geartrain_edge.agent import epochs
from geartrain_edge.spool import shedding
from geartrain_edge.spool.sealing import Sealer
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.leaving_fleet import LeavingFleet


def _run(seed: int) -> object:
    return LeavingFleet(seed).run()


def _is_state(batch: Any) -> bool:
    return any(channel == STATE for _, channel, _ in batch.rows)


def _state_not_sent(patches: Patches) -> None:
    """A step leaves the device, and what it keeps is forgotten."""
    patches.replace(Sealer, "moved", lambda right: lambda sealer, *_: [])


def _state_shed(patches: Patches) -> None:
    """A full spool gives up state on its way like any batch of rows."""

    def make(right: Any) -> Any:
        return lambda batch: right(batch) and not _is_state(batch)

    patches.replace(shedding, "_is_kept", make)


def _state_behind_records(patches: Patches) -> None:
    """State is sent with the first commit of records under the new cut, behind them."""
    moved = Sealer.moved
    waiting: dict[int, Any] = {}

    def make_moved(right: Any) -> Any:
        def stash(sealer: Sealer, cells: Any, forms: Any, revision: int, progress: Any) -> Any:
            waiting[id(sealer)] = (dict(cells), forms, revision)
            return []

        return stash

    def make_number(right: Any) -> Any:
        def number(sealer: Sealer, parts: Any, before: Any, after: Any, dropped: Any = None) -> Any:
            batches = right(sealer, parts, before, after, dropped)
            if parts and id(sealer) in waiting:
                cells, forms, revision = waiting.pop(id(sealer))
                batches += moved(sealer, cells, forms, revision, after)
            return batches

        return number

    patches.replace(Sealer, "moved", make_moved)
    patches.replace(Sealer, "number", make_number)


def _state_sent_at_each_start(patches: Patches) -> None:
    """The commit of a crossing does not say that the device has gone over, so that it does so again."""

    def make(right: Any) -> Any:
        def commit(batches: Any = (), *args: Any, state: Any = None, **more: Any) -> Any:
            if any(_is_state(batch) for batch in batches):
                state = {at: value for at, value in (state or {}).items() if at[1] == b"crossing"}
            return right(batches, *args, state=state or {}, **more)

        return commit

    patches.replace(epochs, "SpoolCommit", make)


OF_LEAVING = (
    Mutant("moved state not sent", _state_not_sent, _run),
    Mutant("moved state shed", _state_shed, _run),
    Mutant("moved state behind records", _state_behind_records, _run),
    Mutant("moved state sent at each start", _state_sent_at_each_start, _run),
)
