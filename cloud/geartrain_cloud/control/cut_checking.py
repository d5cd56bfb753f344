"""Whether devices may have another cut: which steps move by it, and what keeps them where they are.

Called by the short-lived process that loads a flow (`checking`), between a change of cuts and the control
store. Guarantees: a cut has one text, whatever words a person has given for it. A step moves only where
the data centre keeps nothing of it; what the device keeps goes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from geartrain.errors import GeartrainError, PlacementError
from geartrain.graph.graph import Graph
from geartrain.planning.cuts import Cut, choose_cut
from geartrain.planning.splitting import PARTIAL, with_partials

AUTO, EDGE, CLOUD = "auto", "edge", "cloud"


class CutWish(msgspec.Struct, frozen=True):
    """What devices are to have: the cut `spec`, or with `step` on the tier `to`. before: the cut that they
    have, "" for the app's; is_new: they run nothing yet, so that nothing moves.
    """

    before: str = ""
    spec: str = ""
    step: str = ""
    to: Literal["", "edge", "cloud"] = ""
    is_new: bool = False


class StepMove(msgspec.Struct, frozen=True):
    """A step that goes to another tier; keeps: what it keeps goes with it."""

    step: str
    to: Literal["edge", "cloud"]
    keeps: bool = False


class CutFound(msgspec.Struct, frozen=True):
    """What a wish comes to. cut: as a text, "" for the app's; moves: in the order of the flow; refused: why
    it cannot be, "" where it can.
    """

    cut: str = ""
    moves: tuple[StepMove, ...] = ()
    refused: str = ""


def cut_words(text: str) -> str | tuple[str, ...]:
    """A cut as the planner takes it."""
    return text if text in (AUTO, EDGE, CLOUD) else tuple(part.strip() for part in text.split(","))


def cut_text(graph: Graph, cut: Cut) -> str:
    """A cut by the steps on the devices that no other one there reads; `cloud` where these are sources."""
    graph = with_partials(graph)
    read = {one.step for step in graph.steps if step.id in cut.edge for one in step.inputs}
    last = ",".join(step.id for step in graph.steps if step.id in cut.edge - read and step.inputs)
    text = last or CLOUD
    if choose_cut(graph, cut_words(text)).edge == cut.edge:
        return text
    return ",".join(step.id for step in graph.steps if step.id in cut.edge)


def find_cut(graph: Graph, base: str, wish: CutWish) -> CutFound:
    """What `wish` comes to in a flow whose app has the cut `base`."""
    whole = with_partials(graph)
    ours = choose_cut(whole, cut_words(base))
    before = choose_cut(whole, cut_words(wish.before)) if wish.before else ours
    try:
        after = _wished(whole, before, wish)
    except GeartrainError as error:
        return CutFound(refused=" ".join(str(error).split()))
    moves = tuple(
        StepMove(
            step.id,
            "edge" if step.id in after.edge else "cloud",
            step.operator.stateful and step.id in before.edge and not wish.is_new,
        )
        for step in whole.steps
        if step.id in before.edge ^ after.edge
    )
    refused = "" if wish.is_new else _kept_state(whole, moves)
    return CutFound("" if after == ours else cut_text(whole, after), moves, refused)


def _wished(graph: Graph, before: Cut, wish: CutWish) -> Cut:
    """The cut that is asked for; raises `PlacementError`."""
    if not wish.step:
        return choose_cut(graph, cut_words(wish.spec))
    if wish.step not in {step.id for step in graph.steps}:
        known = ", ".join(step.id for step in graph.steps)
        raise PlacementError(f"flow {graph.name} has no step {wish.step!r}: it has {known}")
    if wish.to == EDGE:
        return choose_cut(graph, (*sorted(before.edge), wish.step))
    gone = {wish.step}
    for step in graph.steps:  # in topological order
        if any(one.step in gone for one in step.inputs):
            gone.add(step.id)
    after = choose_cut(graph, tuple(sorted(before.edge - gone)) or CLOUD)
    if wish.step in after.edge:
        raise PlacementError(
            f"flow {graph.name}: step {wish.step!r} stays on the devices whatever the cut: it is a source, "
            "is pinned there, or is needed there by a step that is"
        )
    return after


def _kept_state(graph: Graph, moves: Sequence[StepMove]) -> str:
    """Why steps cannot move while the app runs: what the data centre keeps of them does not go to devices; ""
    for no reason. A partial aggregate begins anew on a device, for the data centre merges both.

    This is the one place where such a move is refused.
    """
    held = [
        one.step
        for one in moves
        if one.to == EDGE and graph[one.step].operator.stateful and graph[one.step].operator.kind != PARTIAL
    ]
    if not held:
        return ""
    said = "; ".join(
        f"step {step} ({graph[step].operator.kind}) keeps what it has of its records in the data centre"
        for step in held
    )
    return f"{said}: move steps without state alone, or kill the app and submit it with this cut"
