"""The fluent face: `Flow`, what a user begins a dataflow with; its streams are in `geartrain.flow.stream`.

Builds a `Graph`, one step a call. Guarantees: a wrong name, type or key field is an error at once, in one
sentence that says what to write; nothing runs before the flow is run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from geartrain.declarations.source import Source
from geartrain.errors import FlowError
from geartrain.flow.stream import SourceStream
from geartrain.flow.verbs import check_field, check_step
from geartrain.graph.graph import Graph, Input, Step, Tier, check_id, key_step
from geartrain.graph.operator import Operator
from geartrain.operators.sink import check_tables
from geartrain.operators.source import (
    SourceOperator,
    check_told_apart,
    declared_source,
    pinned_source,
)
from geartrain.planning.properties import with_order

if TYPE_CHECKING:
    from geartrain.operators.deal import Device

T = TypeVar("T")


class Flow:
    """A dataflow under construction. Begin with `source`, chain verbs on its streams, and end each in a sink.

    Nothing runs before the flow is run: by `gear run`, by agents and Spark, or by
    `geartrain.testing.run_flow`.

    Args:
        name: names the flow's topics, log and tables: letters, digits and _, beginning with a letter, at most
            63.

    Raises:
        FlowError: for a name that is not such.

    >>> from geartrain import Flow
    >>> from geartrain.testing import TestingSink, TestingSource, run_flow
    >>> flow = Flow("double")
    >>> numbers = flow.source("numbers", TestingSource(items=[(1, 10), (2, 20)]), out=int)
    >>> numbers.map(lambda n: 2 * n, name="double", out=int).sink("out", TestingSink("out"))
    >>> run_flow(flow).tables["out"]
    [(1, 20), (2, 40)]
    """

    def __init__(self, name: str) -> None:
        check_id(name)
        self.name = name
        self._steps: dict[str, Step] = {}

    def source(
        self,
        step: str,
        source: Source[T],
        *,
        out: type[T],
        partitioned_by: str | None = None,
        devices: str = "all",
        every: timedelta | None = None,
    ) -> SourceStream[T]:
        """A stream of the records of a source.

        Args:
            step: the id of the step, which names it in options, tables of counters and the plan.
            source: where the records are born.
            out: the type of the records: a `Record`, a dataclass, a NamedTuple or a scalar.
            partitioned_by: a field of which each value is seen in one split only, and so on one device only.
                Steps that are keyed by it may then run on the device. A promise that does not hold gives
                wrong results.
            devices: which of the devices that run the flow have the source, as a selector: `"kind=truck"`,
                `"site!=north"`, a device's name, or several with commas, which mean and. The others open
                nothing of it, and nobody waits for them. Where there is no fleet, as in `run_flow` and
                `gear run`, the source is read whatever it says.
            every: about how long it is from one record of a key to the next, such as from one reading of a
                sensor to its next. It changes no result: the cut `auto` is estimated by it. A second is taken
                where nothing is said.

        Returns:
            The records that are not late; those that are come from its `late`.

        Raises:
            FlowError: for an id that is taken, a type that is no record, a field that it does not have, or a
                selector or time that cannot be.

        >>> from geartrain import Flow, Record
        >>> from geartrain.testing import TestingSink, TestingSource, run_flow
        >>> class Reading(Record):
        ...     sensor: str
        ...     celsius: float
        >>> flow = Flow("heat")
        >>> items = TestingSource(items=[(1, Reading("a", 20.5))])
        >>> readings = flow.source("readings", items, out=Reading, partitioned_by="sensor")
        >>> readings.sink("out", TestingSink("out"))
        >>> run_flow(flow).tables["out"]
        [(1, Reading(sensor='a', celsius=20.5))]
        """
        operator = declared_source(
            f"flow {self.name}, source {step!r}", source, partitioned_by, devices, every
        )
        added = self.add_step(step, operator, (), out)
        stream = SourceStream[T](self, added, out)
        self.check_field(step, out, partitioned_by)
        return stream

    def graph(self) -> Graph:
        """The flow as a checked graph, with the `order` steps that it needs.

        Returns:
            The steps in topological order.

        Raises:
            FlowError: when it has no source or no sink, or two sinks that are one table.
        """
        graph = with_order(Graph(self.name, tuple(self._steps.values())))
        if not graph.sources():
            raise FlowError(f"flow {self.name} has no source: begin with flow.source(...)")
        if not graph.sinks():
            raise FlowError(f"flow {self.name} has no sink: end a stream with .sink(id, Table(...))")
        check_told_apart(graph)
        check_tables(graph)
        if any(step.operator.kind == "deal" for step in graph.steps):
            from geartrain.planning.down import with_down

            graph = with_down(graph)
        return graph

    def add_step(self, step_id: str, operator: Operator, inputs: tuple[Input, ...], out: Any) -> str:
        """Add a step; the verbs of the streams do it.

        Args:
            step_id: its id.
            operator: what it does.
            inputs: the steps that it reads, and how their records are dealt to its instances.
            out: the type of its records, None for a sink.

        Returns:
            The id.

        Raises:
            FlowError: for an id that is taken, a type that is no record, or a function that is async.
        """
        if step_id in self._steps:
            raise FlowError(
                f"flow {self.name}: two steps are named {step_id!r}; "
                f"give this one another id, such as {step_id + '_2'!r}"
            )
        where = f"flow {self.name}, step {step_id!r}"
        check_step(where, operator, out)
        self._steps[step_id] = Step(step_id, operator, inputs, out, operator.only_tier)
        return step_id

    def keyed_by(self, step_id: str) -> Operator | None:
        """The operator that keys the records of a step.

        Args:
            step_id: the step.

        Returns:
            The operator, None where the records have no keys.
        """
        step = key_step(self._steps, step_id)
        return None if step is None else step.operator

    def check_field(self, step: str, out: Any, field: str | None) -> None:
        """Check that a record type has a field.

        Args:
            step: the step that asks, for the sentence of the error.
            out: the record type.
            field: the field's name; None is always right.

        Raises:
            FlowError: where it has none of that name.
        """
        check_field(f"flow {self.name}, step {step!r}", out, field)

    def pin(self, step_id: str, tier: Tier, device: Device | None = None) -> None:
        """Pin a step to a tier, as `Stream.at` does.

        Args:
            step_id: the step.
            tier: `"edge"` or `"cloud"`. A source at `"cloud"` is read by the platform's own device.
            device: of a step below the cloud: to which device each record that it reads goes.

        Raises:
            FlowError: for another tier, for a step that can only stand on the other one, and where no device
                can be told.
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
        if isinstance(old.operator, SourceOperator) and device is None:
            where = f"flow {self.name}, source {step_id!r}"
            placed = pinned_source(where, old.operator, tier)
            self._steps[step_id] = replace(old, operator=placed, tier=tier if tier == "edge" else None)
            return
        if device is None:
            self._steps[step_id] = Step(old.id, old.operator, old.inputs, old.out, tier, old.parallelism)
            return
        if tier == "cloud":
            raise FlowError(f"flow {self.name}, step {step_id!r}: the cloud is one place: leave device= out")
        from geartrain.planning.down import with_device

        graph = with_device(Graph(self.name, tuple(self._steps.values())), step_id, device)
        self._steps = {step.id: step for step in graph.steps}
