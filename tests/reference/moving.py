"""A model of the two tiers in which devices go over to other cuts while they run, with their state.

Each device runs the steps of its own cut and sends rows with the readers that they are for. The cloud runs
every step, one fragment each, over what all devices send, in micro-batches of a log. At random records a
device crosses: cells leave in the crossing, or it holds the inputs of the steps that come to it until their
cells are there; now and then it goes back before. Every fragment is saved and opened again at random.
`Fault` plants one mistake each, which the comparison with the reference has to find.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from geartrain.errors import SchemaError
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.planning import Cut
from geartrain.planning.properties import derive_properties
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.moving import Moves, brought_up, given, loaded, of_steps
from geartrain.runtime.splits import SplitTracker
from geartrain.schema import RowCodec
from geartrain.state.keyed import NEVER, DictBackend, saved_cell
from geartrain.state.moving import (
    Arriving,
    Cells,
    Manifest,
    StateCell,
    batches,
    manifest,
    records,
    taken_in,
)
from tests.reference.rows import Answer
from tests.reference.two_tiers import Parts, Splits, World, answer_of, read_on

CROSSINGS_MAX = 6
"""Of one device in one run."""
TURNS_MAX = 500
"""Of a run, beside 100 for each record."""
PIECE_BYTES = 40
"""So small that cells travel in pieces."""


class Fault(Enum):
    """A mistake that is planted in the model."""

    MARK_GOES_ON = auto()
    """The clock below a held step goes on with its sources."""
    NOT_HELD = auto()
    """A device feeds a step before its cells are there, and loads them over it."""
    PARTIALS_LOST = auto()
    """Open partial aggregates are not put out where they end."""
    TIMERS_LOST = auto()
    """Cells arrive without their due times."""
    LOADED_TWICE = auto()
    """Cells of a crossing are loaded again with the next one."""
    CELLS_STAY = auto()
    """The cloud keeps what it gave to a device."""
    NOT_BROUGHT_UP = auto()
    """Cells leave the cloud as of its clock, behind the device's watermark."""
    READ_TWICE = auto()
    """Rows are fed in the cloud to readers that the device runs itself."""
    HELD_LOST = auto()
    """Rows held for a step that goes back are not sent."""
    BEFORE_ROWS = auto()
    """The clock of a held step itself goes on, so that one which goes back finds it ahead."""


@dataclass
class Rows:
    """Rows of a stream for some of its readers."""

    stream: str
    readers: frozenset[str]
    batch: Batch


@dataclass
class Marks:
    """How far a device's sources are."""

    marks: dict[str, int]


@dataclass
class Crossing:
    """A device goes from some steps to others: with its watermarks, its cells, and what it now holds."""

    number: int
    before: frozenset[str]
    after: frozenset[str]
    marks: dict[str, int]
    held: frozenset[str]
    expected: Manifest
    cells: list[StateCell]


@dataclass
class Released:
    """A device holds nothing more for its crossing `number`; the cells that it loaded, None for none."""

    number: int
    digest: bytes | None


Entry = Rows | Marks | Crossing | Released


@dataclass
class Outbox:
    """What the cloud gives to a device for a crossing."""

    number: int
    expected: Manifest
    cells: list[StateCell]


@dataclass
class Seen:
    """What happened in a run."""

    counts: Counter[str] = field(default_factory=Counter)


def over_the_wire(cells: Mapping[tuple[str, bytes], bytes]) -> list[StateCell]:
    """Cells as they come out of the codec of their records."""
    codec = RowCodec(StateCell)
    found: list[StateCell] = []
    for batch in batches(records(cells, PIECE_BYTES), 7, 300):
        found += codec.from_columns(codec.to_columns(batch))
    return found


def put_together(expected: Manifest, cells: Iterable[StateCell]) -> Cells:
    """The cells that have arrived, of which each record came twice."""
    arriving = Arriving(expected)
    for record in cells:
        arriving.take(record)
        arriving.take(record)
    return arriving.cells()


