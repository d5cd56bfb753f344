"""A plan: a graph, its cut, and the channels that cross it. What the agent, ingest and the host agree
on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, GIVEN, LATE, STATE, Graph, Step, Tier
from geartrain.graph.operator import StreamProperties
from geartrain.operators.sink import SinkOperator
from geartrain.planning.cuts import Costs, Cut, Reason, Rule, choose_cut, obstacle
from geartrain.planning.properties import derive_properties
from geartrain.planning.readers import channel_id, readers_on_edge
from geartrain.planning.sharing import crossing, is_again, rows_of, settled, share
from geartrain.planning.splitting import PARTIAL, may_split, put_back, with_partials
from geartrain.records.letters import Letter
from geartrain.schema import Schema, derive
from geartrain.state.claims import Claim, GivenCell
from geartrain.state.moving import StateCell


class Channel(msgspec.Struct, frozen=True):
    """A stream that crosses the cut. Its id is that of the step whose output it is, or a system channel's
    name; a variant names the readers left out, too (`readers`).

    kind: the Python type of its records; sources: the source steps above it, whose splits make its watermark;
    stream: the step whose output it is; left_out: the readers that its rows are not for, because the devices
    that send them run these themselves; entry: under which step's name a fragment in the cloud is fed with
    its rows.
    """

    id: str
    kind: Any
    sources: frozenset[str]
    stream: str = ""
    left_out: tuple[str, ...] = ()
    entry: str = ""

    def __post_init__(self) -> None:
        if not self.stream:
            msgspec.structs.force_setattr(self, "stream", self.id)
        if not self.entry:
            msgspec.structs.force_setattr(self, "entry", self.stream)

    @property
    def schema(self) -> Schema:
        """The schema of its records."""
        return derive(self.kind)


class Plan(msgspec.Struct, frozen=True, dict=True):
    """A graph cut in two; `channels` in topological order, the two system channels last.

    graph: the user's, with the aggregates that this cut splits as two steps each. Where the devices need a
    `key_by` and the cloud its keys, there is a second one in the cloud. A plan of several cuts (`mixed`) is
    the cloud's alone: `cut` then has what all of them have on the edge. whole: the graph before it was cut,
    with every aggregate that may be split as two steps, None for a plan of several cuts.
    """

    graph: Graph
    cut: Cut
    channels: tuple[Channel, ...]
    whole: Graph | None = None

    @cached_property
    def edge(self) -> tuple[str, ...]:
        """Ids of the steps on the edge, in topological order."""
        return tuple(s.id for s in self.graph.steps if s.id in self.cut.edge)

    @cached_property
    def cloud(self) -> tuple[str, ...]:
        """Ids of the steps in the cloud, in topological order."""
        steps = self.graph.steps
        return tuple(s.id for s in steps if s.id not in self.cut.edge and s.operator.kind != "arrival")

    @property
    def down(self) -> tuple[Channel, ...]:
        """The streams that go down to the devices, each named by the step that deals it."""
        return channels_of(self.graph, [s.id for s in self.graph.steps if s.operator.kind == "deal"])

    @property
    def names(self) -> dict[str, str]:
        """By stream, the channel that it leaves a device by, where that has another name."""
        return {channel.stream: channel.id for channel in self.channels if channel.stream != channel.id}

    def channel(self, channel_id: str) -> Channel:
        """The channel of that id; raises `KeyError`."""
        return self._by_id[channel_id]

    def brings(self, stream: str) -> bool:
        """Whether a stream comes whole by the channel of its own name."""
        return stream in self._by_id and self._by_id[stream].entry == stream

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
        if self._properties[step.id].born_in_cloud and not step.inputs:
            return Reason(step.id, Rule.CLOUD_SOURCE, "cloud")
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


def make_plan(
    graph: Graph,
    cut: str | Sequence[str] = "auto",
    costs: Costs | None = None,
    *,
    base: str | Sequence[str] | None = None,
) -> Plan:
    """Cut `graph` as `choose_cut` does and find its channels; raises `PlacementError`.

    base: the cut that the flow was submitted with, for a device that has another one: it says which channels
    are variants. None where `cut` is that.
    """
    graph = with_partials(graph)
    chosen = choose_cut(graph, cut, costs)
    known = chosen if base is None else choose_cut(graph, base)
    cut_graph = share(put_back(graph, chosen.edge), chosen.edge)
    up = crossing(cut_graph, chosen.edge)
    left_out = {stream: readers_on_edge(graph, stream, chosen.edge) for stream in up}
    if known.edge == chosen.edge:
        found = channels_of(cut_graph, up, left_out)
    else:
        ids = {
            stream: channel_id(stream, left, readers_on_edge(graph, stream, known.edge))
            for stream, left in left_out.items()
        }
        found = channels_of(cut_graph, up, left_out, ids)
    return Plan(cut_graph, chosen, (*found, *system_channels(graph)), graph)


def channels_of(
    graph: Graph,
    streams: Iterable[str],
    left_out: Mapping[str, tuple[str, ...]] | None = None,
    ids: Mapping[str, str] | None = None,
) -> tuple[Channel, ...]:
    """Streams as channels, each with the sources above it, the readers left out and its id, where it has
    another than the stream's.
    """
    above, found = graph.sources_above(), []
    for stream in streams:
        left = (left_out or {}).get(stream, ())
        name = (ids or {}).get(stream, stream)
        found.append(Channel(name, graph[stream].out, above[stream], stream, left))
    return tuple(found)


def system_channels(graph: Graph) -> tuple[Channel, Channel]:
    """The two channels that every flow has."""
    sources = frozenset(s.id for s in graph.sources())
    return Channel(DEAD_LETTERS, Letter, sources), Channel(LATE, Letter, sources)


def state_channel(graph: Graph) -> Channel:
    """The channel by which the cells of steps come that leave devices."""
    return Channel(STATE, StateCell, frozenset(s.id for s in graph.sources()))


def claim_channel(graph: Graph) -> Channel:
    """The channel by which devices claim the cells of steps that come to them."""
    return Channel(CLAIMS, Claim, frozenset(s.id for s in graph.sources()))


def given_channel(graph: Graph) -> Channel:
    """What goes down to devices that have claimed cells."""
    return Channel(GIVEN, GivenCell, frozenset(s.id for s in graph.sources()))
