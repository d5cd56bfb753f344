"""A model of the two tiers in one process: devices, the link between, and the cloud, with all that chance
does to them.

Each device runs its part of the flow in batches of random size from splits read in random turns; what it
sends passes the wire's codec and reaches the cloud in a random interleaving with that of the others. The
cloud works in micro-batches at a clock that lags at random, in one fragment, or with every step dealt to
shards by its keys. Every fragment is saved and opened again at random points.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, STATE, Graph, Step, key_step
from geartrain.graph.operator import Services, Transform
from geartrain.operators.deal import Deal
from geartrain.operators.process import forms_of
from geartrain.planning import Channel, Cut, Plan, make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.plan import claim_channel, state_channel
from geartrain.planning.splitting import PARTIAL
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.moving import Left, Moves, given
from geartrain.runtime.splits import SplitTracker
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.source import Batch as Read
from geartrain.source import Reject
from geartrain.state.claims import ASKS, BACK, HAS, Taking, claims
from geartrain.state.keyed import DictBackend, KeyedState
from geartrain.state.moving import Cells, batches, records
from geartrain.wire.body import decode_rows, encode_rows
from geartrain.wire.envelope import BatchKind, Header
from tests.reference.rows import Answer, Row

RESTARTS_MAX = 3
"""Of one fragment in one run."""
_PIECE_BYTES = 40
"""So small that cells travel in pieces."""
_LOSES = 0.4
"""How likely one that gives up a claim has lost its spool, where that may be."""
_HURRIED = 0.2
"""How likely a device gives up a claim at all, and then at each turn."""
_MOVES, _MOVES_AMID = 0.3, 0.15
"""How likely a device goes over to its next cut before a read."""

Parts = list[tuple[str, Batch]]
Splits = Mapping[str, Mapping[str, Sequence[Any]]]
"""By source step, by split name, items of (time, value) or Reject."""


@dataclass(frozen=True)
class World:
    """What a flow meets: the devices with their splits, and each source's bound of disorder, microseconds."""

    devices: Mapping[str, Splits]
    bounds_us: Mapping[str, int]

    def inputs(self) -> dict[str, dict[str, Sequence[Any]]]:
        """All splits of all devices, by source."""
        merged: dict[str, dict[str, Sequence[Any]]] = {step: {} for step in self.bounds_us}
        for sources in self.devices.values():
            for step, splits in sources.items():
                merged[step] |= splits
        return merged