class Node:
    """Some steps as a fragment that is saved, and opened again with other cells or other steps."""

    def __init__(self, graph: Graph, steps: AbstractSet[str], rng: random.Random, restarts: float) -> None:
        self._graph, self._rng, self._restarts = graph, rng, restarts
        self.steps, self.saved = frozenset(steps), Cells()
        self.marks: dict[str, int] = {}
        self.fragment = Fragment(graph, self.steps)

    def save(self) -> Cells:
        """All cells, with what changed."""
        for at, cell in self.fragment.changes().items():
            if cell is None:
                self.saved.pop(at, None)
            else:
                self.saved[at] = cell
        return self.saved

    def open(self, steps: AbstractSet[str], cells: Cells) -> Parts:
        """Go on with these steps and cells, at the watermarks as they are; returns what left."""
        self.steps, self.saved = frozenset(steps), dict(cells)
        self.fragment = Fragment(self._graph, self.steps, DictBackend(dict(cells)))
        for stream, mark in self.marks.items():
            self.fragment.advance(stream, mark)
        return parts_of(self.fragment)

    def feed(self, stream: str, batch: Batch) -> Parts:
        """Feed it a batch; returns what left."""
        left = self.open(self.steps, self.save()) if self._rng.random() < self._restarts else []
        self.fragment.feed(stream, batch)
        return left + parts_of(self.fragment)

    def advance(self, stream: str, mark: int) -> Parts:
        """Tell it of a watermark; returns what left."""
        self.marks[stream] = max(mark, self.marks.get(stream, START_OF_TIME))
        self.fragment.advance(stream, mark)
        return parts_of(self.fragment)


def parts_of(fragment: Fragment) -> Parts:
    """What left a fragment."""
    return [(stream, batch) for stream, found in fragment.take().batches.items() for batch in found]


