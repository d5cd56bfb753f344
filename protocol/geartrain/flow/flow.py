"""The fluent face: `Flow`, what a user begins a dataflow with; its streams are in `geartrain.flow.stream`.

Builds a `Graph`, one step a call. Guarantees: a wrong name, type or key field is an error at once, in one
sentence that says what to write; nothing runs before the flow is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from geartrain.declarations.source import Source
from geartrain.errors import FlowError
from geartrain.flow.stream import SourceStream
from geartrain.flow.verbs import check_field, check_kind
from geartrain.graph.graph import Graph, Input, Step, Tier, check_id, key_step
from geartrain.graph.operator import Operator
from geartrain.operators.source import SourceOperator
from geartrain.planning.properties import with_order

if TYPE_CHECKING:
    from geartrain.operators.deal import Device

T = TypeVar("T")


class Flow:
    """A dataflow under construction, named `name`."""

    def __init__(self, name: str) -> None:
        """`name` names the flow's topics, log and tables; raises `FlowError` when it is not a plain name."""
        check_id(name)
        self.name = name
        self._steps: dict[str, Step] = {}

    def source(
        self, step: str, source: Source[T], *, out: type[T], partitioned_by: str | None = None
    ) -> SourceStream[T]:
        """A stream of records of type `out` from `source`.

        `partitioned_by` promises that each value of that field is seen in one split only, and so on one
        device only.
        """
        added = self.add_step(step, SourceOperator(source, partitioned_by), (), out)
        stream = SourceStream[T](self, added, out)
        self.check_field(step, out, partitioned_by)
        return stream

    def graph(self) -> Graph:
        """The flow as a checked graph, with the `order` steps that it needs.

        Raises `FlowError` when it has no source or no sink.
        """
        graph = with_order(Graph(self.name, tuple(self._steps.values())))
        if not graph.sources():
            raise FlowError(f"flow {self.name} has no source: begin with flow.source(...)")
        if not graph.sinks():
            raise FlowError(f"flow {self.name} has no sink: end a stream with .sink(id, Table(...))")
        if any(step.operator.kind == "deal" for step in graph.steps):
            from geartrain.planning.down import with_down

            graph = with_down(graph)
        return graph

    def add_step(self, step_id: str, operator: Operator, inputs: tuple[Input, ...], out: Any) -> str:
        """Add a step and return its id; raises `FlowError` for a second step of one id or a type "
        "that is no record."""
        if step_id in self._steps:
            raise FlowError(
                f"flow {self.name}: two steps are named {step_id!r}; "
                f"give this one another id, such as {step_id + '_2'!r}"
            )
        check_kind(f"flow {self.name}, step {step_id!r}", out)
        self._steps[step_id] = Step(step_id, operator, inputs, out, operator.only_tier)
        return step_id

    def keyed_by(self, step_id: str) -> Operator | None:
        """The operator that keys the output of a step, None where it has no keys."""
        step = key_step(self._steps, step_id)
        return None if step is None else step.operator

    def check_field(self, step: str, out: Any, field: str | None) -> None:
        """Raise `FlowError` unless `field` is None or a field of the record type `out`."""
        check_field(f"flow {self.name}, step {step!r}", out, field)

    def pin(self, step_id: str, tier: Tier, device: Device | None = None) -> None:
        """Pin a step to a tier; raises `FlowError` for another word than `edge` and `cloud`, or where the
        step can only stand on the other one. device: to the device that it names for each record; raises
        `FlowError` where none can be told.
        """
        if tier not in ("edge", "cloud"):
            raise FlowError(
                f"flow {self.name}, step {step_id!r}: at({tier!r}) must be at('edge') or at('cloud')"
            )
        old = self._steps[step_id]
        if old.operator.only_tier not in (None, tier):
            raise FlowError(
                f"flow {self.name}, step {step_id!r}: a {old.operator.kind} step always stands on the "
                f"{old.operator.only_tier} tier: leave .at({tier!r}) out"
            )
        if device is None:
            self._steps[step_id] = Step(old.id, old.operator, old.inputs, old.out, tier, old.parallelism)
            return
        if tier == "cloud":
            raise FlowError(f"flow {self.name}, step {step_id!r}: the cloud is one place: leave device= out")
        from geartrain.planning.down import with_device

        graph = with_device(Graph(self.name, tuple(self._steps.values())), step_id, device)
        self._steps = {step.id: step for step in graph.steps}
