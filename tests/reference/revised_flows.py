"""Random flows with random revisions: a flow as a list of nodes, which a revision adds to, takes from and
changes; and the world that it meets.

Of what has no one answer nothing is drawn: where a step would read records in another order than before, or
by another clock, while it keeps its state, the revision is drawn anew.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from geartrain import Flow, Table
from geartrain.declarations.windows import EveryRecords, EveryTime, Global, Session, Sliding, Tumbling
from geartrain.graph.graph import Graph
from geartrain.planning import Plan, make_plan
from geartrain.revision import Change, Revision, change_of, revision_of
from tests.reference import data, records, summaries
from tests.reference.calendars import CALENDARS
from tests.reference.flows import Ordered, Unordered
from tests.reference.records import Reading
from tests.reference.steps import us
from tests.reference.two_tiers import World

NODES_MAX = 9
TRIES_MAX = 50
"""Of one revision; a flow for which none is found keeps the one before."""
_GOES_BACK, _NEAR = 0.3, 0.8
"""Of a local flow: how likely it goes back, and a step is keyed as its sources are, near to them."""

KEYS: Sequence[Any] = ("key", "key", records.int_key, records.bool_key, records.pair_key)
SHARED: Sequence[Any] = (Tumbling(10), Tumbling(7, 3), Sliding(12, 5, 1), Sliding(4, 9), Global(), *CALENDARS)
WINDOWS: Sequence[Any] = (*SHARED, Session(4), Session(30))
EARLIES: Sequence[Any] = (None, None, EveryRecords(1), EveryRecords(3), EveryTime(2), EveryTime(5))
TTLS: Sequence[int | None] = (None, None, 1, 5, 24)
INTERVALS: Sequence[tuple[int, int]] = ((0, 0), (-5, 5), (2, 20))
PLAIN: Mapping[str, Sequence[Any]] = {
    "map": (records.grow, records.shift, records.rekey),
    "filter": (records.odd, records.small),
    "flat_map": (records.spread,),
    "iterate": (records.done, None),
    "log": (1, 3),
}
_TRIED = ("map", "filter", "iterate")
"""Those whose other code shows in results."""
TASKS: Sequence[Any] = (
    *(records.Running(every=n) for n in (1, 2, 3)),
    *(records.Timed(rearms=n) for n in (1, 2, 3)),
    records.Bell(),
    records.Counting(),
    records.CountingTwice(),
    records.CountingThrice(),
    records.TimedAgain(),
)
CHAINS: Sequence[Sequence[type]] = (
    (records.Counting, records.CountingTwice, records.CountingThrice),
    (records.Timed, records.TimedAgain),
)
"""Tasks of which each goes on with what those before have kept."""
FOLDS: Sequence[Any] = (
    (summaries.no_total, summaries.add_up, summaries.show),
    (summaries.Log, summaries.write_down, summaries.read_out),
)
KEYED = (
    *("task", "task", "reduce", "fold", "window_reduce", "window_fold", "join", "window_join", "broadcast"),
    *("aggregate", "window_aggregate", "window_aggregate"),
)
PAIRED = ("join", "window_join", "broadcast")


@dataclass(frozen=True)
class Node:
    """A step with its key and its sink: what it does, what it reads, and what it is given. ttl: how long a
    task keeps a key, in microseconds.
    """

    name: str
    verb: str
    above: tuple[str, ...]
    given: Any = None
    key: Any = "key"
    window: Any = None
    ttl: int | None = None
    shown: bool = True


_NOTHING = Change()


@dataclass(frozen=True)
class Stage:
    """A revision: its nodes, its plan and its document; change: from the one before; drop: as was asked."""

    nodes: tuple[Node, ...]
    plan: Plan
    document: Revision
    change: Change = _NOTHING
    drop: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Those of the flow that have not gone."""
        return tuple(step.id for step in self.plan.graph.sources())

    def kept(self) -> frozenset[str]:
        """The steps that go on with what they have kept."""
        return frozenset(one.step for one in self.change.steps if one.state == "kept")