class _Node:
    """A fragment that is saved and opened again from its saved state now and then."""

    def __init__(
        self,
        graph: Graph,
        steps: Iterable[str],
        rng: random.Random,
        restarts: float,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._graph, self._steps, self._rng, self._restarts = graph, tuple(steps), rng, restarts
        self._names = names
        self._left = RESTARTS_MAX
        self._saved: dict[tuple[str, bytes], bytes] = {}
        self.marks: dict[str, int] = {}
        self._open()

    def _open(self) -> None:
        saved = DictBackend(dict(self._saved))
        self._fragment = Fragment(self._graph, self._steps, saved, names=self._names)
        for stream, watermark in self.marks.items():
            self._fragment.advance(stream, watermark)

    def fragment(self) -> Fragment:
        """The fragment; nothing that it put out may wait in it."""
        if self._left and self._rng.random() < self._restarts:
            self._left -= 1
            self._again()
        return self._fragment

    def _again(self) -> None:
        for at, cell in self._fragment.changes().items():
            if cell is None:
                self._saved.pop(at, None)
            else:
                self._saved[at] = cell
        self._open()

    def go_over(self, plan: Plan, moves: Moves, cells: Mapping[tuple[str, bytes], bytes]) -> Left:
        """Run the steps that another plan has on the edge from now on, those that come with `cells`; what
        leaves with the others.
        """
        left = given(self._fragment, self._saved, moves)
        self._graph, self._steps, self._names = plan.graph, plan.edge, plan.names
        self._saved = {**left.kept, **cells}
        self._open()
        return left

    def become(self, plan: Plan, made: Callable[[Cells], Cells]) -> None:
        """Run the steps of another revision from now on, with what `made` makes of the saved cells."""
        self._again()
        self._graph, self._steps, self._names = plan.graph, plan.edge, plan.names
        self._saved = made(self._saved)
        self._open()

    def advance(self, stream: str, watermark: int) -> Parts:
        """Tell it of a watermark; returns what left."""
        fragment = self.fragment()
        self.marks[stream] = max(watermark, self.marks.get(stream, START_OF_TIME))
        fragment.advance(stream, watermark)
        return _parts(fragment)

    def feed(self, stream: str, batch: Batch) -> Parts:
        """Feed it a batch; returns what left."""
        fragment = self.fragment()
        fragment.feed(stream, batch)
        return _parts(fragment)


def _parts(fragment: Fragment) -> Parts:
    return [(stream, batch) for stream, batches in fragment.take().batches.items() for batch in batches]


@dataclass
class Sent:
    """What a device sends: rows of a channel as they travel, or (rows None) the watermarks of its sources.

    is_fresh: it has a fresh spool, and knows of no claim.
    """

    channel: str = ""
    rows: Batch | None = None
    marks: Mapping[str, int] = field(default_factory=dict)
    is_fresh: bool = False


def read_on(tracker: SplitTracker, items: Sequence[Any], size: int, fragment: Fragment) -> Batch:
    """The records among the next `size` items of a split; the fragment gets rejects and late ones."""
    at = tracker.progress.position
    taken = items[at : at + size]
    timed = [(at + i, *x) for i, x in enumerate(taken) if not isinstance(x, Reject)]
    end = at + len(taken)
    poll = Read(
        [value for _, _, value in timed],
        [time for _, time, _ in timed],
        [number for number, _, _ in timed],
        end,
        [x for x in taken if isinstance(x, Reject)],
        ended=end == len(items),
    )
    batch, late, rejected = tracker.observe(poll)
    for letter in rejected:
        fragment.reject(letter)
    for letter in late:
        fragment.divert_late(letter)
    return batch


class Device:
    """A device from its splits to what it sends."""

    def __init__(self, plan: Plan, splits: Splits, bounds_us: Mapping[str, int], rng: random.Random) -> None:
        self._plan, self._rng = plan, rng
        self.revision = 1
        self._node = _Node(plan.graph, plan.edge, rng, rng.choice([0.0, 0.1, 0.5]), plan.names)
        self._sizes = rng.choice([(1, 2), (2, 7), (256,), (256,), (4, 256)])
        self._patience = rng.choice([0.0, 0.5, 0.9])
        self._readers = [
            (SplitTracker(step, name, bounds_us[step], None, since_1970=_since_1970(plan, step)), items)
            for step, by_name in splits.items()
            for name, items in by_name.items()
        ]
        self._sent: list[Sent] = []
        self.cells, self._number = 0, 0
        """Cells that have left with steps."""
        self.taking: Taking | None = None
        """What comes for a claim, while the device waits for that."""
        self.taken, self._claims = 0, 0
        self._marks: dict[str, int] = {}
        """Cells that have come with steps."""
        self.loses_spools = False
        """Whether its spool is lost now and then while it claims."""

    def run(self, later: Sequence[Plan] = (), *, amid: bool = False) -> list[Sent]:
        """Read all splits to their ends; later: plans to which the device goes over at random points; amid:
        rather amid its work than as it begins.
        """
        for _ in self.turns(later, amid=amid):
            assert self.taking is None, "nobody answers its claims here"
        return self._sent

    def turns(self, later: Sequence[Plan] = (), *, amid: bool = False) -> Iterator[list[Sent]]:
        """What it does turn by turn, as `run`, and what it has sent by then, which may be taken away. It
        waits while it is `taking`.
        """
        open_ones, waiting = list(self._readers), list(later)
        if amid:
            self._sizes = self._rng.choice([(1, 2), (2, 7)])
        while open_ones:
            yield from self._change(waiting, _MOVES_AMID if amid else _MOVES)
            tracker, items = reader = self._rng.choice(open_ones)
            self._read(tracker, items)
            if tracker.progress.ended:
                open_ones.remove(reader)
            if self._rng.random() >= self._patience:
                self._tell()
            yield self._sent
        self._tell()
        yield self._sent

    def _change(self, waiting: list[Plan], how_likely: float) -> Iterator[list[Sent]]:
        """What it goes over to before a read, where chance says so."""
        if waiting and self._rng.random() < how_likely:
            yield from self._cross(waiting.pop(0))

    def _cross(self, plan: Plan) -> Iterator[list[Sent]]:
        """Go over to another plan, with what the cloud keeps of the steps that come by it; or stay with this
        one now and then.
        """
        moves = Moves.of(self._plan.graph, self._plan.cut.edge, plan.cut.edge)
        cells, comes = Cells(), coming(self._plan, plan)
        if comes:
            self._tell()
            self._claims += 1
            self.taking = taking = Taking(self._claims, comes)
            self._claim(comes, ASKS)
            hurried = self._rng.random() < _HURRIED
            while not taking.complete and not (hurried and self._rng.random() < _HURRIED):
                yield self._sent
            self.taking = None
            if not taking.complete or self._refuses(taking, comes) or self._rng.random() < _HURRIED:
                self._forget(comes)
                return
            cells = taking.cells()
            self.taken += len(cells)
            self._claim(comes, HAS)
        left = self._node.go_over(plan, moves, cells)
        self._send([(name, batch) for name, several in left.output.batches.items() for batch in several])
        self.cells += len(left.cells)
        forms = forms_of(self._plan.graph, {step for step, _ in left.cells})
        for several in batches(records(left.cells, _PIECE_BYTES, forms, self.revision), 7, 300):
            numbers = range(self._number, self._number + len(several))
            self._number += len(several)
            moved = Batch(several, [START_OF_TIME] * len(several), ["_state"] * len(several), list(numbers))
            self._sent.append(Sent(STATE, over_the_link(plan, state_channel(plan.graph), moved)))
        self._plan = plan

    def _refuses(self, taking: Taking, steps: Collection[str]) -> bool:
        """Whether the data centre keeps what has come as a later revision does."""
        ours = forms_of(self._plan.graph, steps)
        is_other = any(ours.get(step, form) != form for step, form in taking.forms.items())
        return is_other or any(number > self.revision for number in taking.began.values())

    def _forget(self, steps: Sequence[str]) -> None:
        """Go on without what it has claimed, in one of the ways in which a device may."""
        if self.loses_spools and self._rng.random() < _LOSES:
            self._sent.append(Sent(CLAIMS, is_fresh=True))
        else:
            self._claim(steps, BACK)

    def _claim(self, steps: Sequence[str], says: str) -> None:
        above, marks = self._plan.graph.sources_above(), self._marks
        said = claims(self._claims, {s: min(marks[source] for source in above[s]) for s in steps}, says)
        numbers = range(self._number, self._number + len(said))
        self._number += len(said)
        rows = Batch(said, [START_OF_TIME] * len(said), ["_claims"] * len(said), list(numbers))
        self._sent.append(Sent(CLAIMS, over_the_link(self._plan, claim_channel(self._plan.graph), rows)))

    def _read(self, tracker: SplitTracker, items: Sequence[Any]) -> None:
        size, fragment = self._rng.choice(self._sizes), self._node.fragment()
        fragment.feed(tracker.step, read_on(tracker, items, size, fragment))
        self._send(_parts(fragment))

    def _tell(self) -> None:
        """Let the fragment and the cloud know how far each source is."""
        marks = {step.id: END_OF_TIME for step in self._plan.graph.sources()}
        for tracker, _ in self._readers:
            marks[tracker.step] = min(marks[tracker.step], tracker.watermark)
        for source, mark in marks.items():
            self._send(self._node.advance(source, mark))
        self._marks = marks
        self._sent.append(Sent(marks=marks))

    def _send(self, parts: Parts) -> None:
        for channel, batch in parts:
            self._sent += [
                Sent(channel, over_the_link(self._plan, self._plan.channel(channel), part))
                for part in batch.slices(256)
            ]


def coming(before: Plan, after: Plan) -> list[str]:
    """The steps with state that come to a device which goes over, but for partial aggregates."""
    return [
        step.id
        for step in after.graph.steps
        if step.operator.stateful and step.operator.kind != PARTIAL and step.id in after.edge
        if step.id not in before.edge
    ]


def _since_1970(plan: Plan, step: str) -> bool:
    operator: Any = plan.graph[step].operator
    return bool(operator.source.since_1970)


_codec = lru_cache(maxsize=1_024)(RowCodec)


def over_the_link(plan: Plan, channel: Channel, batch: Batch) -> Batch:
    """The batch as it comes out of the wire's codec."""
    codec = _codec(channel.kind)
    columns = ColumnBatch(
        codec.to_columns(batch.values), batch.times, batch.names, batch.numbers, batch.paths
    )
    encoded = encode_rows(codec.schema, columns)
    header = Header(
        BatchKind.DATA,
        plan.graph.name,
        "device",
        b"12345678",
        1,
        channel.id,
        codec.schema.schema_id,
        len(batch),
        encoded.first_number,
        flags=encoded.flags,
    )
    rows = decode_rows(codec.schema, header, encoded.body)
    return Batch(codec.from_columns(rows.fields), rows.times, rows.names, rows.numbers, rows.paths)


class _Unit:
    """Some of the cloud's steps, run by one fragment, or by several that share the keys."""

    def __init__(self, graph: Graph, steps: Sequence[Step], shards: int, rng: random.Random) -> None:
        ids = {step.id for step in steps}
        self.streams = [
            stream for stream in dict.fromkeys(i.step for s in steps for i in s.inputs) if stream not in ids
        ]
        self._to_all = {
            s.inputs[port].step for s in steps for port in getattr(s.operator, "broadcast_ports", ())
        }
        self._rng = rng
        restarts = rng.choice([0.0, 0.1, 0.5])
        keyed = any(step.operator.stateful for step in steps)  # what is not keeps its order, in one place
        self._nodes = [_Node(graph, ids, rng, restarts) for _ in range(shards if keyed else 1)]
        self._keyed = {stream: _keys_of(graph, stream) for stream in self.streams}

    def feed(self, stream: str, batch: Batch) -> Parts:
        """Deal a batch to the shards."""
        if len(self._nodes) == 1:
            return self._nodes[0].feed(stream, batch)
        dealt: dict[int, list[int]] = {}
        keyed = self._keyed[stream]
        keys = None if keyed is None else keyed(batch).keys
        for row in range(len(batch)):
            for shard in self._shards(stream, None if keys is None else keys[row]):
                dealt.setdefault(shard, []).append(row)
        return [p for shard, rows in dealt.items() for p in self._nodes[shard].feed(stream, batch.take(rows))]

    def _shards(self, stream: str, key: bytes | None) -> Iterable[int]:
        """Where a record goes: by its key, where it has one."""
        if stream in self._to_all:
            return range(len(self._nodes))
        return [self._rng.randrange(len(self._nodes)) if key is None else zlib.crc32(key) % len(self._nodes)]

    def advance(self, stream: str, watermark: int) -> Parts:
        """Tell every shard."""
        return [part for node in self._nodes for part in node.advance(stream, watermark)]


class _Cloud:
    """The cloud's steps, fed in micro-batches at a clock."""

    def __init__(self, plan: Plan, devices: int, rng: random.Random) -> None:
        self._plan, self._rng, self._devices = plan, rng, devices
        steps = [plan.graph[s] for s in plan.cloud]
        self._shared_clock = rng.random() < 0.5
        self._lag = rng.choice([0.0, 0.5])
        self._floor_us = rng.choice([1, 1, 1_000])
        shards = rng.choice([1, 1, 1, 2, 3])
        groups = [steps] if shards == 1 else _groups(steps)
        self._units = [_Unit(plan.graph, group, shards, rng) for group in groups if group]
        self._waiting: Parts = []
        self._marks: dict[tuple[str, int], int] = {}
        self._down = _DownDevices(plan, rng)
        self.results: Parts = self._down.results

    def receive(self, device: int, sent: Sent) -> None:
        """Take what a device sent into the log."""
        if sent.rows is None:
            for source, mark in sent.marks.items():
                self._marks[source, device] = max(mark, self._marks.get((source, device), START_OF_TIME))
        elif sent.channel in (DEAD_LETTERS, LATE):
            self.results.append((sent.channel, sent.rows))
        else:
            self._waiting.append((self._plan.channel(sent.channel).entry, sent.rows))

    def micro_batch(self) -> None:
        """Work off what came, then let time pass."""
        streams: dict[str, list[Batch]] = {}
        for channel, batch in self._waiting:
            streams.setdefault(channel, []).append(batch)
        self._waiting = []
        marks = self._clocks()
        for unit in self._units:
            for stream in unit.streams:
                for batch in streams.get(stream, []):
                    self._keep(unit.feed(stream, batch), streams)
            for stream in unit.streams:
                self._keep(unit.advance(stream, self._mark(stream, marks)), streams)
        for dealt in self._plan.down:
            self._down.receive(dealt, streams.get(dealt.id, []), self._mark(dealt.id, marks))

    def _clocks(self) -> dict[str, int]:
        """The watermark of each channel: the min over devices and sources, never ahead, often behind."""
        marks = {
            c.entry: min(
                self._marks.get((s, d), START_OF_TIME) for s in c.sources for d in range(self._devices)
            )
            for c in self._plan.channels
        }
        if self._shared_clock and marks:
            marks = dict.fromkeys(marks, min(marks.values()))
        if any(m != END_OF_TIME for m in marks.values()):
            if self._rng.random() < self._lag:
                return dict.fromkeys(marks, START_OF_TIME)
            marks = {c: m if m in (START_OF_TIME, END_OF_TIME) else self._floor(m) for c, m in marks.items()}
        return marks

    def _floor(self, mark: int) -> int:
        return mark // self._floor_us * self._floor_us

    def _mark(self, stream: str, marks: Mapping[str, int]) -> int:
        if stream in marks:
            return marks[stream]
        return min(self._mark(i.step, marks) for i in self._plan.graph[stream].inputs)

    def _keep(self, parts: Parts, streams: dict[str, list[Batch]]) -> None:
        for stream, batch in parts:
            known = stream in (DEAD_LETTERS, LATE) or self._plan.graph[stream].out is None
            if known:
                self.results.append((stream, batch))
            else:
                streams.setdefault(stream, []).append(batch)


class _DownDevices:
    """The devices again, for what comes down to them: no step with state is fed from both sides."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        self._plan, self._rng = plan, rng
        self._nodes: dict[str, _Node] = {}
        self._marks: dict[str, int] = {}
        self.results: Parts = []

    def receive(self, channel: Channel, batches: Sequence[Batch], watermark: int) -> None:
        """Deal what one micro-batch has for a channel, then let the channel's time pass everywhere."""
        deal = self._plan.graph[channel.id].operator
        assert isinstance(deal, Deal)
        for batch in batches:
            dealt: dict[str, list[int]] = {}
            for row, value in enumerate(batch.values):
                dealt.setdefault(deal.device_of(value), []).append(row)
            for name, rows in dealt.items():
                for part in batch.take(rows).slices(self._rng.choice([1, 7, 256])):
                    came = over_the_link(self._plan, channel, part)
                    self.results += self._node(name).feed(channel.id, came)
        self._marks[channel.id] = watermark
        for node in self._nodes.values():
            self.results += node.advance(channel.id, watermark)

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            restarts = self._rng.choice([0.0, 0.1, 0.5])
            self._nodes[name] = _Node(self._plan.graph, self._plan.edge, self._rng, restarts)
            for channel, mark in self._marks.items():
                self._nodes[name].advance(channel, mark)
        return self._nodes[name]


def _keys_of(graph: Graph, stream: str) -> Transform | None:
    """What gives the records of a stream their keys, None for one without keys."""
    step = key_step(graph, stream)
    if step is None:
        return None
    opened = step.operator.open(Services(step.id, step.out, _no_letter, KeyedState(DictBackend())))
    assert callable(opened)
    return opened


def _no_letter(letter: DeadLetter) -> None:
    raise AssertionError(f"a record that had a key has none: {letter}")


def _groups(steps: Sequence[Step]) -> list[list[Step]]:
    """Each step with state by itself, with the `order` steps before it; between them the others together."""
    groups: list[list[Step]] = [[]]
    for step in steps:
        alone = step.operator.stateful and not any(s.operator.kind == "order" for s in groups[-1])
        if alone and groups[-1]:
            groups.append([])
        groups[-1].append(step)
        if step.operator.stateful and step.operator.kind != "order":
            groups.append([])
    return groups


def run_cut(graph: Graph, cut: Cut, world: World, rng: random.Random) -> Answer:
    """What the two tiers answer under one cut."""
    plan = make_plan(graph, sorted(cut.edge))
    assert plan.cut == cut
    sent = [Device(plan, splits, world.bounds_us, rng).run() for splits in world.devices.values()]
    return _answered(graph, plan, sent, rng)


def run_mixed(graph: Graph, base: Cut, cuts: Sequence[Cut], world: World, rng: random.Random) -> Answer:
    """What the two tiers answer where each device has a cut of its own."""
    texts = [sorted(cut.edge) for cut in cuts]
    plan = make_mixed_plan(graph, sorted(base.edge), texts)
    sent = []
    for text, splits in zip(texts, world.devices.values(), strict=True):
        own = make_plan(graph, text, base=sorted(base.edge))
        sent.append(Device(own, splits, world.bounds_us, rng).run())
    return _answered(graph, plan, sent, rng)


def run_moving(
    graph: Graph, base: Cut, cuts: Sequence[Sequence[Cut]], world: World, rng: random.Random
) -> Answer:
    """What the two tiers answer where each device goes from one of its cuts to the next. They differ in steps
    without state alone.
    """
    plan = make_mixed_plan(
        graph, sorted(base.edge), [sorted(cut.edge) for several in cuts for cut in several]
    )
    sent = []
    for several, splits in zip(cuts, world.devices.values(), strict=True):
        first, *later = (make_plan(graph, sorted(cut.edge), base=sorted(base.edge)) for cut in several)
        sent.append(Device(first, splits, world.bounds_us, rng).run(later))
    return _answered(graph, plan, sent, rng)


def _answered(graph: Graph, plan: Plan, waiting: Sequence[list[Sent]], rng: random.Random) -> Answer:
    """What the cloud makes of all that devices have sent."""
    cloud = _Cloud(plan, len(waiting), rng)
    patience = rng.choice([0.6, 0.9, 0.95, 0.98, 1.0])
    live = [(device, iter(sent)) for device, sent in enumerate(waiting)]
    while live:
        device, sent = pick = rng.choice(live)
        try:
            cloud.receive(device, next(sent))
        except StopIteration:
            live.remove(pick)
        if rng.random() >= patience:
            cloud.micro_batch()
    cloud.micro_batch()
    return answer_of(graph, cloud.results)


def answer_of(graph: Graph, parts: Parts) -> Answer:
    """Results in the form in which the reference gives its own."""
    found = Answer({step.id: [] for step in graph.sinks()}, Counter(), Counter())
    for stream, batch in parts:
        for i, value in enumerate(batch.values):
            origin = batch.origin(i)
            row = Row(batch.times[i], origin.name, origin.number, origin.path, value)
            if stream in (DEAD_LETTERS, LATE):
                (found.dead if stream == DEAD_LETTERS else found.late)[value.step, *row.order] += 1
            else:
                found.sinks[stream].append(row)
    return found.sort()
