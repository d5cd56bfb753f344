"""A plan: a graph, its cut, and the channels that cross it. What the agent, ingest and the driver agree
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph, Step, Tier
from geartrain.graph.operator import StreamProperties
from geartrain.operators.sink import SinkOperator
from geartrain.planning.cuts import Costs, Cut, Reason, Rule, choose_cut, obstacle
from geartrain.planning.properties import derive_properties
from geartrain.planning.sharing import crossing, is_again, rows_of, settled, share
from geartrain.planning.splitting import PARTIAL, may_split, put_back, with_partials
from geartrain.records.letters import Letter
from geartrain.schema import Schema, derive


class Channel(msgspec.Struct, frozen=True):
    """A stream that crosses the cut: the id of the step whose output it is, or a system channel's name.

    kind: the Python type of its records; sources: the source steps above it, whose splits make its watermark.
    """

    id: str
    kind: Any
    sources: frozenset[str]

    @property
    def schema(self) -> Schema:
        """The schema of its records."""
        return derive(self.kind)


class Plan(msgspec.Struct, frozen=True, dict=True):
    """A graph cut in two; `channels` in topological order, the two system channels last.

    graph: the user's, with the aggregates that this cut splits as two steps each. Where the devices need a
    `key_by` and the cloud its keys, there is a second one in the cloud.
    """

    graph: Graph
    cut: Cut
    channels: tuple[Channel, ...]

    @cached_property
    def edge(self) -> tuple[str, ...]:
        """Ids of the steps on the edge, in topological order."""
        return tuple(s.id for s in self.graph.steps if s.id in self.cut.edge)

    @cached_property
    def cloud(self) -> tuple[str, ...]:
        """Ids of the steps in the cloud, in topological order."""
        return tuple(s.id for s in self.graph.steps if s.id not in self.cut.edge)

    @property
    def down(self) -> tuple[Channel, ...]:
        """The streams that go down to the devices, each named by the step that deals it."""
        return _channels(self.graph, [s for s in self.graph.steps if s.operator.kind == "deal"])

    def channel(self, channel_id: str) -> Channel:
        """The channel of that id; raises `KeyError`."""
        return self._by_id[channel_id]

    @cached_property
    def _by_id(self) -> dict[str, Channel]:
        return {channel.id: channel for channel in self.channels}

    @cached_property
    def _properties(self) -> dict[str, StreamProperties]:
        return derive_properties(self.graph)

    def reason(self, step: Step) -> Reason:
        """Why a step stands where it stands."""
        kind, tier = step.operator.kind, step.tier
        on_edge: Tier = "edge" if step.id in self.cut.edge else "cloud"
        if kind == "deal":
            return Reason(step.id, Rule.DEALS)
        if step.operator.only_tier is not None and not isinstance(step.operator, SinkOperator):
            return Reason(step.id, Rule.ONLY_TIER, on_edge, kind)
        if tier is not None:
            return Reason(step.id, Rule.PINNED, tier)
        if kind == PARTIAL:
            return Reason(step.id, Rule.PARTIAL, on_edge)
        if on_edge == "edge":
            return Reason(step.id, Rule.LEGAL if step.inputs else Rule.SOURCE, on_edge)
        if is_again(step) or self._moved(step):
            return Reason(step.id, Rule.CROSSES_ONCE, other=rows_of(self.graph, step.id))
        why_not = obstacle(step, self.cut.edge, self._properties)
        if why_not is None or (
            why_not.rule is Rule.KEYS_NOT_LOCAL and may_split(self.graph, step, self._properties)
        ):
            return Reason(step.id, Rule.ASKED)
        return why_not

    def _moved(self, step: Step) -> bool:
        """Whether it could stand on the edge but for what would then cross twice."""
        if step.operator.kind != "key_by" or obstacle(step, self.cut.edge, self._properties) is not None:
            return False
        return step.id not in settled(self.graph, self.cut.edge | {step.id})


def make_plan(graph: Graph, cut: str | Sequence[str] = "auto", costs: Costs | None = None) -> Plan:
    """Cut `graph` as `choose_cut` does and find its channels; raises `PlacementError`."""
    graph = with_partials(graph)
    chosen = choose_cut(graph, cut, costs)
    graph = share(put_back(graph, chosen.edge), chosen.edge)
    sources = frozenset(s.id for s in graph.sources())
    up = [graph[stream] for stream in crossing(graph, chosen.edge)]
    system = [Channel(DEAD_LETTERS, Letter, sources), Channel(LATE, Letter, sources)]
    return Plan(graph, chosen, (*_channels(graph, up), *system))


def _channels(graph: Graph, steps: Sequence[Step]) -> tuple[Channel, ...]:
    """The outputs of `steps` as channels, each with the sources above it."""
    above = graph.sources_above() if steps else {}
    return tuple(Channel(step.id, step.out, above[step.id]) for step in steps)
