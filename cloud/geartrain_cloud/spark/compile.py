"""What a plan's cloud part becomes in Spark: one query of the steps without state, one of the others.

It stands before the record's path: it decides which channels, steps and sinks each query has.

Guarantees: every sink belongs to exactly one query. A step that keeps state, or whose output depends on more
than its input, runs in exactly one query. Exactly one query hands out a dead letter, even where a stateless
step above it runs in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, GIVEN, LATE, STATE, Graph, Step
from geartrain.planning import Channel, Plan
from geartrain.planning.native_table import NATIVE, channel_of, fits, steps_below
from geartrain.planning.shuffles import stage_numbers
from geartrain_cloud.spark.clocks import sources_of
from geartrain_cloud.spark.stages import Stage, make_stages

STATELESS, KEYED = "stateless", "keyed"
NOTHING: Mapping[str, tuple[str, ...]] = {}
HOSTED = "hosted"
"""The query of a flow that a host runs beside others: all its steps together."""


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query.

    channels: what it reads, and the Python type of each one's records; direct: sinks that take a channel as
    it is; stages: its steps; owned: steps whose dead letters it hands out, and channels whose unreadable rows
    it reports; sinks: where its rows go, system sinks and the streams that go down to devices included;
    native: the step that is a plan of Spark's own, empty for none; `stages` then has the steps below it;
    variants: the channels whose rows are not fed under the channel's own id; given_up: by channel the layouts
    of former types whose rows are dead letters.
    """

    name: str
    graph: Graph
    channels: Mapping[str, Any]
    direct: Mapping[str, tuple[str, ...]]
    stages: tuple[Stage, ...]
    owned: frozenset[str]
    sinks: tuple[str, ...]
    native: str = ""
    variants: Mapping[str, Channel] = field(default_factory=dict)
    given_up: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def entry(self, channel: str) -> str:
        """The stream under which the rows of a channel are fed."""
        return self.variants[channel].entry if channel in self.variants else channel

    def stream(self, channel: str) -> str:
        """The step whose output the rows of a channel are."""
        return self.variants[channel].stream if channel in self.variants else channel

    @property
    def sources(self) -> frozenset[str]:
        """The sources above its channels, whose clocks make its own."""
        return frozenset().union(*sources_of(self.graph, map(self.entry, self.channels)).values())

    @property
    def prefix(self) -> frozenset[str]:
        """Steps that run where the log is read."""
        return self.stages[0].steps

    @property
    def keyed(self) -> frozenset[str]:
        """Steps that run behind a shuffle."""
        return frozenset().union(*(stage.steps for stage in self.stages[1:]))


def compile_queries(
    plan: Plan, table: Mapping[str, Callable[[Plan, Step], bool]] = NATIVE
) -> tuple[Query, ...]:
    """The queries of a plan; raises `PlacementError` for a graph that cannot run in the cloud."""
    graph = plan.graph
    numbers = stage_numbers(graph, frozenset(plan.cloud))
    native = [s.id for s in graph.steps if s.id in plan.cloud and fits(plan, s, table)]
    apart = steps_below(plan, native) | set(native)
    # A step that only native plans read is theirs: the key of their windows.
    apart |= {
        s.id
        for s in graph.steps
        if s.id in plan.cloud and graph.consumers(s.id) and all(c.id in apart for c in graph.consumers(s.id))
    }
    common = _common_queries(plan, frozenset(plan.cloud) - apart, numbers)
    taken = frozenset().union(*(query.owned for query in common))
    queries = list(common)
    for step in native:
        queries.append(_native_query(plan, step, taken))
        taken |= queries[-1].owned
    return tuple(queries)


def hosted_query(plan: Plan, given_up: Mapping[str, tuple[str, ...]] = NOTHING) -> Query:
    """The whole cloud part of a plan as one query, which a host runs beside those of other flows.

    given_up: by channel the layouts of former types whose rows are dead letters. No step of it is native.
    Raises `PlacementError` for a graph that cannot run in the cloud.
    """
    graph, cloud = plan.graph, frozenset(plan.cloud)
    numbers = stage_numbers(graph, cloud)
    channels = {channel.id: channel.kind for channel in plan.channels}
    sinks = [step.id for step in graph.sinks() if step.id in cloud]
    system = {DEAD_LETTERS: (DEAD_LETTERS,), LATE: (LATE,)}
    direct = _direct(plan, channels, sinks) | system
    stages = make_stages(graph, cloud - _taken(direct), numbers)
    down = [channel.id for channel in plan.down]
    names = (*sinks, *down, *((GIVEN,) if CLAIMS in channels else ()), DEAD_LETTERS, LATE)
    owned = cloud | {channel.stream for channel in plan.channels}
    variants = _variants(plan)
    return Query(HOSTED, graph, channels, direct, stages, owned, names, "", variants, dict(given_up))


def part_of(query: Query, steps: frozenset[str], owned: frozenset[str]) -> Query:
    """Some steps of a hosted query alone, with no dead letters but those of `owned`; `steps` has all that
    stand above them in the cloud.
    """
    graph = query.graph
    numbers = {step: stage.number for stage in query.stages for step in stage.steps}
    direct = {channel: tuple(s for s in sinks if s in steps) for channel, sinks in query.direct.items()}
    channels = {
        channel: kind
        for channel, kind in query.channels.items()
        if channel not in (DEAD_LETTERS, LATE, STATE, CLAIMS)
        and any(reader.id in steps for reader in graph.consumers(query.entry(channel)))
    }
    stages = make_stages(graph, steps & numbers.keys(), numbers, len(query.stages) - 1)
    sinks = tuple(sink for sink in query.sinks if sink in steps)
    return replace(
        query,
        channels=channels,
        direct={channel: direct[channel] for channel in channels},
        stages=stages,
        owned=owned,
        sinks=(*sinks, DEAD_LETTERS, LATE),
        variants={channel: one for channel, one in query.variants.items() if channel in channels},
    )