@dataclass
class Revised:
    """A flow that goes through revisions, in its world."""

    sources: Mapping[str, Any]
    world: World
    stages: list[Stage] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"sources {dict(self.sources)}"]
        for number, stage in enumerate(self.stages, 1):
            lines += [f"revision {number} of {stage.sources}, drop {stage.drop}:"]
            lines += [f"  {node}" for node in stage.nodes]
            lines += [f"  {one}" for one in stage.change.steps]
        return "\n".join(lines)


def revised(rng: random.Random, revisions: int, devices: int, *, local: bool = False) -> Revised:
    """A random flow with up to `revisions` revisions; devices: how many there are, at the most; local: most
    of its steps may stand on devices, its sources stay, and now and then it goes back to the revision before.
    """
    drawn = _Drawn(rng, local=local)
    flow = Revised(drawn.sources, drawn.world(devices))
    nodes: tuple[Node, ...] = ()
    for _ in range(rng.randint(2, 6)):
        nodes = (*nodes, drawn.node(nodes))
    flow.stages.append(drawn.stage(nodes, drawn.here))
    for _ in range(TRIES_MAX):
        if len(flow.stages) > revisions:
            break
        changed = flow.stages[-1].nodes
        for _ in range(rng.randint(1, 3)):
            changed = drawn.changed(changed)
        if local and len(flow.stages) > 1 and rng.random() < _GOES_BACK:
            changed = flow.stages[-2].nodes
        if (stage := drawn.following(flow.stages[-1], changed)) is not None:
            flow.stages.append(stage)
            drawn.here = stage.sources
    return flow


def stage_of(sources: Mapping[str, Any], nodes: tuple[Node, ...]) -> Stage:
    """Some nodes as a revision that runs in the cloud."""
    plan = make_plan(graph_of(sources, nodes), "cloud")
    return Stage(nodes, plan, revision_of("random:flow", plan))


def with_canary(flow: Revised, rng: random.Random) -> tuple[Revised, int, str] | None:
    """A flow with one more revision in which a step has other code, and one behind it that goes back; the
    number of the former, and the step. It keeps nothing, and is in all revisions; None where there is none.
    """
    first = range(2 if len(flow.stages) > 2 else 1)  # devices read on behind it
    stay = set.intersection(*({node.name for node in stage.nodes} for stage in flow.stages))
    plain = [(at, one) for at in first for one in flow.stages[at].nodes if one.name in stay]
    plain = [(at, one) for at, one in plain if one.verb in _TRIED]
    if not plain:
        return None
    at, node = rng.choice(plain)
    before = flow.stages[at]
    other = replace(node, given=rng.choice([one for one in PLAIN[node.verb] if one != node.given]))
    sources = {one: flow.sources[one] for one in before.sources}
    tried = stage_of(sources, tuple(other if one is node else one for one in before.nodes))
    there, back = change_of(before.document, tried.document), change_of(tried.document, before.document)
    if there.refusals or back.refusals:
        return None
    stages = [replace(tried, change=there), replace(before, change=back, drop=())]
    return replace(flow, stages=[*flow.stages[: at + 1], *stages, *flow.stages[at + 1 :]]), at + 2, node.name


class LiveOrdered(Ordered):
    """One that promises order, and never ends."""

    bounded = False


class LiveUnordered(Unordered):
    """One that promises nothing."""

    bounded = False