class Device:
    """A device that reads its splits, sends, and crosses."""

    def __init__(
        self,
        graph: Graph,
        cuts: Sequence[Cut],
        splits: Splits,
        bounds_us: Mapping[str, int],
        rng: random.Random,
        faults: AbstractSet[Fault],
        seen: Seen,
    ) -> None:
        self._graph, self._cuts, self._rng, self._faults = graph, cuts, rng, faults
        self._seen = seen
        self.edge = rng.choice(cuts).edge
        self.held: frozenset[str] = frozenset()
        self._rows: list[tuple[str, Batch]] = []
        self._node = Node(graph, self.edge, rng, rng.choice([0.0, 0.1, 0.5]))
        self._trackers = [
            (SplitTracker(step, name, bounds_us[step], None, since_1970=_since_1970(graph, step)), items)
            for step, by_name in splits.items()
            for name, items in by_name.items()
        ]
        self._sizes = rng.choice([(1,), (1, 2), (2, 7), (4, 256)])
        self._prompt, self._fickle = rng.choice([0.1, 0.5, 1.0]), rng.choice([0.05, 0.3])
        self.number, self._left = 0, rng.randint(0, CROSSINGS_MAX)
        self.sent: deque[Entry] = deque()
        self.results: Parts = []
        self._told: dict[str, int] = {}
        self._tell()

    @property
    def ended(self) -> bool:
        """Whether all is read, and nothing is awaited."""
        return not self.held and all(tracker.progress.ended for tracker, _ in self._trackers)

    def act(self, outbox: Outbox | None) -> None:
        """Do one of the things that a device does."""
        if (
            self.held
            and outbox is not None
            and outbox.number == self.number
            and self._rng.random() < self._prompt
        ):
            self._load(outbox)
            return
        open_ones = [one for one in self._trackers if not one[0].progress.ended]
        if self._left and self._rng.random() < (self._fickle if self.held else 0.25):
            self._left -= 1
            self._cross()
        elif open_ones:
            self._read(*self._rng.choice(open_ones))
        if self._rng.random() < 0.5:
            self._tell()

    def _read(self, tracker: SplitTracker, items: Sequence[Any]) -> None:
        fragment = self._node.fragment
        batch = read_on(tracker, items, self._rng.choice(self._sizes), fragment)
        self._keep(parts_of(fragment))
        self._keep(self._node.feed(tracker.step, batch))

    def _tell(self) -> None:
        marks = {step.id: END_OF_TIME for step in self._graph.sources()}
        for tracker, _ in self._trackers:
            marks[tracker.step] = min(marks[tracker.step], tracker.watermark)
        for source, mark in marks.items():
            self._keep(self._node.advance(source, mark))
        self._told = marks
        self.sent.append(Marks(dict(marks)))

    def _keep(self, parts: Parts) -> None:
        """Send what the cloud reads, hold what waits."""
        for stream, batch in parts:
            if stream in (DEAD_LETTERS, LATE) or self._graph[stream].out is None:
                self.results.append((stream, batch))
                continue
            readers = frozenset(step.id for step in self._graph.consumers(stream))
            above = readers if Fault.READ_TWICE in self._faults else readers - self.edge
            if above:
                self.sent.append(Rows(stream, above, batch))
            if readers & self.held:
                self._rows.append((stream, batch))

    def _cross(self) -> None:
        edges = [cut.edge for cut in self._cuts if not cut.edge & self.held and cut.edge != self.edge]
        if not edges:
            return
        after, before = self._rng.choice(edges), self.edge - self.held
        self._tell()
        moves = Moves.of(self._graph, before, after)
        self._seen.counts.update(f"up {self._graph[s].operator.kind}" for s in moves.up)
        self._seen.counts.update(f"down {self._graph[s].operator.kind}" for s in moves.down)
        self._seen.counts.update(f"put out {self._graph[s].operator.kind}" for s in moves.put_out)
        if Fault.PARTIALS_LOST in self._faults:
            moves = Moves((*moves.up, *moves.put_out), moves.down, ())
        left = given(self._node.fragment, self._node.saved, moves)
        self._keep([(s, b) for s, found in left.output.batches.items() for b in found])
        cells = of_steps(left.cells, Moves.of(self._graph, before, after).up)
        self._seen.counts["cells up"] += len(cells)
        going_back, rows = self.held, self._rows
        held = below(self._graph, moves.down, after)
        self.number += 1
        self.sent.append(
            Crossing(
                self.number, before, after, dict(self._told), held, manifest(cells), over_the_wire(cells)
            )
        )
        self.edge, self.held, self._rows = after, held, []
        if going_back:
            self._seen.counts["gone back"] += 1
            if Fault.HELD_LOST not in self._faults:
                for stream, batch in rows:
                    readers = {step.id for step in self._graph.consumers(stream)} & going_back
                    self.sent.append(Rows(stream, frozenset(readers), batch))
            self.sent.append(Released(self.number - 1, None))
        now = after if Fault.NOT_HELD in self._faults else after - held
        self._keep(self._node.open(now, left.kept))

    def _load(self, outbox: Outbox) -> None:
        """Take the cells in, then what was held for their steps, then time as it is by now."""
        cells, mine = put_together(outbox.expected, outbox.cells), self._node.save()
        check = Fragment(self._graph, self.held).state.check
        if Fault.NOT_HELD in self._faults:
            self.held, self._rows = frozenset(), []
            self._keep(self._node.open(self.edge, mine | cells))
            self.sent.append(Released(self.number, outbox.expected.digest))
            return
        arrived = taken_in(cells, lambda step, key: "it" if (step, key) in mine else None, check, {})
        assert not arrived.refused, arrived.refused
        if Fault.TIMERS_LOST in self._faults:
            cells = {at: saved_cell(NEVER, cell[8:]) for at, cell in cells.items()}
        self._seen.counts["cells down"] += len(cells)
        waiting = Node(self._graph, self.held, self._rng, 0.0)
        waiting.open(self.held, cells)
        held, rows = self.held, self._rows
        self.held, self._rows = frozenset(), []
        for stream, batch in rows:
            assert any(step.id in held for step in self._graph.consumers(stream))
            self._keep(waiting.feed(stream, batch))
        self._seen.counts["rows held"] += sum(len(batch) for _, batch in rows)
        self._keep(self._node.open(self.edge, mine | waiting.save()))
        self.sent.append(Released(self.number, outbox.expected.digest))


def below(graph: Graph, moved: Iterable[str], edge: AbstractSet[str]) -> frozenset[str]:
    """The steps of `edge` that wait for the cells of `moved`: these, and all below them."""
    wanted = frozenset(moved)
    return frozenset(step for step in edge if wanted & graph.ancestors(step))


def _since_1970(graph: Graph, step: str) -> bool:
    operator: Any = graph[step].operator
    return bool(operator.source.since_1970)


