"""The cuts that a device may climb: the more work it does, the fewer bytes it sends.

Beside the planner, for devices that get a cut by what was measured of them. A rung is a cut of the whole
flow. So a ladder is the same for all devices, and a function of the graph alone. Bytes are those of
`estimate`, and work is what steps of a kind take. Guarantees: each rung asks for more work than the one
below it, and sends at least `WORTH` less. Only the last one may send as much: it is what `auto` is without
any figures. Only proportions mean anything; how fast a device works off such work, it says itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import msgspec

from geartrain.graph.graph import Graph
from geartrain.planning.cuts import Cut, TooManyCutsError, choose_cut, legal_cuts, limits
from geartrain.planning.estimate import estimated_bytes, estimated_rows
from geartrain.planning.least_bytes import Weights, least_bytes
from geartrain.planning.sharing import crossing, without_idle_keys
from geartrain.planning.splitting import with_partials

WORK = 7.0
"""Of a step for each record that comes in, where `WORK_OF` has no other: that of a task."""
WORK_OF = {
    "source": 15.0,
    "map": 0.6,
    "filter": 0.2,
    "branch": 0.2,
    "key_by": 0.6,
    "merge": 0.1,
    "late": 0.1,
    "flat_map": 5.0,
    "order": 4.0,
    "aggregate": 11.0,
    "window_aggregate": 22.0,
    "window_reduce": 22.0,
    "window_fold": 22.0,
    "partial_aggregate": 2.3,
    "interval_join": 8.0,
    "window_join": 18.0,
}
"""The same by kind of operator: near the medians of microseconds that `gear plan --measure` has of the
examples.
"""
SENT = 2.5
"""Of a record that is encoded and sent."""
WORTH = 0.05
"""By so much, at least, a rung sends fewer bytes than the one below it."""
_PRICES = tuple(4**power for power in range(-8, 16))
"""Of a unit of work, in parts of a byte, where there are too many cuts to list them."""


class Rung(msgspec.Struct, frozen=True):
    """A cut; work: of its device, for one record of each source; bytes: that it sends then, in parts of a
    byte.
    """

    cut: Cut
    work: float
    bytes: int


def ladder(graph: Graph, barred: AbstractSet[str] = frozenset()) -> tuple[Rung, ...]:
    """The rungs of a graph, least work first; barred: steps that are on the device in none of them. Raises
    `PlacementError` for an impossible pin.
    """
    graph = with_partials(graph)
    weights, works = estimated_bytes(graph), _works(graph)
    best = choose_cut(graph)
    cuts = (cut for cut in (*_cuts(graph, weights, works), best) if not cut.edge & barred)
    found = sorted(
        (_rung(graph, cut, weights, works) for cut in cuts),
        key=lambda rung: (rung.work, rung.bytes, sorted(rung.cut.edge)),
    )
    rungs = found[:1]
    for rung in found[1:]:
        if rung.bytes < rungs[-1].bytes * (1 - WORTH):
            rungs.append(rung)
    if best.edge & barred:
        return tuple(rungs)
    top = _rung(graph, best, weights, works)
    below = [rung for rung in rungs if rung.work < top.work]
    return (*below, top)


def work_of(graph: Graph, cut: Cut) -> float:
    """What a cut asks of its device, as of a rung."""
    graph = with_partials(graph)
    return _rung(graph, cut, estimated_bytes(graph), _works(graph)).work


def _works(graph: Graph) -> dict[str, float]:
    """What each step takes where it is on the device."""
    rows, found = estimated_rows(graph), dict[str, float]()
    for step in graph.steps:
        given = sum(rows.get(one.step, 0.0) for one in step.inputs) if step.inputs else 1.0
        found[step.id] = given * WORK_OF.get(step.operator.kind, WORK)
    return found


def _rung(graph: Graph, cut: Cut, weights: Weights, works: dict[str, float]) -> Rung:
    sent, rows = crossing(graph, cut.edge), estimated_rows(graph)
    work = sum(works[step] for step in cut.edge) + SENT * sum(rows[stream] for stream in sent)
    return Rung(cut, round(work, 3), sum(weights[stream] for stream in sent))


def _cuts(graph: Graph, weights: Weights, works: dict[str, float]) -> Iterable[Cut]:
    """All legal cuts; where they are too many, those that are the cheapest at some price of work."""
    try:
        return legal_cuts(graph)
    except TooManyCutsError:
        possible, kept = limits(graph)
        rows = estimated_rows(graph)
        found = {kept}
        for price in _PRICES:
            streams = {step: round(size + price * SENT * rows[step]) for step, size in weights.items()}
            steps = {step: round(price * work) for step, work in works.items()}
            found.add(without_idle_keys(graph, least_bytes(graph, possible, kept, streams, steps)))
        return [Cut(edge) for edge in found]
