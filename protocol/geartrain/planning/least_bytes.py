"""The cut that sends the fewest bytes, of all legal ones, without listing them: a minimum cut of a network.

Under `cuts`, which says what is legal. Which steps are on the edge is a closure problem: a step there needs
its inputs there. Its cheapest answer is a minimum cut between the sources and what must be in the cloud
(J.-C. Picard, Maximal closure of a graph, Management Science 22, 1976), found by E. A. Dinic's algorithm
(Soviet Mathematics Doklady 11, 1970). Guarantees: exact for costs that add up, in whole numbers, so that all
programs find the same cut. Of equally cheap cuts it is the one with the most steps on the edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from geartrain.graph.graph import Graph
from geartrain.planning.sharing import rows_of

Weights = Mapping[str, int]


def least_bytes(
    graph: Graph,
    possible: AbstractSet[str],
    kept: AbstractSet[str],
    streams: Weights,
    steps: Weights | None = None,
) -> frozenset[str]:
    """The steps on the edge of the cheapest cut.

    possible: the steps that may be there; kept: those of them that must be; streams: what each step's output
    costs if it crosses, once for all its readers and for every `key_by` of it; steps: what each step costs if
    it is on the edge. All costs are 0 or more.
    """
    network = _Network()
    start, end = network.node(), network.node()
    nodes = {step.id: network.node() for step in graph.steps}
    never = 1 + sum(streams.values()) + sum((steps or {}).values())
    for step in graph.steps:
        here = nodes[step.id]
        if step.id not in possible:
            network.arc(here, end, never)
            continue
        if step.id in kept:
            network.arc(start, here, never)
        if steps is not None and steps.get(step.id):
            network.arc(here, end, steps[step.id])
        for above in step.inputs:
            if graph[above.step].operator.kind != "deal":
                network.arc(here, nodes[above.step], never)
    for rows, readers in _readers(graph).items():
        if rows in possible and streams[rows]:
            sent = network.node()
            network.arc(nodes[rows], sent, streams[rows])
            for reader in readers:
                network.arc(sent, nodes[reader], never)
    network.fill(start, end)
    cloud = network.reaching(end)
    return frozenset(step.id for step in graph.steps if nodes[step.id] not in cloud)


def _readers(graph: Graph) -> dict[str, list[str]]:
    """Who reads the rows of each stream, as it is or by a key."""
    found: dict[str, list[str]] = {}
    for step in graph.steps:
        if step.operator.kind != "key_by":
            for above in step.inputs:
                found.setdefault(rows_of(graph, above.step), []).append(step.id)
    return found


class _Network:
    """Nodes and arcs by number; an arc and its reverse differ in the last bit."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = []
        self._to: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        """A new node."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, above: int, below: int, room: int) -> None:
        """An arc on which `room` can flow."""
        for end, other, free in ((above, below, room), (below, above, 0)):
            self._arcs[end].append(len(self._to))
            self._to.append(other)
            self._room.append(free)

    def fill(self, start: int, end: int) -> None:
        """Let as much flow as there is room for."""
        while (depths := self._depths(start, end)) is not None:
            tried = [0] * len(self._arcs)
            while self._push(start, end, depths, tried):
                pass

    def _depths(self, start: int, end: int) -> list[int] | None:
        """How far each node is from the start, None where nothing more can flow."""
        depths = [-1] * len(self._arcs)
        depths[start] = 0
        waiting = [start]
        for node in waiting:
            for arc in self._arcs[node]:
                below = self._to[arc]
                if self._room[arc] and depths[below] < 0:
                    depths[below] = depths[node] + 1
                    waiting.append(below)
        return None if depths[end] < 0 else depths

    def _push(self, start: int, end: int, depths: list[int], tried: list[int]) -> bool:
        """Fill one more shortest path; False where there is none."""
        path: list[int] = []
        node = start
        while node != end:
            arcs = self._arcs[node]
            while tried[node] < len(arcs) and not self._leads_on(arcs[tried[node]], depths):
                tried[node] += 1
            if tried[node] < len(arcs):
                path.append(arcs[tried[node]])
                node = self._to[path[-1]]
            elif path:
                node = self._to[path.pop() ^ 1]
                tried[node] += 1
            else:
                return False
        least = min(self._room[arc] for arc in path)
        for arc in path:
            self._room[arc] -= least
            self._room[arc ^ 1] += least
        return True

    def _leads_on(self, arc: int, depths: list[int]) -> bool:
        return self._room[arc] > 0 and depths[self._to[arc]] == depths[self._to[arc ^ 1]] + 1

    def reaching(self, end: int) -> set[int]:
        """The nodes from which more could flow to the end."""
        found = {end}
        waiting = [end]
        while waiting:
            for arc in self._arcs[waiting.pop()]:
                above = self._to[arc]
                if self._room[arc ^ 1] and above not in found:
                    found.add(above)
                    waiting.append(above)
        return found
