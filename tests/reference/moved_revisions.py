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

NEVER = 0
"""In the place of a revision: what a device has sent and the log never got."""
EVERYWHERE = ""
"""Where a step lives that stands in the data centre for all devices."""
Place = tuple[int, str, int, bytes]
"""That of a record in canonical order."""


@dataclass
class Asked:
    """A device wants the cells of steps that would come to it by another cut; leaves: the
    steps that are to leave it with that; kept: what became of it.
    """

    edge: AbstractSet[str]
    leaves: AbstractSet[str] = frozenset()
    kept: bool = False


@dataclass
class Stands:
    """A device where the log brings a revision: the steps that it runs, the claim that is open, and how far
    the cells have been that the data centre has or gives: by step, microseconds. done: how often it has gone
    over to anything, as far as the log says.
    """

    edge: AbstractSet[str]
    asked: Asked | None = None
    ahead: Mapping[str, int] = field(default_factory=dict)
    done: int = 0

    @property
    def runs(self) -> AbstractSet[str]:
        """The steps that it runs, and those that it gets by an open claim."""
        return self.edge | self.asked.edge if self.asked is not None and self.asked.kept else self.edge


@dataclass(frozen=True)
class GoneOver:
    """A device has gone over to a revision, or to another cut of it: where each of its splits stood, how far
    its sources were, and which steps have left it.
    """

    revision: int
    positions: Mapping[tuple[str, str], int]
    marks: Mapping[str, int]
    left: AbstractSet[str] = frozenset()


@dataclass(frozen=True)
class Retired:
    """A device of which nothing comes any more: the steps that it runs, which are gone with it, and how far
    its sources were. lost: the step and key of cells that had left it by its last move, and never came.
    """

    runs: AbstractSet[str]
    marks: Mapping[str, int]
    lost: AbstractSet[tuple[str, bytes]] = frozenset()


