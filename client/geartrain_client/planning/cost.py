"""What a cut costs: bytes over the link and the device's time, from one measurement of all streams.

Beside the planner; `geartrain_client.planning.measure` makes the measurement. A stream has the same records
wherever the cut falls (I1), so each is measured once. The bytes of a cut are the sum of what the streams that
cross it weigh on the wire. Its time is the sum of what the steps on the edge take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from geartrain.errors import PlacementError
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning.cuts import Cut, Least
from geartrain.planning.estimate import SCALE
from geartrain.planning.sharing import crossing

CAPACITY = 0.5
"""The share of one core of a device that a flow may use, unless said otherwise."""
NEAR_LEAST = 0.05
"""Cuts within this part of the fewest bytes are as good: of these the one with most on the edge is taken."""


@dataclass(frozen=True, slots=True)
class StreamCost:
    """One stream, as measured. bytes: bodies of batches of 256 rows as they travel, without envelopes;
    encode_s: CPU seconds for that; too_large: records among these that fit no batch; untyped_bytes: what its
    untyped fields come to, before they are compressed.
    """

    records: int = 0
    bytes: int = 0
    encode_s: float = 0.0
    too_large: int = 0
    untyped_bytes: int = 0

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
        up = [*(self.streams[stream] for stream in crossing if stream in cut.edge), *letters, self.late]
        down = [self.streams[stream] for stream in crossing if stream not in cut.edge]
        size = sum(one.bytes for one in (*up, *down))
        cpu_s = sum(one.encode_s for one in up) + sum(self._cpu_s(step) for step in cut.edge)
        born = sum(self.steps[source.id].records for source in graph.sources())
        per_record_s = cpu_s / born if born else 0.0
        return CutCost(
            cut,
            size,
            self.per_s(size),
            self.per_s(cpu_s),
            self.capacity / per_record_s if per_record_s else float("inf"),
        )

    def of_channel(self, channel: str, cut: Cut) -> StreamCost:
        """The cost of a channel under `cut`; dead letters are those of the steps on the edge."""
        if channel == DEAD_LETTERS:
            letters = [self.steps[step].letters for step in sorted(cut.edge) if step in self.steps]
            return StreamCost(
                sum(one.records for one in letters),
                sum(one.bytes for one in letters),
                sum(one.encode_s for one in letters),
            )
        return self.late if channel == LATE else self.streams[channel]

    def cheapest_of_many(self, graph: Graph, least: Least) -> Cut:
        """The cut with the fewest bytes where there are too many to compare, found by `least`.

        Where that is above the capacity, CPU seconds get a price in bytes, the lowest at which the cut fits.
        """

        def at(price: float) -> CutCost:
            return self.of_cut(graph, least(*self._priced(graph, price)))

        found, low, high = at(0.0), 0.0, 1.0
        if found.cpu_share <= self.capacity:
            return found.cut
        for _ in range(PRICES_TRIED):
            found = at(high)
            if found.cpu_share <= self.capacity:
                break
            low, high = high, high * 4
        for _ in range(PRICES_TRIED):
            middle = (low + high) / 2
            tried = at(middle)
            if tried.cpu_share <= self.capacity:
                found, high = tried, middle
            else:
                low = middle
        return found.cut

    def _priced(self, graph: Graph, price: float) -> tuple[dict[str, int], dict[str, int]]:
        """(What each stream costs, what each step), in parts of a byte, a CPU second at `price` bytes."""

        def cost(one: StreamCost, cpu_s: float = 0.0) -> int:
            return round(SCALE * (one.bytes + price * (one.encode_s + cpu_s)))

        streams = {step.id: cost(self.streams[step.id]) for step in graph.steps if step.out is not None}
        known = {step: self.steps[step] for step in (s.id for s in graph.steps) if step in self.steps}
        return streams, {step: cost(one.letters, one.cpu_s) for step, one in known.items()}

    def _cpu_s(self, step: str) -> float:
        return self.steps[step].cpu_s if step in self.steps else 0.0

    def per_s(self, total: float) -> float:
        """What `total` of the measurement is per second; 0 where no time passed."""
        return total / self.seconds if self.seconds else 0.0

    def whole_again(self, measured: Graph, graph: Graph) -> Costs:
        """The same for `graph`, in which some aggregates are one step that were measured as two: such a step
        has the work of both.
        """
        steps, known = dict(self.steps), {step.id for step in graph.steps}
        for part in (step for step in measured.steps if step.id in steps and step.id not in known):
            (whole,) = measured.consumers(part.id)
            first, second = steps.pop(part.id), steps[whole.id]
            letters = StreamCost(
                first.letters.records + second.letters.records, first.letters.bytes + second.letters.bytes
            )
            steps[whole.id] = StepCost(first.records, first.cpu_s + second.cpu_s, letters)
        return replace(self, steps=steps)

    def span(self, graph: Graph) -> str:
        """The span of time that all rates of this measurement are told in: at least one record is born in
        it.
        """
        return span_of(self.per_s(sum(self.steps[source.id].records for source in graph.sources())))

    def compare(self, graph: Graph, cuts: Iterable[Cut]) -> list[CutCost]:
        """The cost of each cut, fewest bytes first; of equal ones that with most work on the edge."""
        found = [self.of_cut(graph, cut) for cut in cuts]
        return sorted(found, key=lambda one: (one.bytes, *_idleness(graph, one.cut), sorted(one.cut.edge)))

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
        return min(
            near, key=lambda one: _idleness(graph, one.cut)
        ).cut  # the first of these has the fewest bytes


PRICES_TRIED = 40
"""How often the price of a device's time is halved or doubled until a cut fits its capacity."""


def _idleness(graph: Graph, cut: Cut) -> tuple[int, int]:
    """Less, the more steps a cut has on the edge; a `key_by` is no work, and better off with its readers."""
    working = sum(graph[step].operator.kind != "key_by" for step in cut.edge)
    return -working, len(cut.edge)


def crossing_streams(graph: Graph, cut: Cut) -> list[str]:
    """The steps whose output is read on the other tier, up or down, in topological order."""
    up = crossing(graph, cut.edge)
    down = (s for s in graph.steps if s.id not in cut.edge)
    found = {*up, *(s.id for s in down if any(below.id in cut.edge for below in graph.consumers(s.id)))}
    return [step.id for step in graph.steps if step.id in found]


SPANS_S = {"s": 1, "min": 60, "h": 3_600, "day": 86_400, "year": 31_557_600}
"""Spans of time that rates are told in, seconds."""


def span_of(per_s: float) -> str:
    """The span of time in which so much a second is 1 or more: `s`, `min`, `h`, `day` or `year`."""
    return next((name for name, seconds in SPANS_S.items() if per_s * seconds >= 1), "s")


def rate(per_s: float, unit: str, span: str) -> str:
    """So many `unit` in each `span`, for people.

    >>> rate(0.0002, "B", "day")
    '17.3 B/day'
    """
    amount = per_s * SPANS_S[span]
    return f"{amount:,.0f} {unit}/{span}" if amount >= 100 else f"{amount:.3g} {unit}/{span}"