class Cloud:
    """All steps but the sources, in micro-batches of the log."""

    def __init__(
        self, graph: Graph, devices: int, rng: random.Random, faults: AbstractSet[Fault], seen: Seen
    ) -> None:
        self._graph, self._rng, self._faults, self._seen = graph, rng, faults, seen
        self._steps = [step for step in graph.steps if step.inputs]
        self._nodes = {
            step.id: Node(graph, {step.id}, rng, rng.choice([0.0, 0.1, 0.5])) for step in self._steps
        }
        self._domains = {stream: one.domain for stream, one in derive_properties(graph).items()}
        self._sources = graph.sources_above()
        self._above = {step.id: graph.ancestors(step.id) for step in graph.steps}
        self._owners: dict[tuple[str | None, bytes], int] = {}
        self._marks = [dict.fromkeys((s.id for s in graph.sources()), START_OF_TIME) for _ in range(devices)]
        self._holds: list[dict[int, dict[str, int]]] = [{} for _ in range(devices)]
        self._aside: list[tuple[int, Cells] | None] = [None] * devices
        self._again: list[Crossing | None] = [None] * devices
        self.outbox: list[Outbox | None] = [None] * devices
        self._log: list[tuple[int, Entry]] = []
        self._lag = rng.choice([0.0, 0.3, 0.8])
        self.results: Parts = []

    def receive(self, device: int, entry: Entry) -> None:
        """Take an entry into the log."""
        self._log.append((device, entry))

    def micro_batch(self) -> None:
        """Work off what came, then let time pass."""
        log, self._log = self._log, []
        for device, entry in log:
            if isinstance(entry, Rows):
                self._note(device, entry.stream, entry.batch)
                self._push(entry.stream, entry.batch, entry.readers)
            elif isinstance(entry, Marks):
                self._marks[device] = entry.marks
            elif isinstance(entry, Crossing):
                self._cross(device, entry)
            else:
                self._holds[device].pop(entry.number, None)
                aside = self._aside[device]
                if entry.digest is not None and aside is not None and aside[0] == entry.number:
                    assert manifest(aside[1]).digest == entry.digest
                    self._aside[device] = self.outbox[device] = None
        ended = all(mark == END_OF_TIME for marks in self._marks for mark in marks.values())
        if ended or self._rng.random() >= self._lag:
            for step in self._steps:
                clock = self.clock(step.id, own=False)
                for stream in dict.fromkeys(i.step for i in step.inputs):
                    mark = min(self.clock(stream), clock) if self._is_held(step.id) else self.clock(stream)
                    self._keep(self._nodes[step.id].advance(stream, mark))

    def _is_held(self, step: str) -> bool:
        return any(step in marks for holds in self._holds for marks in holds.values())

    def clock(self, stream: str, *, own: bool = True) -> int:
        """How far a stream is: the least of its sources, and of the holds above it; own: never mind, by now,
        whether the step itself is held in the cloud, too.
        """
        found = min(marks[source] for marks in self._marks for source in self._sources[stream])
        if Fault.MARK_GOES_ON in self._faults or (not own and Fault.BEFORE_ROWS in self._faults):
            return found
        for holds in self._holds:
            for marks in holds.values():
                found = min([found, *(mark for step, mark in marks.items() if step in self._above[stream])])
        return found

    def _push(self, stream: str, batch: Batch, readers: AbstractSet[str] | None = None) -> None:
        for step in self._graph.consumers(stream):
            if readers is None or step.id in readers:
                self._keep(self._nodes[step.id].feed(stream, batch))

    def _keep(self, parts: Parts) -> None:
        for stream, batch in parts:
            if stream in (DEAD_LETTERS, LATE) or self._graph[stream].out is None:
                self.results.append((stream, batch))
            else:
                self._push(stream, batch)

    def _note(self, device: int, stream: str, batch: Batch) -> None:
        """On which device the keys of the stream's domain live."""
        domain = self._domains[stream]
        if domain is None:
            return
        for value in batch.values:
            with suppress(SchemaError):  # a value that is no key has no cell
                key = encode_key(getattr(value, domain))
                assert self._owners.setdefault((domain, key), device) == device

    def _owner(self, step: str, key: bytes) -> int | None:
        return self._owners.get((self._domains[self._graph[step].inputs[0].step], key))

    def _cross(self, device: int, crossing: Crossing) -> None:
        moves = Moves.of(self._graph, crossing.before, crossing.after)
        aside = self._aside[device]
        if aside is not None:  # it goes over again before it has loaded them
            self._seen.counts["taken back"] += len(aside[1])
            self._load(device, aside[1])
            self._aside[device] = self.outbox[device] = None
        if Fault.LOADED_TWICE in self._faults and (again := self._again[device]) is not None:
            for at, cell in put_together(again.expected, again.cells).items():
                if self._graph[at[0]].id not in crossing.before:
                    self._put({at: cell})
        if crossing.cells:
            self._again[device] = crossing
        self._load(device, put_together(crossing.expected, crossing.cells))
        if crossing.held:
            self._holds[device][crossing.number] = {
                step: min(crossing.marks[source] for source in self._sources[step]) for step in crossing.held
            }
            self._give(device, crossing, moves)

    def _load(self, device: int, cells: Cells) -> None:
        if Fault.TIMERS_LOST in self._faults:
            cells = {at: saved_cell(NEVER, cell[8:]) for at, cell in cells.items()}
        held = {at for step in {step for step, _ in cells} for at in self._nodes[step].save()}
        check = Fragment(self._graph, [s.id for s in self._steps]).state.check if cells else _nothing
        arrived = taken_in(cells, lambda step, key: "another" if (step, key) in held else None, check, {})
        assert not arrived.refused, arrived.refused
        for step, key in arrived.cells:
            domain = self._domains[self._graph[step].inputs[0].step]
            assert self._owners.setdefault((domain, key), device) == device
        counters: dict[str, int] = {}
        left, overtaken = loaded(self._graph, arrived.cells, self._clock_in, counters)
        self._seen.counts["overtaken"] += sum(counters.values())
        self._put(left.cells)
        self._keep([(s, b) for s, found in left.output.batches.items() for b in found])
        assert not any(overtaken.batches.values()) or self._faults

    def _clock_in(self, stream: str) -> int:
        """How far the nodes below a stream have come."""
        found = [
            self._nodes[step.id].marks.get(stream, START_OF_TIME) for step in self._graph.consumers(stream)
        ]
        return max(found, default=START_OF_TIME)

    def _put(self, cells: Cells) -> None:
        for step in {step for step, _ in cells}:
            node, mine = self._nodes[step], of_steps(cells, [step])
            if self._rng.random() < 0.5:
                node.fragment.take_in(mine)
            else:
                self._keep(node.open(node.steps, node.save() | mine))

    def _give(self, device: int, crossing: Crossing, moves: Moves) -> None:
        """The cells of the steps that come to a device, brought up to its watermarks."""
        cells: Cells = {}
        for step in moves.down:
            node = self._nodes[step]
            for at, cell in node.save().items():
                assert self._owner(*at) is not None, at
                if self._owner(*at) == device:
                    cells[at] = cell
            if Fault.CELLS_STAY not in self._faults:
                self._keep(node.open(node.steps, {at: c for at, c in node.saved.items() if at not in cells}))
        moving = crossing.after - crossing.before
        marks = {
            stream: min(crossing.marks[source] for source in self._sources[stream]) for stream in self._above
        }
        if Fault.NOT_BROUGHT_UP in self._faults:
            marks = {}
        left = brought_up(self._graph, moving, cells, marks)
        for stream, found in left.output.batches.items():
            for batch in found:
                if stream in (DEAD_LETTERS, LATE) or self._graph[stream].out is None:
                    self.results.append((stream, batch))
                else:
                    readers = {step.id for step in self._graph.consumers(stream)} - moving
                    self._push(stream, batch, readers)
        self._aside[device] = crossing.number, left.cells
        self.outbox[device] = Outbox(crossing.number, manifest(left.cells), over_the_wire(left.cells))


