"""What a plan's cloud part becomes in Spark: one query, which a host runs beside those of other flows.

It stands before the record's path: it decides which channels, steps and sinks the query has, and in which
stage each step runs.

Guarantees: each step and each sink is in the query once, and a dead letter is handed out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, GIVEN, LATE, STATE, Graph
from geartrain.planning import Channel, Plan
from geartrain.planning.shuffles import stage_numbers
from geartrain_cloud.spark.clocks import sources_of
from geartrain_cloud.spark.stages import Stage, make_stages

NOTHING: Mapping[str, tuple[str, ...]] = {}
HOSTED = "hosted"
"""Under which name the tables of a flow note how far it has come."""


@dataclass(frozen=True, slots=True)
class Query:
    """The cloud part of one flow.

    channels: what it reads, and the Python type of each one's records; direct: sinks that take a channel as
    it is; stages: its steps; owned: steps whose dead letters it hands out, and channels whose unreadable rows
    it reports; sinks: where its rows go, system sinks and the streams that go down to devices included;
    variants: the channels whose rows are not fed under the channel's own id; given_up: by channel the layouts
    of former types whose rows are dead letters.
    """

    graph: Graph
    channels: Mapping[str, Any]
    direct: Mapping[str, tuple[str, ...]]
    stages: tuple[Stage, ...]
    owned: frozenset[str]
    sinks: tuple[str, ...]
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


def hosted_query(plan: Plan, given_up: Mapping[str, tuple[str, ...]] = NOTHING) -> Query:
    """The whole cloud part of a plan as one query, which a host runs beside those of other flows.

    given_up: by channel the layouts of former types whose rows are dead letters.
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
    return Query(graph, channels, direct, stages, owned, names, variants, dict(given_up))


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


def _variants(plan: Plan) -> dict[str, Channel]:
    """The channels whose rows are fed under another name than their id."""
    return {channel.id: channel for channel in plan.channels if channel.entry != channel.id}


def _direct(plan: Plan, channels: Iterable[str], sinks: list[str]) -> dict[str, tuple[str, ...]]:
    """The sinks among `sinks` that read a channel itself."""
    found = {}
    for channel in channels:
        readers = plan.graph.consumers(plan.channel(channel).entry)
        found[channel] = tuple(reader.id for reader in readers if reader.id in sinks)
    return found


def _taken(direct: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    return frozenset(sink for several in direct.values() for sink in several)
