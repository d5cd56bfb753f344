"""One plan of the cloud's part for devices whose cuts differ.

Each device plans by its own cut (`make_plan`), and sends the channels of that. The cloud's plan is made for
all cuts in use. It has every step that some cut leaves to the cloud. A stream that some devices make
themselves is put together (`union`) with what the cloud makes of the other devices' records. The rows of a
channel are fed to the readers that they are for, and to no other (`readers`).

Guarantees: whichever device has which of the cuts, the records, event times, origins and dead letters are
those that any single cut gives. A stream that comes by several ways is in
no order, so that an `order` step stands before a reader that needs one. Where some devices run a step with
state and others leave it to the cloud, the plan has the channels by which its cells come and are claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec.structs import replace

from geartrain.graph.graph import Graph, Input, Step
from geartrain.operators.arrival import Arrival
from geartrain.operators.union import Union
from geartrain.planning.cuts import Cut
from geartrain.planning.plan import Channel, Plan, claim_channel, make_plan, state_channel
from geartrain.planning.properties import derive_properties, with_order
from geartrain.planning.splitting import MERGE, PARTIAL, free_name, put_back, with_partials

CutText = str | Sequence[str]
"""As `choose_cut` takes it."""


def make_mixed_plan(graph: Graph, base: CutText, others: Sequence[CutText] = ()) -> Plan:
    """The cloud's plan for devices that have the base cut or one of `others`; raises `PlacementError`.

    With no other cut than the base it is that of `make_plan`.
    """
    graph = with_partials(graph)
    plans = {plan.cut.edge: plan for plan in (make_plan(graph, cut, base=base) for cut in (base, *others))}
    first = next(iter(plans.values()))
    if len(plans) == 1:
        return first
    edge = frozenset.intersection(*plans)
    whole = put_back(graph, frozenset().union(*plans))
    channels = {channel.id: channel for plan in plans.values() for channel in plan.channels}
    place = {step.id: number for number, step in enumerate(whole.steps)}
    system = first.channels[-2:]
    up = sorted(
        (channel for channel in channels.values() if channel not in system),
        key=lambda channel: (place[channel.stream], channel.id != channel.stream, channel.id),
    )
    mixing = _Mixing(whole, edge)
    entered = [mixing.enter(channel, alone=_is_alone(channel, up)) for channel in up]
    moving = frozenset().union(*plans) - edge
    if any(s.operator.stateful and s.operator.kind != PARTIAL for s in whole.steps if s.id in moving):
        system = (*system, state_channel(graph), claim_channel(graph))
    return Plan(with_order(mixing.graph()), Cut(edge), (*entered, *system))


def claimable(graph: Graph) -> dict[str, str]:
    """The steps that a device may claim the cells of, each with the field that its keys are values of."""
    properties, found = derive_properties(graph), dict[str, str]()
    for step in graph.steps:
        inputs = [properties[one.step] for one in step.inputs]
        domains = {one.domain for one in inputs if one.key_local}
        local = all(one.key_local for one in inputs) and len(domains) == 1
        if step.operator.stateful and step.operator.kind != MERGE and local and (domain := domains.pop()):
            found[step.id] = domain
    return found


def _is_alone(channel: Channel, channels: Sequence[Channel]) -> bool:
    return sum(other.stream == channel.stream for other in channels) == 1


class _Mixing:
    """The cloud's graph, while channels are led into it."""

    def __init__(self, graph: Graph, edge: AbstractSet[str]) -> None:
        self._graph, self._edge = graph, edge
        self._taken = {step.id for step in graph.steps}
        self._after: dict[str, list[Step]] = {}  # by step, those that stand right behind it
        self._fed: dict[tuple[str, int], list[str]] = {}  # by reader and its input, what it reads
        for step in graph.steps:
            for port, source in enumerate(step.inputs):
                if step.id not in edge and source.step not in edge:
                    self._fed[step.id, port] = [source.step]

    def enter(self, channel: Channel, *, alone: bool) -> Channel:
        """Lead the rows of a channel to the readers that they are for.

        alone: no other channel has rows of its stream. Where the cloud does not make the stream either, they
        are fed under its name.
        """
        stream = self._graph[channel.stream]
        if alone and stream.id in self._edge:
            self._lead(stream.id, stream.id, channel.left_out)
            return channel
        ordering = stream.operator.kind == "order" and stream.id not in self._edge
        above = stream.inputs[0].step if ordering else stream.id
        entry = free_name(stream.id, "up", self._taken)
        self._after.setdefault(above, []).append(Step(entry, Arrival(), (Input(above),), stream.out))
        if ordering:  # what a device has put in order may wait once more beside what others send
            self._fed[stream.id, 0].append(entry)
        else:
            self._lead(stream.id, entry, channel.left_out)
        return replace(channel, entry=entry)

    def _lead(self, stream: str, node: str, left_out: Sequence[str]) -> bool:
        """Feed the readers of `stream` with the rows of `node`, but for those left out; whether any is."""
        found = False
        for reader in self._graph.consumers(stream):
            for port, source in enumerate(reader.inputs):
                if source.step == stream and reader.id not in left_out and reader.id not in self._edge:
                    self._fed.setdefault((reader.id, port), []).append(node)
                    found = True
            if reader.id in left_out and reader.operator.kind == "key_by":
                found |= self._key_again(reader, node, left_out)
        return found

    def _key_again(self, reader: Step, node: str, left_out: Sequence[str]) -> bool:
        """Give rows their keys a second time, which the device has not sent; whether anything reads them."""
        operator: Any = reader.operator
        name = free_name(reader.id, "again", self._taken)
        stands = self._after.setdefault(reader.id, [])
        stands.append(Step(name, replace(operator, again=True), (Input(node),), reader.out))
        if self._lead(reader.id, name, left_out):
            return True
        stands[:] = [step for step in stands if step.id != name]
        self._taken.discard(name)
        return False

    def graph(self) -> Graph:
        """The graph, with a union before each reader of several ways of one stream."""
        unions: dict[tuple[str, ...], str] = {}
        steps: list[Step] = []
        for step in self._graph.steps:
            inputs = list(step.inputs)
            for port, source in enumerate(step.inputs):
                ways = tuple(self._fed.get((step.id, port), (source.step,)))
                if len(ways) > 1 and ways not in unions:
                    unions[ways] = free_name(source.step, "union", self._taken)
                    kind = self._graph[source.step].out
                    steps.append(Step(unions[ways], Union(), tuple(map(Input, ways)), kind))
                inputs[port] = Input(unions.get(ways, ways[0]), source.grouping)
            steps.append(replace(step, inputs=tuple(inputs)))
            steps += self._after.get(step.id, ())
        return Graph(self._graph.name, tuple(steps))
