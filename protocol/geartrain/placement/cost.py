"""What a cut costs: bytes over the link and the device's time, from one measurement of all streams.

Beside the planner; `geartrain.placement.measure` makes the measurement. A stream has the same records
wherever the cut falls (I1), so each is measured once, and every cut is a sum: over the streams that cross it,
what they weigh on the wire, and over the steps on the edge, the time that they take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from geartrain.errors import PlacementError
from geartrain.graph import Graph
from geartrain.placement.cuts import Cut

CAPACITY = 0.5
"""The share of one core of a device that a flow may use, unless said otherwise."""
NEAR_LEAST = 0.05
"""Cuts within this part of the fewest bytes are as good: of these the one with most on the edge is taken."""


@dataclass(frozen=True, slots=True)
class StreamCost:
    """One stream, as measured. bytes: bodies of batches of 256 rows as they travel, without envelopes;
    encode_s: CPU seconds for that; too_large: records among these that fit no batch.
    """

    records: int = 0
    bytes: int = 0
    encode_s: float = 0.0
    too_large: int = 0

    @property
    def bytes_per_record(self) -> float:
        """Bytes per record, 0 where none came."""
        return self.bytes / self.records if self.records else 0.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step, as measured. records: those that came in (a source's: those that it gave); cpu_s: CPU
    seconds of its own work; letters: its dead letters.
    """

    records: int = 0
    cpu_s: float = 0.0
    letters: StreamCost = StreamCost()

    @property
    def cpu_us_per_record(self) -> float:
        """CPU microseconds per record that came in, 0 where none came."""
        return self.cpu_s * 1e6 / self.records if self.records else 0.0


@dataclass(frozen=True, slots=True)
class CutCost:
    """What one cut costs. bytes: of the whole measurement; cpu_share: of one core of a device that holds all
    splits; records_per_s_max: how many source records such a device can take within its capacity.
    """

    cut: Cut
    bytes: int
    bytes_per_s: float
    cpu_share: float
    records_per_s_max: float


@dataclass(frozen=True)
class Costs:
    """A measurement of a whole flow on one device that holds all splits of its sources.

    seconds: how long the records took to be born; paced: the sources gave them at their own pace, so that
    this is the time that passed, else it is that of their event times; wall_s: how long was measured; ended:
    every source came to its end; streams, steps: by step id; late: the late records of all sources; capacity:
    the share of a core that the flow may use.
    """

    seconds: float
    paced: bool
    wall_s: float
    ended: bool
    streams: Mapping[str, StreamCost]
    steps: Mapping[str, StepCost]
    late: StreamCost = StreamCost()
    capacity: float = CAPACITY

    def of_cut(self, graph: Graph, cut: Cut) -> CutCost:
        """What `cut` of `graph` costs; the graph is the one that was measured."""
        crossing = crossing_streams(graph, cut)
        letters = [self.steps[step].letters for step in cut.edge if step in self.steps]
        sent = [*(self.streams[stream] for stream in crossing), *letters, self.late]
        size = sum(one.bytes for one in sent)
        cpu_s = sum(one.encode_s for one in sent) + sum(self._cpu_s(step) for step in cut.edge)
        born = sum(self.steps[source.id].records for source in graph.sources())
        per_record_s = cpu_s / born if born else 0.0
        return CutCost(
            cut,
            size,
            self.per_s(size),
            self.per_s(cpu_s),
            self.capacity / per_record_s if per_record_s else float("inf"),
        )

    def _cpu_s(self, step: str) -> float:
        return self.steps[step].cpu_s if step in self.steps else 0.0

    def per_s(self, total: float) -> float:
        """What `total` of the measurement is per second; 0 where no time passed."""
        return total / self.seconds if self.seconds else 0.0

    def compare(self, graph: Graph, cuts: Iterable[Cut]) -> list[CutCost]:
        """The cost of each cut, fewest bytes first; of equal ones that with most on the edge."""
        found = [self.of_cut(graph, cut) for cut in cuts]
        return sorted(found, key=lambda one: (one.bytes, -len(one.cut.edge), sorted(one.cut.edge)))

    def cheapest(self, graph: Graph, cuts: Iterable[Cut]) -> Cut:
        """Of the cuts within capacity whose bytes are within 5 % of the fewest, that with most on the edge.

        Where none is within capacity, the one that asks least of the device. Raises `PlacementError` for no
        cut.
        """
        found = self.compare(graph, cuts)
        if not found:
            raise PlacementError(f"flow {graph.name} has no legal cut to choose from")
        within = [one for one in found if one.cpu_share <= self.capacity]
        if not within:
            return min(found, key=lambda one: (one.cpu_share, one.bytes)).cut
        limit = within[0].bytes * (1 + NEAR_LEAST)
        near = [one for one in within if one.bytes <= limit]
        return min(near, key=lambda one: -len(one.cut.edge)).cut  # the first of these has the fewest bytes


def crossing_streams(graph: Graph, cut: Cut) -> list[str]:
    """The steps on the edge whose output is read in the cloud, in topological order."""
    return [
        step.id
        for step in graph.steps
        if step.id in cut.edge and any(below.id not in cut.edge for below in graph.consumers(step.id))
    ]


_SPANS_S = (("s", 1), ("min", 60), ("h", 3_600), ("day", 86_400), ("year", 31_557_600))


def rate(per_s: float, unit: str = "") -> str:
    """So many a second, or a minute, an hour, a day, a year: the first that makes it 1 or more.

    >>> rate(0.0002, "B")
    '17.3 B/day'
    """
    span, seconds = next((one for one in _SPANS_S if per_s * one[1] >= 1), _SPANS_S[0])
    amount = per_s * seconds
    text = f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"
    return f"{text} {unit}/{span}" if unit else f"{text}/{span}"
