"""Cuts: the assignment of steps to tiers, which of them are legal, and which one is taken.

Rule 1: sources bound to devices are on the edge, sinks to stores in the cloud. A source in the cloud is read
by an agent, too, that of the platform's own device. So every cut has it, and none of the steps that read it.
Rule 2: a step may be on the edge only if all its inputs are. It must also be stateless, or its key local to
the device, or it is the partial of a split aggregate (`splitting`). The part that merges is always in the
cloud. A pin must agree with them. Cuts are those of the graph with its aggregates split, and settled
(`sharing`): two that differ only in where a stream is keyed are one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Protocol

import msgspec

from geartrain.errors import PlacementError
from geartrain.graph.graph import Graph, Step, Tier
from geartrain.graph.operator import StreamProperties
from geartrain.operators.sink import SinkOperator
from geartrain.planning.dealt import below_deals, edge_ancestors
from geartrain.planning.estimate import estimated_bytes
from geartrain.planning.least_bytes import Weights, least_bytes
from geartrain.planning.properties import derive_properties
from geartrain.planning.sharing import settled, without_idle_keys
from geartrain.planning.splitting import MERGE, PARTIAL, with_partials

CUTS_MAX = 4_096
"""Legal cuts that are enumerated at the most."""
ESTIMATED_STEPS_MAX = 10_000
"""Steps of a graph whose unmeasured `auto` is the cut of the fewest bytes; a larger one's is `edge`."""


class TooManyCutsError(PlacementError):
    """A flow has more legal cuts than are listed; one can still be chosen."""


class Cut(msgspec.Struct, frozen=True):
    """The steps on the edge; all others are in the cloud."""

    edge: frozenset[str]


Least = Callable[[Weights, Weights], Cut]
"""The cheapest cut, from what each stream costs where it crosses, and each step where it is on the edge."""


class Costs(Protocol):
    """A measurement of a flow that knows which cut is the cheapest; those who plan by one bring it along."""

    def cheapest(self, graph: Graph, cuts: Iterable[Cut]) -> Cut:
        """The cheapest of these cuts."""
        ...

    def cheapest_of_many(self, graph: Graph, least: Least) -> Cut:
        """The cheapest of all cuts, where they are too many to list."""
        ...


class Rule(Enum):
    """What decides where a step stands. The value is the name that `gear plan --json` shows."""

    SOURCE = "source_on_devices"
    CLOUD_SOURCE = "source_in_cloud"
    STORE = "store_in_cloud"
    ONLY_TIER = "only_tier"
    PINNED = "pinned"
    INPUT_IN_CLOUD = "input_in_cloud"
    MERGES = "merges_partials"
    KEYS_NOT_LOCAL = "keys_not_local"
    DOMAINS_DIFFER = "domains_differ"
    DEALS = "deals_to_devices"
    PARTIAL = "partial_aggregate"
    LEGAL = "legal_on_edge"
    ASKED = "cut_asked_for"
    CROSSES_ONCE = "crosses_once"
    COST = "cost"
    CAPACITY = "capacity"
    ESTIMATE = "estimated_cost"


class Reason(msgspec.Struct, frozen=True):
    """Why a step stands where it stands, or what keeps it off the edge.

    step: its id; rule: what decides; tier: where the rule puts it; other: what the rule names beside the
    step: the id of an input, or of the stream whose keys are not local, or the kind of an operator.
    """

    step: str
    rule: Rule
    tier: Tier = "cloud"
    other: str = ""


def obstacle(step: Step, edge: AbstractSet[str], properties: dict[str, StreamProperties]) -> Reason | None:
    """What keeps `step` off the edge when the steps `edge` are there, None when nothing does."""
    if step.operator.only_tier == "cloud":
        return Reason(step.id, Rule.ONLY_TIER, other=step.operator.kind)
    if not step.inputs:
        return None
    if isinstance(step.operator, SinkOperator) and step.operator.only_tier != "edge":
        return Reason(step.id, Rule.STORE)
    above = [i.step for i in step.inputs if i.step not in edge and not properties[i.step].from_cloud]
    if step.operator.kind != "late":  # which stands where its records are born
        above += [i.step for i in step.inputs if properties[i.step].born_in_cloud]
    if above:
        return Reason(step.id, Rule.INPUT_IN_CLOUD, other=above[0])
    if step.operator.kind == MERGE:
        return Reason(step.id, Rule.MERGES, other=step.inputs[0].step)
    if step.operator.kind == PARTIAL:
        return _kept_away(step)
    return _not_local(step, properties) if step.operator.stateful else _kept_away(step)