class _Drawn:
    """All that chance draws of one flow. loose: its sources promise no order, so that every step that needs
    one has an `order` before it, and may be put behind another; here: the sources that have not gone.
    """

    def __init__(self, rng: random.Random, *, local: bool = False) -> None:
        self._rng, self._local = rng, local
        self.loose = rng.random() < 0.7 or local
        aside = random.Random()  # what it says leaves all else as it is
        aside.setstate(rng.getstate())
        self._going = random.Random(f"{aside.random()}/sources")
        kinds = ((LiveOrdered, LiveUnordered), (Ordered, Unordered))[self._going.random() < 0.5]
        self.sources = {f"source{number}": kinds[self.loose]() for number in range(rng.randint(1, 2))}
        self.here = tuple(self.sources)
        self._bounds = {source: rng.choice(data.BOUNDS[:4]) if self.loose else 0 for source in self.sources}
        self._made = 0
        self._gone: list[Node] = []

    def world(self, devices: int) -> World:
        """Splits for each device."""
        rng, base = self._rng, self._rng.choice((0, -37, 10**15))
        wild = rng.random() < 0.3
        found: dict[str, Any] = {}
        for device in (f"d{number}" for number in range(rng.randint(1, devices))):
            found[device] = {
                source: {
                    f"{device}/{part}": data.items(
                        rng.randbytes(4 * rng.choice((40, 30, 20, 6) if self._local else (20, 12, 6, 0))),
                        [f"{device}a{part}", f"{device}b{part}"],
                        base,
                        in_order=not self.loose,
                        wild=wild,
                    )
                    for part in range(rng.randint(1, 2))
                }
                for source in self.sources
            }
        return World(found, self._bounds)

    def node(self, nodes: Sequence[Node]) -> Node:
        """One more, behind those that there are."""
        rng = self._rng
        verb = rng.choice((*PLAIN, "merge", *KEYED, *KEYED))
        plain = [node.name for node in nodes if node.verb in PLAIN]
        all_of = [*self.here, *(node.name for node in nodes)]
        choices = [*self.here, *plain] if verb in PAIRED else all_of
        if self._local and rng.random() < _NEAR:
            choices = [*self.here, *plain]
        above = tuple(rng.choice(choices[-5:]) for _ in range(1 + (verb in ("merge", *PAIRED))))
        self._made += 1
        ttl = rng.choice(TTLS) if verb == "task" else None
        node = Node(f"{verb}{self._made}", verb, above, ttl=ttl, shown=rng.random() < 0.7)
        return self._given(node)

    def _given(self, node: Node) -> Node:
        rng = self._rng
        given: Any = None
        if node.verb in PLAIN:
            given = rng.choice(PLAIN[node.verb])
        elif node.verb == "task":
            given = rng.choice(TASKS)
        elif node.verb in ("fold", "window_fold"):
            given = rng.choice(FOLDS)
        elif node.verb == "join":
            given = *rng.choice(INTERVALS), rng.choice(("inner", "left"))
        window = rng.choice(WINDOWS) if node.verb.startswith("window") else None
        if node.verb == "window_join":
            window = rng.choice(SHARED)
            given = "inner" if isinstance(window, Global | Sliding) else rng.choice(("inner", "left"))
        key = "key" if self._local and rng.random() < _NEAR else rng.choice(KEYS)
        if node.verb.endswith("aggregate"):
            given = self._aggregates(key, node.verb)
        return replace(node, given=given, key=key, window=window)

    def _aggregates(self, key: Any, verb: str) -> dict[str, Any]:
        """What an aggregate computes, and when a window gives results before its end: only where it reads
        what an `order` lets go, which is behind the clock.
        """
        rng = self._rng
        given = {
            "n": rng.choice(summaries.NUMBERS),
            "x": rng.choice(summaries.SIZES),
            "note": rng.choice(summaries.NOTES),
            "top": rng.choice(summaries.TOPS),
        }
        if key != "key":
            given["key"] = summaries.KEY
        early = rng.choice(EARLIES) if verb == "window_aggregate" else None
        if early is not None and self.loose:
            given["early"] = early
        return given

    def changed(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """One change."""
        rng = self._rng
        kinds = ("attach", "insert", "remove", "replace", "replace", "other code", "return", "migrate")
        what = rng.choice((*kinds, *("other code",) * 6, *("migrate",) * 4) if self._local else kinds)
        if what == "return" and self._gone:
            node = self._gone.pop()
            known = {*self.here, *(one.name for one in nodes)}
            return (*nodes, node) if known >= set(node.above) and node.name not in known else nodes
        if what == "attach" and len(nodes) < NODES_MAX:
            return (*nodes, self.node(nodes))
        if not nodes:
            return nodes
        chained = [at for at, one in enumerate(nodes) if any(type(one.given) in chain for chain in CHAINS)]
        at = rng.choice(chained) if what == "migrate" and chained else rng.randrange(len(nodes))
        node = nodes[at]
        if what == "replace":
            return (*nodes[:at], self._given(node), *nodes[at + 1 :])
        if what in ("other code", "migrate"):
            return (*nodes[:at], self._other_code(node), *nodes[at + 1 :])
        if what == "insert" and self.loose and len(nodes) < NODES_MAX:
            self._made += 1
            verb = rng.choice(("map", "filter"))
            new = replace(self._given(Node(f"{verb}{self._made}", verb, node.above[:1])), key="key")
            return (*nodes[:at], new, replace(node, above=(new.name, *node.above[1:])), *nodes[at + 1 :])
        if what == "remove":
            return self._without(nodes, node)
        return nodes

    def _other_code(self, node: Node) -> Node:
        """Another task of the same state, or another function."""
        if node.verb == "task":
            chain: Sequence[type] = next((one for one in CHAINS if type(node.given) in one), ())
            later = chain[chain.index(type(node.given)) :] if chain else (type(node.given),)
            same = [task for task in TASKS if type(task) in later]
            ttl = self._rng.choice((node.ttl, node.ttl, *TTLS))
            return replace(node, given=self._rng.choice(same), ttl=ttl)
        return self._given(node) if node.verb in PLAIN else node

    def _without(self, nodes: tuple[Node, ...], gone: Node) -> tuple[Node, ...]:
        """Those below it read what it read; where that could change their order, they go as well."""
        self._gone.append(gone)
        left: list[Node] = []
        removed = {gone.name}
        for node in nodes:
            if node.name in removed:
                continue
            if removed & set(node.above):
                if not self.loose:
                    removed.add(node.name)
                    continue
                above = tuple(gone.above[0] if one == gone.name else one for one in node.above)
                left.append(replace(node, above=above))
            else:
                left.append(node)
        return tuple(left)

    def stage(self, nodes: tuple[Node, ...], here: tuple[str, ...]) -> Stage:
        """The plan of a flow that runs in the cloud. here: the sources that it has."""
        return stage_of({one: self.sources[one] for one in here}, nodes)

    def _without_source(self, nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[str, ...]]:
        """The nodes and the sources; where chance says so without the last source, and what reads it."""
        if self._local or len(self.here) < 2 or self._going.random() < 0.8:
            return nodes, self.here
        gone = {self.here[-1]}
        for node in nodes:
            if gone & set(node.above):
                gone.add(node.name)
        return tuple(node for node in nodes if node.name not in gone), self.here[:-1]

    def following(self, before: Stage, nodes: tuple[Node, ...]) -> Stage | None:
        """The next revision, with what it has to drop; None where it would have no one answer."""
        stage, rng = self.stage(*self._without_source(nodes)), self._rng
        if stage.document == before.document:
            return None
        old, new = before.document, stage.document
        refused = [one.step for one in change_of(old, new).steps if one.state == "refused"]
        kept = [one.step for one in change_of(old, new).steps if one.state == "kept"]
        drop = (*refused, *(step for step in kept if rng.random() < 0.1))
        change = change_of(old, new, drop)
        if change.refusals:
            return None
        stage = replace(stage, change=change, drop=drop)
        return stage if self._has_one_answer(before.plan.graph, stage.plan.graph, stage.kept()) else None

    def _has_one_answer(self, old: Graph, new: Graph, kept: frozenset[str]) -> bool:
        sources = set(self.sources)
        return all(
            _ordered(old, step) == _ordered(new, step)
            and old.ancestors(step) & sources == new.ancestors(step) & sources
            for step in kept
        )


def _ordered(graph: Graph, step: str) -> list[bool]:
    """Of each input of a step, whether an `order` stands before it."""
    return [graph[one.step].operator.kind == "order" for one in graph[step].inputs]


def graph_of(sources: Mapping[str, Any], nodes: Sequence[Node]) -> Graph:
    """The graph of some nodes."""
    return flow_of(sources, nodes).graph()


def flow_of(sources: Mapping[str, Any], nodes: Sequence[Node]) -> Flow:
    """The flow of some nodes."""
    flow = Flow("random")
    streams: dict[str, Any] = {}
    for name, source in sources.items():
        streams[name] = flow.source(name, source, out=Reading, partitioned_by="key")
        streams[name].sink(f"{name}_out", Table(f"{name}_table"))
    for node in nodes:
        made = _MAKERS[node.verb](node, [streams[one] for one in node.above])
        streams[node.name] = made
        if node.shown:
            made.sink(f"{node.name}_out", Table(f"{node.name}_table"))
    return flow


def _keyed(node: Node, stream: Any, port: int = 0) -> Any:
    keyed = stream.key_by(node.key, name=f"{node.name}_by{port}")
    return keyed if node.window is None else keyed.window(node.window)


def _fold(node: Node, above: Sequence[Any]) -> Any:
    make, function, result = node.given
    return _keyed(node, above[0]).fold(node.name, make, function, result=result)


def _reduce(node: Node, above: Sequence[Any]) -> Any:
    return _keyed(node, above[0]).reduce(node.name, summaries.newest)


def _join(node: Node, above: Sequence[Any]) -> Any:
    left, right = (_keyed(replace(node, window=None), stream, port) for port, stream in enumerate(above))
    if node.window is not None:
        return left.join(node.name, right, records.pair, within=node.window, how=node.given)
    after, before, how = node.given
    return left.join(node.name, right, records.pair, lower=us(after), upper=us(before), how=how)


def _task(node: Node, above: Sequence[Any]) -> Any:
    ttl = None if node.ttl is None else us(node.ttl)
    return _keyed(node, above[0]).process(node.name, node.given, ttl=ttl)


def _aggregate(node: Node, above: Sequence[Any]) -> Any:
    """Behind it its results become records that any step can follow."""
    out: Any = summaries.Rolling if node.window is None else summaries.Summary
    if isinstance(node.window, Global):
        out = summaries.Everything
    made = _keyed(node, above[0]).aggregate(node.name, out=out, **node.given)
    return made.map(records.told, name=f"{node.name}_told")


def _iterate(node: Node, above: Sequence[Any]) -> Any:
    return above[0].iterate(node.name, records.halve, until=node.given, rounds_max=2)


_MAKERS: Mapping[str, Any] = {
    "map": lambda node, above: above[0].map(node.given, name=node.name),
    "filter": lambda node, above: above[0].filter(node.given, name=node.name),
    "flat_map": lambda node, above: above[0].flat_map(node.given, name=node.name),
    "merge": lambda node, above: above[0].merge(node.name, above[1]),
    "iterate": _iterate,
    "log": lambda node, above: above[0].log(node.name, every=node.given),
    "task": _task,
    "reduce": _reduce,
    "window_reduce": _reduce,
    "fold": _fold,
    "window_fold": _fold,
    "join": _join,
    "window_join": _join,
    "aggregate": _aggregate,
    "window_aggregate": _aggregate,
    "broadcast": lambda node, above: above[0].broadcast(node.name, above[1], records.look_up, key="key"),
}