def _native_query(plan: Plan, step: str, taken: frozenset[str]) -> Query:
    graph = plan.graph
    key = graph[step].inputs[0].step
    channel = plan.channel(channel_of(plan, graph[step]))
    below = steps_below(plan, [step])
    sinks = tuple(s.id for s in graph.sinks() if s.id in below)
    owned = (below | {step, key, channel.id}) - taken
    channels, stages = {channel.id: channel.kind}, (Stage(0, graph, below),)
    names = (*sinks, DEAD_LETTERS, LATE)
    return Query(f"native_{step}", graph, channels, {channel.id: ()}, stages, owned, names, step)


def _common_queries(plan: Plan, cloud: frozenset[str], numbers: Mapping[str, int]) -> tuple[Query, ...]:
    """Those of the steps that are not native."""
    graph = plan.graph
    # A step whose output nobody reads runs as well: on a device it would, and its dead letters count.
    deals = [channel.id for channel in plan.down]
    ends = [s.id for s in graph.steps if s.id in cloud and (s.id in deals or not graph.consumers(s.id))]
    keyed_steps = _keyed_steps(graph, cloud, numbers, ends)
    stateless_steps = _above(graph, (s for s in ends if s not in keyed_steps), cloud)
    sinks = [s.id for s in graph.sinks() if s.id in cloud]
    plain = [s for s in sinks if s not in keyed_steps]
    down = [s for s in deals if s not in keyed_steps]
    keyed_channels = _channels(plan, keyed_steps)
    stateless_channels = _channels(plan, stateless_steps) | {
        c.id: c.kind for c in plan.channels if c.id in (DEAD_LETTERS, LATE)
    }
    direct = _direct(plan, stateless_channels, plain) | {
        DEAD_LETTERS: (DEAD_LETTERS,),
        LATE: (LATE,),
    }
    stateless = Query(
        STATELESS,
        graph,
        stateless_channels,
        direct,
        make_stages(graph, stateless_steps - _taken(direct), numbers),
        (cloud | _streams(plan, stateless_channels)) - keyed_steps - _streams(plan, keyed_channels),
        (*plain, *down, DEAD_LETTERS, LATE),
        variants=_variants(plan),
    )
    if not keyed_steps:
        return (stateless,)
    tables = [s for s in sinks if s in keyed_steps]
    direct = _direct(plan, keyed_channels, tables)
    stages = make_stages(graph, keyed_steps - _taken(direct), numbers)
    owned = keyed_steps | _streams(plan, keyed_channels)
    down = [s for s in deals if s in keyed_steps]
    names, variants = (*tables, *down, DEAD_LETTERS, LATE), _variants(plan)
    keyed = Query(KEYED, graph, keyed_channels, direct, stages, owned, names, variants=variants)
    return stateless, keyed


def _keyed_steps(
    graph: Graph, cloud: frozenset[str], numbers: Mapping[str, int], ends: Iterable[str]
) -> frozenset[str]:
    """Steps behind a shuffle, all cloud steps above them, and those of `ends` (and all above) that share a
    step with these which must not run twice.
    """
    found = _above(graph, (s for s in cloud if numbers[s]), cloud)
    grown = True
    while grown:
        once = {s for s in found if not graph[s].operator.replayable}
        grown = False
        for end in ends:
            above = _above(graph, [end], cloud)
            if end not in found and above & once:
                found, grown = found | above, True
    return found


def _above(graph: Graph, steps: Iterable[str], cloud: frozenset[str]) -> frozenset[str]:
    """`steps` and the cloud steps above them."""
    return frozenset().union(*(graph.ancestors(s) for s in steps)) & cloud


def _channels(plan: Plan, steps: frozenset[str]) -> dict[str, Any]:
    """The channels that `steps` read, with the types of their records, and that of their moved state."""
    stateful = any(step.operator.stateful for step in plan.graph.steps if step.id in steps)
    return {
        c.id: c.kind
        for c in plan.channels
        if c.id not in (DEAD_LETTERS, LATE)
        and (any(s.id in steps for s in plan.graph.consumers(c.entry)) if c.id != STATE else stateful)
    }


def _variants(plan: Plan) -> dict[str, Channel]:
    """The channels whose rows are fed under another name than their id."""
    return {channel.id: channel for channel in plan.channels if channel.entry != channel.id}


def _streams(plan: Plan, channels: Iterable[str]) -> frozenset[str]:
    """The steps whose outputs come by `channels`."""
    return frozenset(plan.channel(channel).stream for channel in channels)


def _direct(plan: Plan, channels: Iterable[str], sinks: list[str]) -> dict[str, tuple[str, ...]]:
    """The sinks among `sinks` that read a channel itself."""
    found = {}
    for channel in channels:
        readers = plan.graph.consumers(plan.channel(channel).entry)
        found[channel] = tuple(reader.id for reader in readers if reader.id in sinks)
    return found


def _taken(direct: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    return frozenset(sink for several in direct.values() for sink in several)
