"""Shuffles: how many of them lie above each step in the cloud, which is the number of its stage.

Pure functions of a graph. The compiler of the cloud makes its stages of it, and `gear plan` shows it where
no Spark is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from geartrain.errors import PlacementError
from geartrain.graph.graph import Graph, Step, key_step
from geartrain.operators.union import UNION
from geartrain.planning.splitting import PARTIAL


def broadcast_ports(step: Step) -> frozenset[int]:
    """The inputs of a step that go to every shard: small streams that its other inputs look things up in."""
    return frozenset(getattr(step.operator, "broadcast_ports", ()))


def stage_numbers(graph: Graph, cloud: frozenset[str]) -> dict[str, int]:
    """The stage of every step: how many shuffles lie above it; 0 for the steps on devices.

    A step with state reads on without a shuffle where its records lie in the shard of their key already (a
    task behind its `order`). Raises `PlacementError` for one that reads a stream without keys.
    """
    numbers: dict[str, int] = {}
    in_place: set[str] = set()  # streams whose records lie in the shard of their key
    for step in graph.steps:
        above = [i.step for i in step.inputs]
        number = max((numbers[a] for a in above), default=0) if step.id in cloud else 0
        numbers[step.id] = number
        if step.id not in cloud:
            continue
        if broadcast_ports(step):
            numbers[step.id] = number + 1
        elif step.operator.stateful:
            _check_keys(graph, step)
            numbers[step.id] = max(numbers[a] + (a not in in_place) for a in above)
        if _lies_in_place(graph, step, numbers, in_place):
            in_place.add(step.id)
    return numbers


def _lies_in_place(graph: Graph, step: Step, numbers: Mapping[str, int], in_place: AbstractSet[str]) -> bool:
    """Whether the output of a step in the cloud lies in the shard of its key."""
    number, above = numbers[step.id], [i.step for i in step.inputs]
    if step.operator.kind == UNION:  # what comes from a stage above is dealt to it by key
        keyed = key_step(graph, step.id) is not None
        return keyed and number > 0 and all(a in in_place or numbers[a] < number for a in above)
    if step.operator.stateful:
        return step.operator.keeps_key or step.operator.kind == PARTIAL
    return step.operator.keeps_key and above[0] in in_place and numbers[above[0]] == number


def _check_keys(graph: Graph, step: Step) -> None:
    for source in step.inputs:
        if key_step(graph, source.step) is None:
            raise PlacementError(
                f"step {step.id!r} keeps state and runs in the cloud, but the records of {source.step!r} "
                f"have no key: put a key_by between {source.step!r} and {step.id!r}"
            )
