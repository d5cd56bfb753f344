"""What a plan's cloud part becomes in Spark: one query of the steps without state, one of the others.

Stands before the record's path: it decides which channels, steps and sinks each query has. Guarantees: every
sink belongs to exactly one query; a step that keeps state runs in exactly one query; a dead letter is handed
out by exactly one query, even where a stateless step above it runs in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geartrain.errors import PlacementError
from geartrain.graph import DEAD_LETTERS, LATE, Graph, Step
from geartrain.operators.key_by import KeyBy
from geartrain.operators.sink import SinkOperator
from geartrain.placement import Plan

STATELESS, KEYED = "stateless", "keyed"


@dataclass(frozen=True, slots=True)
class Query:
    """One streaming query.

    channels: what it reads, and the Python type of each one's records; direct: sinks that take a channel as
    it is; prefix: steps that run where the log is read; keyed: steps that run behind the shuffle, state and
    all below; owned: steps whose dead letters it hands out; sinks: where its rows go, system sinks included.
    """

    name: str
    graph: Graph
    channels: Mapping[str, Any]
    direct: Mapping[str, tuple[str, ...]]
    prefix: frozenset[str]
    keyed: frozenset[str]
    owned: frozenset[str]
    sinks: tuple[str, ...]
    boundaries: tuple[str, ...] = field(default=())
    """Streams that `keyed` reads from outside: each is the output of a key_by."""


def compile_queries(plan: Plan) -> tuple[Query, ...]:
    """The queries of a plan; raises `PlacementError` for a graph that cannot run in the cloud yet."""
    graph, cloud = plan.graph, frozenset(plan.cloud)
    below = _below_state(graph, cloud)
    _check(graph, below)
    tables = [s for s in graph.steps if isinstance(s.operator, SinkOperator)]
    stateful = [s.id for s in tables if s.id in below]
    plain = [s.id for s in tables if s.id not in below]
    keyed_needs = _above(graph, below, cloud)
    queries = [_stateless(plan, plain, _above(graph, plain, cloud), owned=cloud - keyed_needs)]
    if below:
        queries.append(_keyed(plan, stateful, below, keyed_needs - below))
    return tuple(queries)


def _stateless(plan: Plan, sinks: list[str], steps: frozenset[str], owned: frozenset[str]) -> Query:
    graph = plan.graph
    channels = {
        c.id: c.kind for c in plan.channels if c.id in (DEAD_LETTERS, LATE) or _feeds(graph, c.id, steps)
    }
    direct = {
        c: tuple(s.id for s in graph.consumers(c) if s.id in sinks)
        for c in channels
        if c not in (DEAD_LETTERS, LATE)
    }
    direct |= {DEAD_LETTERS: (DEAD_LETTERS,), LATE: (LATE,)}
    taken = frozenset(s for several in direct.values() for s in several)
    every = (*sinks, DEAD_LETTERS, LATE)
    return Query(STATELESS, graph, channels, direct, steps - taken, frozenset(), owned, every)


def _keyed(plan: Plan, sinks: list[str], keyed: frozenset[str], prefix: frozenset[str]) -> Query:
    graph = plan.graph
    channels = {c.id: c.kind for c in plan.channels if _feeds(graph, c.id, prefix | keyed)}
    boundaries = {i.step for s in graph.steps if s.id in keyed for i in s.inputs if i.step not in keyed}
    return Query(
        KEYED,
        graph,
        channels,
        {},
        prefix,
        keyed,
        prefix | keyed,
        (*sinks, DEAD_LETTERS),
        tuple(sorted(boundaries)),
    )


def _below_state(graph: Graph, cloud: frozenset[str]) -> frozenset[str]:
    """Cloud steps that keep state, and all below them."""
    found: set[str] = set()
    for step in graph.steps:
        if step.id in cloud and (step.operator.stateful or any(i.step in found for i in step.inputs)):
            found.add(step.id)
    return frozenset(found)


def _above(graph: Graph, steps: frozenset[str] | list[str], cloud: frozenset[str]) -> frozenset[str]:
    """`steps` and the cloud steps above them."""
    return frozenset().union(*(graph.ancestors(s) for s in steps)) & cloud


def _feeds(graph: Graph, channel: str, steps: frozenset[str]) -> bool:
    return channel not in (DEAD_LETTERS, LATE) and any(s.id in steps for s in graph.consumers(channel))


def _check(graph: Graph, below: frozenset[str]) -> None:
    for step in graph.steps:
        if step.id not in below or not step.operator.stateful:
            continue
        above = graph[step.inputs[0].step]
        if not isinstance(above.operator, KeyBy):
            raise PlacementError(
                f"step {step.id!r} keeps state and runs in the cloud, so it must read a key_by directly, "
                f"not {above.id!r}: put the key_by after {above.id!r}"
            )
        if above.id in below:
            raise PlacementError(
                f"step {step.id!r} keeps state below {_stateful_above(graph, above)!r}, which does too, and "
                "the cloud runs one of them at most for now: pin the upper one to the edge"
            )


def _stateful_above(graph: Graph, step: Step) -> str:
    return next(s for s in sorted(graph.ancestors(step.id)) if graph[s].operator.stateful)
