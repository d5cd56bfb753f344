"""Stages: which steps of a query run between two of its shuffles, and what goes from one stage to the next.

They stand between the compiled queries and the chains and fragments that run them. Stage 0 holds the steps
without state where the log is read. Each further stage is one shuffle, dealt by shard, and the fragment
behind it.

Guarantees: a step stands in exactly one stage. Every stream that a stage reads comes from stages above it. It
is dealt so that all records of a key meet in one shard, whichever streams bring them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from geartrain.graph.graph import Graph, Input, Step, key_step
from geartrain.graph.operator import Plain, Services, StreamProperties, Transform
from geartrain.operators.union import UNION
from geartrain.planning.shuffles import broadcast_ports

Dealing = Literal["key", "origin", "all"]
"""Where a record of a stream goes: to the shard of its key; to that of its origin; to every shard."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A stream that enters a stage.

    stream: the step whose output it is; entry: the name under which the stage is fed with it, which differs
    where one stream is dealt in two ways to one stage.
    """

    stream: str
    stage: int
    entry: str
    dealing: Dealing


@dataclass(frozen=True, slots=True)
class Stage:
    """The steps of one stage. graph: that of the flow, as this stage is fed; inputs: none for stage 0."""

    number: int
    graph: Graph
    steps: frozenset[str]
    inputs: tuple[Boundary, ...] = ()


class Relay(Plain, frozen=True):
    """Stands in a stage's graph for a stream that is dealt to it in a second way; it never runs."""

    kind = "relay"
    keeps_key = True

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """All is kept."""
        return inputs[0]

    def open(self, services: Services) -> Transform:
        """The batch itself."""
        return lambda batch: batch


def make_stages(
    graph: Graph, steps: frozenset[str], numbers: Mapping[str, int], least: int = 0
) -> tuple[Stage, ...]:
    """The stages of the query that runs `steps`, from 0 up to `least` or more; a stage may have no steps."""
    last = max((least, *(numbers[s] for s in steps)))
    chosen = [frozenset(s for s in steps if numbers[s] == number) for number in range(last + 1)]
    return (
        Stage(0, graph, chosen[0]),
        *(_stage(graph, number, chosen[number]) for number in range(1, last + 1)),
    )


def _stage(graph: Graph, number: int, steps: frozenset[str]) -> Stage:
    wanted: dict[str, dict[tuple[str, int], Dealing | None]] = {}
    for step in graph.steps:
        for port, source in enumerate(step.inputs) if step.id in steps else ():
            if source.step not in steps:
                wanted.setdefault(source.step, {})[step.id, port] = _dealing(graph, step, port)
    boundaries: list[Boundary] = []
    entries: dict[tuple[str, int], str] = {}
    taken = {step.id for step in graph.steps}
    for stream, readers in wanted.items():
        ways: list[Dealing] = [way for way in ("key", "origin", "all") if way in readers.values()]
        plain = next((way for way in ways if way != "all"), None)
        if plain is None and None in readers.values():
            plain = "origin"
            ways.insert(0, plain)
        for way in ways:
            entry = stream if way == ways[0] else _free_name(f"{stream[:48]}_{way}", taken)
            boundaries.append(Boundary(stream, number, entry, way))
            entries |= {at: entry for at, dealing in readers.items() if (dealing or plain) == way}
    relays = {b.entry: b.stream for b in boundaries if b.entry != b.stream}
    return Stage(number, _relayed(graph, relays, entries), steps, tuple(boundaries))


def _dealing(graph: Graph, step: Step, port: int) -> Dealing | None:
    """How an input of a step must be dealt; None where the step does not mind."""
    small = broadcast_ports(step)
    if small:
        return "all" if port in small else "origin"
    is_keyed_union = step.operator.kind == UNION and key_step(graph, step.id) is not None
    return "key" if step.operator.stateful or is_keyed_union else None


def _free_name(name: str, taken: set[str]) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name}{number}", number + 1
    taken.add(free)
    return free


def _relayed(graph: Graph, relays: Mapping[str, str], entries: Mapping[tuple[str, int], str]) -> Graph:
    """`graph` with the relays (by name, the stream of each), whose readers read them."""
    if not relays:
        return graph
    steps: list[Step] = []
    for step in graph.steps:
        inputs = tuple(replace(i, step=entries.get((step.id, p), i.step)) for p, i in enumerate(step.inputs))
        steps.append(replace(step, inputs=inputs))
        relaying = [name for name, stream in relays.items() if stream == step.id]
        steps += [Step(name, Relay(), (Input(step.id),), step.out) for name in relaying]
    return Graph(graph.name, tuple(steps))
