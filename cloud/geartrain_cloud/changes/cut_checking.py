"""Whether devices may have another cut: which steps move by it, and what keeps them where they are.

Called by the short-lived process that loads a flow (`checking`), between a change of cuts and the control
store. Guarantees: a cut has one text, whatever words a person has given for it. What a step keeps goes with
it; a step whose state cannot go stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from geartrain.errors import GeartrainError, PlacementError
from geartrain.graph.graph import Graph, Step
from geartrain.planning import Plan
from geartrain.planning.cuts import Cut, choose_cut
from geartrain.planning.ladder import ladder, work_of
from geartrain.planning.mixed import claimable
from geartrain.planning.splitting import PARTIAL, with_partials
from geartrain_cloud.changes.fitting import Ladder, Rung

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
            _moves_state(step, to_edge=step.id in after.edge) and not wish.is_new,
        )
        for step in whole.steps
        if step.id in before.edge ^ after.edge
    )
    return CutFound("" if after == ours else cut_text(whole, after), moves)


def ladder_of(graph: Graph, base: str, cuts: Sequence[str]) -> Ladder:
    """The cuts that devices may climb in a flow whose app has the cut `base`; cuts: of devices, beside it.
    An aggregate that none of these splits stays whole, for an app that runs cannot change that.
    """
    ours = choose_cut(graph, cut_words(base))
    in_use = {"": ours} | {cut: choose_cut(graph, cut_words(cut)) for cut in cuts}
    split = frozenset[str]().union(*(cut.edge for cut in in_use.values()))
    partials = {step.id for step in with_partials(graph).steps if step.operator.kind == PARTIAL}
    rungs = tuple(
        Rung("" if one.cut == ours else cut_text(graph, one.cut), one.work, one.bytes)
        for one in ladder(graph, partials - split)
    )
    return Ladder(rungs, {text: work_of(graph, cut) for text, cut in in_use.items()})


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


def _moves_state(step: Step, *, to_edge: bool) -> bool:
    """Whether what a step keeps goes with it. A partial aggregate begins anew on a device, for the data
    centre merges both.
    """
    return step.operator.stateful and not (to_edge and step.operator.kind == PARTIAL)


def kept_back(plan: Plan, found: Sequence[CutFound]) -> tuple[CutFound, ...]:
    """What wishes come to, where the data centre has `plan`: those are refused by which a step would come to
    devices that cannot claim what is kept of it there. This is the one place where such a move is refused.
    """
    known = claimable(plan.graph)

    def checked(one: CutFound) -> CutFound:
        held = [move.step for move in one.moves if move.to == EDGE and move.keeps and move.step not in known]
        if one.refused or not held:
            return one
        said = ", ".join(held)
        why = (
            f"what the data centre keeps of {said} cannot come to devices: it merges what several of them "
            "send, or is no keyed state: move other steps alone, or kill the app and submit it with this cut"
        )
        return replace(one, refused=why)

    return tuple(map(checked, found))
