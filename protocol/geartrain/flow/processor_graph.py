"""From nodes joined by `>>` to the `Graph` that the fluent face makes too.

Under `geartrain.flow.processor`. Guarantees: a node that nothing leads to, a circle, streams of several types
in one node, or a task that keeps state without a key is an error. It is a `FlowError` of one sentence that
names the node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from geartrain.errors import FlowError
from geartrain.flow.processor import Deal, Input, Node, Output, Processor, Way
from geartrain.flow.verbs import check_field, check_step, process_of, task_kind
from geartrain.graph.graph import Graph, Grouping, Step
from geartrain.graph.graph import Input as StepInput
from geartrain.graph.operator import Operator
from geartrain.operators.copies import Copies, KeyByCopy
from geartrain.operators.key_by import KeyBy
from geartrain.operators.merge import Merge
from geartrain.operators.sink import sink_operator
from geartrain.operators.source import declared_source
from geartrain.operators.stateless import Stateless
from geartrain.planning.properties import with_order

Inputs: TypeAlias = list[tuple[Node, Deal]]


def graph_of(name: str, ways: Sequence[Way]) -> Graph:
    """The graph of all `ways`, with the `order` steps that it needs; raises `FlowError`."""
    links = dict.fromkeys(link for way in ways for link in way.links)
    for way in ways:
        if way.deal is not None:
            raise FlowError(f"flow {name}: the grouping after {way.last.id!r} leads to nothing")
    building = _Building(name)
    inputs: dict[Node, Inputs] = defaultdict(list)
    for above, deal, below in links:
        inputs[below].append((above, deal))
    for node in _in_order(name, list(links)):
        building.add(node, inputs[node])
    return with_order(Graph(name, tuple(building.steps)))


def _in_order(name: str, links: list[tuple[Node, Deal, Node]]) -> list[Node]:
    """The nodes, each after those above it; of those that can be next, the one that was named first."""
    nodes = list(dict.fromkeys(node for above, _, below in links for node in (above, below)))
    numbers = {node: number for number, node in enumerate(nodes)}
    missing = [0] * len(nodes)
    follow: dict[Node, list[int]] = defaultdict(list)
    for above, _, below in links:
        follow[above].append(numbers[below])
        missing[numbers[below]] += 1
    ready = [number for number, count in enumerate(missing) if not count]
    heapify(ready)
    done: list[Node] = []
    while ready:
        node = nodes[heappop(ready)]
        done.append(node)
        for number in follow[node]:
            missing[number] -= 1
            if not missing[number]:
                heappush(ready, number)
    if len(done) < len(nodes):
        circle = [node.id for node, count in zip(nodes, missing, strict=True) if count]
        raise FlowError(f"flow {name}: {', '.join(circle)} lead in a circle")
    return done


@dataclass
class _Building:
    """The steps so far, and the type of each one's output."""

    flow: str
    steps: list[Step] = field(default_factory=list)
    kinds: dict[str, Any] = field(default_factory=dict)

    def add(self, node: Node, inputs: Inputs) -> None:
        if isinstance(node, Input):
            where = f"flow {self.flow}, input {node.id!r}"
            operator = declared_source(where, node.source, node.partitioned_by, node.devices, node.every)
            self._step(node.id, operator, (), node.out)
            self._check_field(node.id, node.out, node.partitioned_by)
        elif not inputs:
            raise self._mistake(node, "nothing leads to it: begin with an Input")
        elif isinstance(node, Output):
            above = self._one_stream(node, inputs)
            for name in node.sink.key:
                self._check_field(node.id, self.kinds[above], name)
            self._step(node.id, sink_operator(node.sink), (StepInput(above),), None)
        elif isinstance(node, Processor):
            self._processor(node, inputs)

    def _processor(self, node: Processor, inputs: Inputs) -> None:
        above, deal = self._one_stream(node, inputs), inputs[0][1]
        where = f"flow {self.flow}, processor {node.id!r}"
        kind = task_kind(where, node.task, node.out)
        if deal.kind not in ("shuffle", "local"):
            operator = process_of(where, node.task, node.ttl, node.initial, node.order)
            keyed = self._keyed(node, above, deal)
            self._step(node.id, operator, (StepInput(keyed, Grouping.HASH),), kind, node.parallelism)
        elif node.keeps:
            raise self._mistake(
                node, "it keeps state or timers, so it needs a key: a >> hash_by(...) >> b, or global_()"
            )
        else:
            self._step(node.id, Stateless(node.task), (StepInput(above),), kind, node.parallelism)

    def _one_stream(self, node: Node, inputs: Inputs) -> str:
        """The stream that `node` reads: its only input, or all of them merged."""
        streams = [above.id for above, _ in inputs]
        ended = next((above.id for above, _ in inputs if isinstance(above, Output)), None)
        if ended is not None:
            raise self._mistake(node, f"nothing comes out of the Output {ended!r}")
        if len({deal for _, deal in inputs}) > 1:
            raise self._mistake(node, f"the ways from {', '.join(streams)} need the same grouping")
        if len(streams) == 1:
            return streams[0]
        kinds = list(dict.fromkeys(self.kinds[stream] for stream in streams))
        if len(kinds) > 1:
            names = " and ".join(str(getattr(kind, "__name__", kind)) for kind in kinds)
            raise self._mistake(node, f"it is given records of several types: {names}")
        return self._step(f"{node.id}_merge", Merge(), tuple(map(StepInput, streams)), kinds[0])

    def _keyed(self, node: Processor, above: str, deal: Deal) -> str:
        """The stream keyed as the grouping says."""
        kind, key_id, operator = self.kinds[above], f"{node.id}_key", None
        if deal.kind == "broadcast":
            copies = self._step(f"{node.id}_copies", Copies(node.parallelism), (StepInput(above),), kind)
            return self._step(key_id, KeyByCopy(), (StepInput(copies),), kind)
        if isinstance(deal.by, str):
            self._check_field(node.id, kind, deal.by)
            operator = KeyBy.of_field(deal.by)
        elif deal.by is None:
            operator = KeyBy(_all_alike)
        else:
            operator = KeyBy(_Instance(deal.by, node.parallelism) if deal.kind == "custom" else deal.by)
        return self._step(key_id, operator, (StepInput(above),), kind)

    def _step(
        self, step: str, operator: Operator, inputs: tuple[StepInput, ...], kind: Any, parallelism: int = 1
    ) -> str:
        where = f"flow {self.flow}, step {step!r}"
        check_step(where, operator, kind)
        self.steps.append(Step(step, operator, inputs, kind, operator.only_tier, parallelism))
        self.kinds[step] = kind
        return step

    def _check_field(self, step: str, kind: Any, name: str | None) -> None:
        check_field(f"flow {self.flow}, step {step!r}", kind, name)

    def _mistake(self, node: Node, what: str) -> FlowError:
        return FlowError(f"flow {self.flow}, {type(node).__name__.lower()} {node.id!r}: {what}")


def _all_alike(value: object) -> int:
    return 0


@dataclass(frozen=True)
class _Instance:
    """The number of the instance that sees a record."""

    function: Callable[[Any], int]
    count: int

    def __call__(self, value: Any) -> int:
        number = self.function(value)
        if type(number) is not int:
            raise TypeError(f"custom(...) gave {number!r}, which is not the number of an instance")
        return number % self.count
