"""Which steps of the data centre read the log of before, where steps that are new in a revision begin there.

Asked by control before such a change, and by the Spark host when it prepares it; pure. Guarantees: what is
read again changes nothing of the steps that the flow had. What the new steps get of the log is what they
would have got, had they been there. Where that cannot be, it is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from geartrain.errors import PlacementError
from geartrain.graph.graph import CLAIMS
from geartrain.planning.plan import Plan

NOW, EARLIEST = "now", "earliest"


class Past(msgspec.Struct, frozen=True):
    """new: the steps that begin with records of before; above: those that make what they read, which run
    again for them; keeps: whether these keep state, so that they run from the log's beginning on; sources:
    those above.
    """

    new: frozenset[str]
    above: frozenset[str]
    keeps: bool
    sources: frozenset[str]


def past_of(plan: Plan, attached: Collection[str], on_devices: Collection[str] = ()) -> Past:
    """What is read again for the steps that are attached; raises `PlacementError`. on_devices: the steps that
    some device runs.
    """
    graph, cloud = plan.graph, frozenset(plan.cloud)
    new = frozenset(attached) & cloud
    if there := sorted(plan.cut.edge.union(on_devices).intersection(attached)):
        raise PlacementError(
            f"step {there[0]!r} runs on devices, which have not kept the records of before: leave it in "
            "the data centre, or begin from now"
        )
    if not new:
        raise PlacementError("no step is attached in the data centre: begin from now")
    readers = [reader.id for step in sorted(new) for reader in graph.consumers(step)]
    if others := [one for one in readers if one in cloud and one not in new]:
        raise PlacementError(
            f"step {others[0]!r} is not new and would read new steps: give it another id, or begin from now"
        )
    if plan.down or any(channel.id == CLAIMS for channel in plan.channels):
        raise PlacementError(
            "something goes down to devices in this flow, or state may, which nothing of before is to reach "
            "again: begin from now"
        )
    above = frozenset().union(*(graph.ancestors(step) for step in new)) & cloud - new
    if changing := [step for step in sorted(above) if not graph[step].operator.replayable]:
        raise PlacementError(
            f"step {changing[0]!r} stands above the new ones, and what it makes of the log depends on more "
            "than its records: begin from now"
        )
    keeps = any(graph[step].operator.stateful for step in above)
    sources = graph.sources_above()
    return Past(new, above, keeps, frozenset().union(*(sources[step] for step in new)))
