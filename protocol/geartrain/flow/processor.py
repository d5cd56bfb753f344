"""The low-level face: processors joined by `>>`, with groupings that say which instance sees which record.

Compiles to the same `Graph` as the fluent face, so that runtime, planner and Spark know no difference.
Guarantees: a grouping is a pure function of the record, so results do not depend on where instances run. Only
a processor below `hash_by`, `global_`, `custom` or `broadcast` has a key, and with it state and timers.

>>> from typing import ClassVar
>>> from geartrain import Context, Table, Task
>>> from geartrain.flow.processor import Input, Output, Processor, dataflow, hash_by
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from geartrain.declarations.sink import Sink
from geartrain.declarations.source import Source
from geartrain.declarations.task import Task
from geartrain.errors import FlowError
from geartrain.graph.graph import Graph
from geartrain.operators.copies import INSTANCES_MAX

Kind = Literal["hash", "global", "custom", "broadcast", "shuffle", "local"]


@dataclass(frozen=True)
class Deal:
    """Which instance of the processor below sees a record. The functions of this module make it.

    Args:
        kind: the grouping's name.
        by: the field or function that it goes by.
    """

    kind: Kind
    by: str | Callable[[Any], Any] | None = None

    def __rshift__(self, other: object) -> Way:
        raise FlowError(f"a grouping stands between two processors: write a >> {self.kind}(...) >> b")


def hash_by(key: str | Callable[[Any], Any]) -> Deal:
    """One state for each key.

    Args:
        key: a field, or a function of the record that returns a str, int, bool, bytes or tuple.

    Returns:
        The grouping, to stand between two processors.
    """
    return Deal("hash", key)


def global_() -> Deal:
    """One state for all records.

    Returns:
        The grouping, to stand between two processors.
    """
    return Deal("global")


def custom(instance: Callable[[Any], int]) -> Deal:
    """One state for each instance, and a function that says which instance a record goes to.

    Args:
        instance: returns a number; the instance is `instance(record) % parallelism`.

    Returns:
        The grouping, to stand between two processors.
    """
    return Deal("custom", instance)


def broadcast() -> Deal:
    """Every instance sees every record, and keeps a state of its own.

    Returns:
        The grouping, to stand between two processors.
    """
    return Deal("broadcast")


def shuffle() -> Deal:
    """Any instance sees the record; the task keeps no state.

    Returns:
        The grouping, to stand between two processors.
    """
    return Deal("shuffle")


def local() -> Deal:
    """The instance sees the record that is where the record is; the task keeps no state. `a >> b` means it,
    too.

    Returns:
        The grouping, to stand between two processors.
    """
    return Deal("local")


class Node:
    """What `>>` joins: an `Input`, a `Processor` or an `Output`."""

    id: str

    def __rshift__(self, other: Node | Deal) -> Way:
        return Way((), self) >> other


@dataclass(frozen=True, eq=False)
class Input(Node):
    """A source.

    Args:
        id: the id of its step.
        source: where the records are born.
        out: their type.
        partitioned_by: as for `Flow.source`.
        devices: as for `Flow.source`.
        every: as for `Flow.source`.
    """

    id: str
    source: Source[Any]
    out: Any
    partitioned_by: str | None = None
    devices: str = "all"
    every: timedelta | None = None


@dataclass(frozen=True, eq=False)
class Processor(Node):
    """A task, in several instances.

    Args:
        task: what is run.
        id: the id of its step; the name of the task's class in small letters by default.
        parallelism: how many instances, 1 or more.
        out: the type of what it emits; the second type argument of its `Task[In, Out]` by default.
        ttl: as for `KeyedStream.process`.
        initial: as for `KeyedStream.process`.
        order: as for `KeyedStream.process`.

    Raises:
        FlowError: for a `parallelism` out of range.
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
    """A sink.

    Args:
        id: the id of its step.
        sink: where the records come to rest.
    """

    id: str
    sink: Sink


@dataclass(frozen=True)
class Way:
    """Nodes that are joined by `>>` so far; `dataflow` takes it.

    Args:
        links: each is (from, grouping, to).
        last: the node where the next link begins.
        deal: the grouping that waits for the next node.
    """

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


def dataflow(name: str, *ways: Way) -> Graph:
    """The graph of processors that are joined by `>>`.

    Args:
        name: the flow's name.
        ways: what `>>` gave.

    Returns:
        The graph, with the `order` steps that it needs.

    Raises:
        FlowError: for a task with state that has no key above it, a type that is missing, or an id that is
            there twice.
    """
    from geartrain.flow.processor_graph import graph_of

    return graph_of(name, ways)