def _not_local(step: Step, properties: dict[str, StreamProperties]) -> Reason | None:
    """Why a step with state cannot find all records of a key on one device."""
    for source in step.inputs:
        if not properties[source.step].key_local:
            return Reason(step.id, Rule.KEYS_NOT_LOCAL, other=source.step)
    if len({properties[i.step].domain for i in step.inputs}) > 1:
        return Reason(step.id, Rule.DOMAINS_DIFFER)
    return _kept_away(step)


def _kept_away(step: Step) -> Reason | None:
    return Reason(step.id, Rule.PINNED) if step.tier == "cloud" else None


def legal_cuts(graph: Graph) -> list[Cut]:
    """Every legal cut, fewest edge steps first; raises `PlacementError` for an impossible pin or too many
    cuts.
    """
    graph = with_partials(graph)
    properties = derive_properties(graph)
    found: list[frozenset[str]] = [frozenset()]
    for step in graph.steps:
        grown: list[frozenset[str]] = []
        for edge in found:
            free = obstacle(step, edge, properties) is None
            if free:
                grown.append(edge | {step.id})
            if step.inputs and step.tier != "edge":
                grown.append(edge)
        found = grown
        if len(found) > CUTS_MAX:
            raise TooManyCutsError(
                f"flow {graph.name} has more than {CUTS_MAX:,} legal cuts, too many to list: pin some "
                'steps with .at("edge") or .at("cloud")'
            )
    if not found:
        raise _impossible_pin(graph, properties)
    edges = {settled(graph, edge) for edge in found}
    return [Cut(edge) for edge in sorted(edges, key=lambda e: (len(e), sorted(e)))]


def choose_cut(graph: Graph, wanted: str | Sequence[str] = "auto", costs: Costs | None = None) -> Cut:
    """The cut for `auto` (the fewest bytes, as estimated, or the cheapest by `costs` where it was measured).
    `edge` puts there what is legal, `cloud` only the sources; names put there these steps and all above them.

    Raises `PlacementError` naming the step, the rule and the fix.
    """
    graph = with_partials(graph)
    if wanted == "auto":
        return _auto(graph, costs)
    possible, kept = limits(graph)
    if wanted == "edge":
        return Cut(settled(graph, frozenset(possible)))
    named = [] if wanted == "cloud" else wanted.split(",") if isinstance(wanted, str) else wanted
    asked = frozenset(name.strip() for name in named)
    edge = kept | edge_ancestors(graph, asked)
    beyond = [s for s in graph.steps if s.id in edge - possible]
    if beyond:
        step = next((s for s in beyond if s.id in asked), beyond[0])
        raise _refusal(graph, step, possible, derive_properties(graph))
    return Cut(settled(graph, edge))


def limits(graph: Graph) -> tuple[frozenset[str], frozenset[str]]:
    """(The steps that may be on the edge all at once, those that are there under every legal cut.)

    Raises `PlacementError` for an impossible pin.
    """
    properties = derive_properties(graph)
    possible: set[str] = set()
    for step in graph.steps:
        if obstacle(step, possible, properties) is None:
            possible.add(step.id)
        elif step.tier == "edge" or not step.inputs:
            raise _refusal(graph, step, possible, properties)
    pinned = frozenset(s.id for s in graph.steps if s.tier == "edge" or not s.inputs)
    return frozenset(possible), edge_ancestors(graph, pinned | below_deals(graph))


def _auto(graph: Graph, costs: Costs | None) -> Cut:
    possible, kept = limits(graph)

    def least(streams: Weights, steps: Weights) -> Cut:
        return Cut(without_idle_keys(graph, least_bytes(graph, possible, kept, streams, steps)))

    if costs is None:
        if len(graph.steps) > ESTIMATED_STEPS_MAX:
            return Cut(settled(graph, possible))
        return least(estimated_bytes(graph), {})
    try:
        cuts = legal_cuts(graph)
    except TooManyCutsError:
        return costs.cheapest_of_many(graph, least)
    return costs.cheapest(graph, cuts)


def _refusal(
    graph: Graph, step: Step, edge: AbstractSet[str], properties: dict[str, StreamProperties]
) -> PlacementError:
    from geartrain.planning.refusals import refusal  # only where something is wrong

    return refusal(graph, step, lambda one: obstacle(one, edge, properties), properties)


def _impossible_pin(graph: Graph, properties: dict[str, StreamProperties]) -> PlacementError:
    edge: set[str] = set()
    for step in graph.steps:
        reason = obstacle(step, edge, properties)
        if reason is None:
            edge.add(step.id)
        elif step.tier == "edge" or not step.inputs:
            return _refusal(graph, step, edge, properties)
    return PlacementError(
        f"flow {graph.name} has no legal cut: remove its pins one by one to find the one that is in the way"
    )