@dataclass
class Boundaries:
    """Where everything went over.

    clocks: by revision, those of the sources where it ends in the log; stands: by revision, the devices
    there; gone_over: by device; logged: by stream and place of a record, the revision in whose part of the
    log it is (`NEVER`: in none), with the steps that it is not for; retired: devices that were.
    """

    clocks: Sequence[Mapping[str, int]]
    stands: Sequence[Mapping[str, Stands]]
    gone_over: Mapping[str, Sequence[GoneOver]]
    logged: Mapping[str, Mapping[Place, tuple[int, AbstractSet[str]]]]
    retired: Mapping[str, Retired] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A revision: its steps, and which of them go on with what they have kept."""

    graph: Graph
    kept: Collection[str]


def interpret_moved(
    parts: Sequence[Part], movable: AbstractSet[str], world: World, boundaries: Boundaries
) -> Answer:
    """The answer of a flow whose devices run some of the steps `movable`."""
    run = _Run(parts, movable, world, boundaries)
    for number in range(1, len(parts) + 1):
        run.revision(number)
    return run.answer.sort()


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
        self._made: dict[tuple[str, str], list[tuple[int, Row]]] = {}
        """By stream and device, each row with the revision that made it."""
        self._waiting: dict[tuple[str, str], list[list[Row]]] = {}
        """What a device gives to a step of a revision that the step has gone past in the data centre."""
        self._forgotten: set[tuple[str, str]] = set()

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
        for step in part.graph.steps:
            for place in self._devices if step.id in self._movable else (EVERYWHERE,):
                rows = self._of_step(step, place, number, part.graph)
                self._made.setdefault((step.id, place), []).extend((number, row) for row in rows)

    def _of_step(self, step: Step, place: str, number: int, graph: Graph) -> list[Row]:
        if not step.inputs:
            return [row for row in self._rows[place][step.id] if self._read_by(place, step.id, row) == number]
        above = [self._read(step, one.step, place, number, graph) for one in step.inputs]
        if step.out is None:
            self.answer.sinks.setdefault(step.id, []).extend(above[0])
            return []
        if not step.operator.stateful:
            return FAMILIES[type(step.operator).__name__](step, above, self.answer)
        waited = self._waiting.pop((step.id, place), [[] for _ in above])
        above = [a + b for a, b in zip(waited, above, strict=True)]
        if place and self._is_passed_over(step.id, place, number):
            self._keep_for_later(step.id, place, above)
            return []
        life = self._lives.setdefault((step.id, place), Life([[] for _ in above]))
        rows = list[Row]()
        if lost := self._lost(step.id, place, number):
            clock = _slowest(self._at.retired[place].marks, self._above(step, graph))
            rows, above = lived(step, life, above, clock, self.answer), [[] for _ in above]
            life.forget(lost)
        return rows + lived(step, life, above, self._clock(step, place, number, graph), self.answer)

    def _keep_for_later(self, step: str, place: str, above: list[list[Row]]) -> None:
        self._waiting[step, place] = above

    def _lost(self, step: str, place: str, number: int) -> set[bytes]:
        """The keys of a step that are lost with a retired device: once, where the log has heard of its last
        move.
        """
        retired, is_last = self._at.retired.get(place), number == len(self._parts)
        if retired is None or (step, place) in self._forgotten:
            return set()
        if not is_last and self._at.stands[number - 1][place].done < len(self._at.gone_over[place]):
            return set()
        self._forgotten.add((step, place))
        return {key for name, key in retired.lost if name == step}

    def _read_by(self, device: str, source: str, row: Row) -> int:
        """The revision under which a device has read a record."""
        split = row.name.removeprefix(f"{source}/")
        gone = [o.revision for o in self._at.gone_over[device] if o.positions[source, split] <= row.number]
        return max(gone, default=1)

    def _read(self, step: Step, stream: str, place: str, number: int, graph: Graph) -> list[Row]:
        """What a step gets of a stream: what the log brings for it while the revision is in force; and what
        stays where it was made, on a device or in the data centre.
        """
        if stream not in self._movable:
            return [row for made, row in self._made[stream, EVERYWHERE] if made == number]
        return [
            row
            for device in ([place] if place else self._devices)
            for made, row in self._made.get((stream, device), ())
            if self._comes(step, graph[stream], row, made, graph) == number
        ]

    def _comes(self, step: Step, stream: Step, row: Row, made: int, graph: Graph) -> int:
        """The revision by which a step reads a row; those of a key travel without it, too."""
        while True:
            comes, left_out = self._at.logged.get(stream.id, {}).get(row.order, (made, {step.id}))
            if step.id not in left_out:
                return comes
            if stream.operator.kind != "key_by":
                return made
            stream = graph[stream.inputs[0].step]

    def _is_passed_over(self, step: str, device: str, number: int) -> bool:
        """Whether a step on a device goes from a revision before this one to one behind it, or to none."""
        if number == 1 or step not in (stands := self._at.stands[number - 2][device]).runs:
            return False
        gone, following = self._at.gone_over[device], self._next(step, device, stands, number - 1)
        if following is not None and step in following.left:
            done = self._at.stands[number - 1][device].done if number < len(self._parts) else len(gone)
            return following not in gone[:done]
        return following is None or following.revision > number

    def _next(self, step: str, device: str, stands: Stands, number: int) -> GoneOver | None:
        """Where what a device runs of a step by revision `number` or one before it ends."""
        later = self._at.gone_over[device][stands.done :]
        return next((one for one in later if one.revision > number or step in one.left), None)

    def _clock(self, step: Step, place: str, number: int, graph: Graph) -> int:
        """How far a step is where its next revision begins."""
        above = self._above(step, graph)
        in_log = _slowest(self._at.clocks[number - 1], above)
        if number == len(self._parts):
            return self._last_clock(step.id, place, above)
        if not place:
            return in_log
        stands = self._at.stands[number - 1][place]
        if step.id not in stands.runs:
            return max(in_log, stands.ahead.get(step.id, START_OF_TIME))
        ends = self._next(step.id, place, stands, number)
        if ends is None:
            return self._last_clock(step.id, place, above)
        return _slowest(ends.marks, above)

    def _above(self, step: Step, graph: Graph) -> set[str]:
        """The sources above a step."""
        return {one.id for one in graph.sources()} & graph.ancestors(step.id)

    def _last_clock(self, step: str, place: str, above: Collection[str]) -> int:
        """How far a step comes at all."""
        retired = self._at.retired.get(place)
        if retired is None or step not in retired.runs:
            return END_OF_TIME
        return _slowest(retired.marks, above)


def _slowest(clocks: Mapping[str, int], sources: Collection[str]) -> int:
    """How far the slowest of some sources is."""
    return min(clocks.get(one, START_OF_TIME) for one in sources)