def _nothing(step: str, cell: bytes) -> None:
    """There is no cell to look at."""


def run_moving(
    graph: Graph,
    cuts: Sequence[Cut],
    world: World,
    rng: random.Random,
    faults: AbstractSet[Fault] = frozenset(),
    seen: Seen | None = None,
) -> Answer:
    """What the two tiers answer while devices go from cut to cut; `graph` with its aggregates split."""
    seen = Seen() if seen is None else seen
    devices = [
        Device(graph, cuts, splits, world.bounds_us, rng, faults, seen) for splits in world.devices.values()
    ]
    cloud = Cloud(graph, len(devices), rng, faults, seen)
    count = sum(len(items) for by in world.devices.values() for one in by.values() for items in one.values())
    patience = rng.choice([0.1, 0.3, 0.6])
    for _ in range(TURNS_MAX + 100 * count):
        number = rng.randrange(len(devices))
        device = devices[number]
        if rng.random() < 0.5:
            device.act(cloud.outbox[number])
        for _ in range(rng.randint(0, 4)):
            if device.sent:
                cloud.receive(number, device.sent.popleft())
        if rng.random() < patience:
            cloud.micro_batch()
        if all(one.ended for one in devices):
            break
    else:
        raise AssertionError("it does not come to an end")
    for number, device in enumerate(devices):
        device._tell()
        while device.sent:
            cloud.receive(number, device.sent.popleft())
            if rng.random() < patience:
                cloud.micro_batch()
    cloud.micro_batch()
    return answer_of(graph, cloud.results + [part for device in devices for part in device.results])
