"""A naive reference of flows whose devices go from cut to cut, and from revision to revision, while the data
centre goes over at places of its own: it is given all of these boundaries.

A step that may stand on devices lives once for each device, wherever it stands; any other lives once. The
next revision of a step begins where the log brings it, for a device whose step is in the data centre then;
else where this device has gone over. What a device sends is read by the revision of its place in the log. So
cuts change nothing but these places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from geartrain.graph.graph import Graph, Step
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from tests.reference.interpreter import FAMILIES, born
from tests.reference.revisions import Life, lived
from tests.reference.rows import Answer, Row, conform
from tests.reference.two_tiers import World

EVERYWHERE = ""
"""Where a step lives that stands in the data centre for all devices."""
Place = tuple[int, str, int, bytes]
"""That of a record in canonical order."""


@dataclass
class Asked:
    """A device wants the cells of steps that would come to it by another cut; leaves: whether cells of others
    are to leave it with that; kept: what became of it.
    """

    edge: AbstractSet[str]
    leaves: bool = False
    kept: bool = False


@dataclass
class Stands:
    """A device where the log brings a revision: the steps that it runs, the claim that is open, and how far
    the cells have been that the data centre has or gives: by step, microseconds.
    """

    edge: AbstractSet[str]
    asked: Asked | None = None
    ahead: Mapping[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> AbstractSet[str]:
        """The steps that it runs, those with it that it has got by an open claim."""
        return self.asked.edge if self.asked is not None and self.asked.kept else self.edge


@dataclass(frozen=True)
class GoneOver:
    """A device has gone over to a revision: where each of its splits stood, and how far its sources were."""

    revision: int
    positions: Mapping[tuple[str, str], int]
    marks: Mapping[str, int]


@dataclass
class Boundaries:
    """Where everything went over.

    clocks: by revision, those of the sources where it ends in the log; stands: by revision, the devices
    there; gone_over: by device; logged: by stream and place of a record, how often each revision's part of
    the log has it.
    """

    clocks: Sequence[Mapping[str, int]]
    stands: Sequence[Mapping[str, Stands]]
    gone_over: Mapping[str, Sequence[GoneOver]]
    logged: Mapping[str, Mapping[Place, Counter[int]]]


@dataclass(frozen=True)
class Part:
    """A revision: its steps, and which of them go on with what they have kept."""

    graph: Graph
    kept: Collection[str]


@dataclass
class _Later:
    """Rows of a stream of a device that the log brings in a later revision than that which made them."""

    made: int
    comes: int
    row: Row


def interpret_moved(
    parts: Sequence[Part], movable: AbstractSet[str], world: World, boundaries: Boundaries
) -> Answer:
    """The answer of a flow whose devices run some of the steps `movable`."""
    run = _Run(parts, movable, world, boundaries)
    for number in range(1, len(parts) + 1):
        run.revision(number)
    return run.answer


class _Run:
    """The lives of all steps, revision after revision."""

    def __init__(
        self, parts: Sequence[Part], movable: AbstractSet[str], world: World, boundaries: Boundaries
    ) -> None:
        self._parts, self._movable, self._at = parts, movable, boundaries
        self._devices, self._bounds = world.devices, world.bounds_us
        self.answer = Answer({}, Counter(), Counter())
        self._rows = {device: self._born(device) for device in self._devices}
        self._lives: dict[tuple[str, str], Life] = {}
        self._made: dict[tuple[str, str], list[Row]] = {}
        self._later: dict[tuple[str, str], list[_Later]] = {}

    def _born(self, device: str) -> dict[str, list[Row]]:
        """The records of a device's sources."""
        found: dict[str, list[Row]] = {}
        for step in self._parts[0].graph.sources():
            splits = self._devices[device].get(step.id, {})
            rows, late = born(step, splits, self._bounds[step.id], self.answer)
            found[step.id] = conform(step.id, step.out, rows, self.answer)
            self.answer.late.update((step.id, *row.order) for row in late)
        return found

    def revision(self, number: int) -> None:
        """Run one."""
        part = self._parts[number - 1]
        self._lives = {at: life for at, life in self._lives.items() if at[0] in part.kept}
        self._made = {}
        for step in part.graph.steps:
            for place in self._devices if step.id in self._movable else (EVERYWHERE,):
                rows = self._of_step(step, place, number, part.graph)
                if step.out is not None:
                    self._made[step.id, place] = self._in_time(step, place, number, rows, part.graph)

    def _of_step(self, step: Step, place: str, number: int, graph: Graph) -> list[Row]:
        if not step.inputs:
            return [row for row in self._rows[place][step.id] if self._read_by(place, step.id, row) == number]
        above = [self._read(step, one.step, place, number) for one in step.inputs]
        if step.out is None:
            self.answer.sinks.setdefault(step.id, []).extend(above[0])
            return []
        if not step.operator.stateful:
            return FAMILIES[type(step.operator).__name__](step, above, self.answer)
        life = self._lives.setdefault((step.id, place), Life([[] for _ in above]))
        return lived(step, life, above, self._clock(step, place, number, graph), self.answer)

    def _read_by(self, device: str, source: str, row: Row) -> int:
        """The revision under which a device has read a record."""
        gone = [o.revision for o in self._at.gone_over[device] if o.positions[source, row.name] <= row.number]
        return max(gone, default=1)

    def _runs(self, number: int, device: str) -> AbstractSet[str]:
        """The steps that a device runs where the revision behind `number` comes in the log."""
        return self._at.stands[number - 1][device].runs if number < len(self._parts) else frozenset()

    def _read(self, step: Step, stream: str, place: str, number: int) -> list[Row]:
        """What a step gets of a stream."""
        if stream not in self._movable:
            return self._made[stream, EVERYWHERE]
        found = list[Row]()
        for device in [place] if place else self._devices:
            on_device = step.id in self._runs(number, device)
            for one in self._later.get((stream, device), ()):
                if one.comes == number and step.id not in self._runs(one.made, device):
                    found.append(one.row)
            found += self._made[stream, device]
            if on_device:
                found += [o.row for o in self._later.get((stream, device), ()) if o.made == number]
        return found

    def _in_time(self, step: Step, place: str, number: int, rows: list[Row], graph: Graph) -> list[Row]:
        """The rows that a revision has made and the log brings before the next; notes the others."""
        if not place or step.id not in self._runs(number, place):
            return rows
        now, logged = list[Row](), self._logged(step, graph)
        for row in rows:
            comes = _taken(logged.get(row.order, Counter()), number)
            if comes > number:
                self._later.setdefault((step.id, place), []).append(_Later(number, comes, row))
            else:
                now.append(row)
        return now

    def _logged(self, step: Step, graph: Graph) -> dict[Place, Counter[int]]:
        """How often the log has the rows of a step; those of a key travel without it, too."""
        found: dict[Place, Counter[int]] = {}
        while True:
            for at, counts in self._at.logged.get(step.id, {}).items():
                found.setdefault(at, Counter(counts))
            if step.operator.kind != "key_by":
                return found
            step = graph[step.inputs[0].step]

    def _clock(self, step: Step, place: str, number: int, graph: Graph) -> int:
        """How far a step is where its next revision begins."""
        above = sorted({one.id for one in graph.sources()} & graph.ancestors(step.id))
        in_log = min(self._at.clocks[number - 1].get(source, START_OF_TIME) for source in above)
        if number == len(self._parts):
            return END_OF_TIME
        if not place:
            return in_log
        if step.id not in self._runs(number, place):
            return max(in_log, self._at.stands[number - 1][place].ahead.get(step.id, START_OF_TIME))
        following = [one for one in self._at.gone_over[place] if one.revision > number]
        if not following:
            return END_OF_TIME
        marks = min(following, key=lambda one: one.revision).marks
        return min(marks.get(source, START_OF_TIME) for source in above)


def _taken(counts: Counter[int], now: int) -> int:
    """The first revision in whose part of the log a row is; `now` where it is in none."""
    comes = min((revision for revision, count in counts.items() if count), default=now)
    counts[comes] -= 1
    return comes
