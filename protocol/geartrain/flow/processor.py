"""The low-level face: processors joined by `>>`, with groupings that say which instance sees which record.

Compiles to the same `Graph` as the fluent face, so that runtime, planner and Spark know no difference.
Guarantees: a grouping is a pure function of the record, so results do not depend on where instances run; only
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


def dataflow(name: str, *ways: Way) -> Graph:
    """The graph of all `ways`, with the `order` steps that it needs; raises `FlowError`."""
    from geartrain.flow.processor_graph import graph_of

    return graph_of(name, ways)
