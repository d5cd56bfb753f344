"""The low-level face: processors joined by `>>`, with groupings that say which instance sees which record.

Compiles to the same `Graph` as the fluent face, so that runtime, planner and Spark know no difference.
Guarantees: a grouping is a pure function of the record, so results do not depend on where instances run; only
a processor below `hash_by`, `global_`, `custom` or `broadcast` has a key, and with it state and timers.

>>> from typing import ClassVar
>>> from geartrain import Context, Table, Task
>>> from geartrain.processor import Input, Output, Processor, dataflow, hash_by
>>> from geartrain.testing import TestingSource, run_flow
>>> class Split(Task[str, str]):
...     def on_next(self, line: str, ctx: Context[str, None]) -> None:
...         for word in line.split():
...             ctx.emit(word)
>>> class Count(Task[str, str]):
...     state: ClassVar[type[int]] = int
...
...     def on_next(self, word: str, ctx: Context[str, int]) -> None:
...         ctx.state += 1
...         ctx.emit(f"{word} {ctx.state}")
>>> lines = Input("lines", TestingSource(items=[(1, "a rose is"), (2, "a rose")]), out=str)
>>> split, count = Processor(Split(), parallelism=2), Processor(Count(), parallelism=4)
>>> graph = dataflow("words", lines >> split >> hash_by(str) >> count >> Output("out", Table("counts")))
>>> sorted(run_flow(graph).tables["out"])
[(1, 'a 1'), (1, 'is 1'), (1, 'rose 1'), (2, 'a 2'), (2, 'rose 2')]
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from heapq import heapify, heappop, heappush
from typing import Any, Literal, TypeAlias

from geartrain.errors import FlowError, GeartrainError
from geartrain.graph import Graph, Grouping, Step
from geartrain.graph import Input as StepInput
from geartrain.operators.copies import INSTANCES_MAX, Copies, KeyByCopy
from geartrain.operators.key_by import KeyBy
from geartrain.operators.merge import Merge
from geartrain.operators.operator import Operator
from geartrain.operators.sink import sink_operator
from geartrain.operators.source import SourceOperator
from geartrain.operators.stateless import Stateless
from geartrain.placement.properties import with_order
from geartrain.schema import derive
from geartrain.sink import Sink
from geartrain.source import Source
from geartrain.task import Task, task_output
from geartrain.verbs import process_of

Kind = Literal["hash", "global", "custom", "broadcast", "shuffle", "local"]


@dataclass(frozen=True)
class Deal:
    """Which instance of the processor below sees a record; made by the functions of this module."""

    kind: Kind
    by: str | Callable[[Any], Any] | None = None

    def __rshift__(self, other: object) -> Way:
        raise FlowError(f"a grouping stands between two processors: write a >> {self.kind}(...) >> b")


def hash_by(key: str | Callable[[Any], Any]) -> Deal:
    """One state for each value of a field, or of a function that returns a str, int, bool, bytes or tuple."""
    return Deal("hash", key)


def global_() -> Deal:
    """One state for all records."""
    return Deal("global")


def custom(instance: Callable[[Any], int]) -> Deal:
    """One state for each instance; `instance(record) % parallelism` is its number."""
    return Deal("custom", instance)


def broadcast() -> Deal:
    """Every instance sees every record, and keeps a state of its own."""
    return Deal("broadcast")


def shuffle() -> Deal:
    """Any instance; the task keeps no state."""
    return Deal("shuffle")


def local() -> Deal:
    """The instance where the record is; the task keeps no state. What `a >> b` means too."""
    return Deal("local")


class Node:
    """What `>>` joins: an `Input`, a `Processor` or an `Output`."""

    id: str

    def __rshift__(self, other: Node | Deal) -> Way:
        return Way((), self) >> other


@dataclass(frozen=True, eq=False)
class Input(Node):
    """A source named `id`, of records of type `out`."""

    id: str
    source: Source[Any]
    out: Any
    partitioned_by: str | None = None


@dataclass(frozen=True, eq=False)
class Processor(Node):
    """A task, in `parallelism` instances; its id is the name of the task's class in small letters, or given.

    out, ttl, initial and order are as for `KeyedStream.process`.
    """

    task: Task[Any, Any]
    id: str = ""
    parallelism: int = 1
    out: Any = None
    ttl: timedelta | None = None
    initial: Mapping[Any, Any] | None = None
    order: Literal["canonical", "arrival"] = "canonical"

    def __post_init__(self) -> None:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self.task).__name__).lower()
        object.__setattr__(self, "id", self.id or words.strip("_"))
        if not 1 <= self.parallelism <= INSTANCES_MAX:
            raise FlowError(
                f"processor {self.id!r}: parallelism={self.parallelism} is not 1 to {INSTANCES_MAX}"
            )

    @property
    def keeps(self) -> bool:
        """Whether it needs a key: for a state, for timers, or for options of these."""
        timed = type(self.task).on_notify is not Task.on_notify
        return self.task.state is not None or timed or self.ttl is not None or self.initial is not None


@dataclass(frozen=True, eq=False)
class Output(Node):
    """A sink named `id`."""

    id: str
    sink: Sink


@dataclass(frozen=True)
class Way:
    """Nodes joined so far: each link is (from, grouping, to); `last` is where the next one begins."""

    links: tuple[tuple[Node, Deal, Node], ...]
    last: Node
    deal: Deal | None = None

    def __rshift__(self, other: Node | Deal) -> Way:
        if isinstance(other, Deal):
            if self.deal is not None:
                raise FlowError(
                    f"two groupings after {self.last.id!r}: one says which instance sees a record"
                )
            return Way(self.links, self.last, other)
        if not isinstance(other, Node):
            raise FlowError(
                f"{self.last.id!r} >> {other!r}: a Processor, an Output or a grouping must follow"
            )
        link = (self.last, self.deal or local(), other)
        return Way((*self.links, link), other)


Inputs: TypeAlias = list[tuple[Node, Deal]]


def dataflow(name: str, *ways: Way) -> Graph:
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
            self._step(node.id, SourceOperator(node.source, node.partitioned_by), (), node.out)
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
        kind = node.out or task_output(node.task)
        if kind is None:
            raise self._mistake(
                node, f"declare class {type(node.task).__name__}(Task[In, Out]) or pass out=..."
            )
        if deal.kind not in ("shuffle", "local"):
            where = f"flow {self.flow}, processor {node.id!r}"
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
        if kind is not None:
            try:
                derive(kind)
            except GeartrainError as error:
                raise FlowError(f"flow {self.flow}, step {step!r}: {error}") from None
        self.steps.append(Step(step, operator, inputs, kind, operator.only_tier, parallelism))
        self.kinds[step] = kind
        return step

    def _check_field(self, step: str, kind: Any, name: str | None) -> None:
        names = [f.name for f in derive(kind).fields]
        if name is not None and name not in names:
            raise FlowError(
                f"flow {self.flow}, step {step!r}: {kind.__name__} has no field {name!r}; "
                f"its fields: {', '.join(names)}"
            )

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
