"""stateless: a task without a key, called for each record by itself; what the low-level face makes of a
processor that no grouping keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from geartrain.declarations.options import check_options
from geartrain.declarations.task import Task
from geartrain.graph.operator import Plain, Running, Services, StreamProperties, transformed
from geartrain.operators.process import Processing
from geartrain.tasks.task_calls import PlainCalls


class Stateless(Plain, frozen=True):
    """Call `task` for each record; it keeps no state and sets no timers, since there is no key for them."""

    task: Task[Any, Any]
    kind = "stateless"

    def __post_init__(self) -> None:
        check_options(self.task)

    @property
    def replayable(self) -> bool:
        """If its task is."""
        return self.task.replayable

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Order is kept, as by flat_map."""
        return transformed(inputs, frozenset())

    def open(self, services: Services) -> Running:
        """The task at work."""
        return Processing(self.task, services, PlainCalls(self.task, services))

    def with_options(self, values: Mapping[str, Any], where: str) -> Stateless:
        """A copy whose task has other options."""
        return replace(self, task=self.task.with_options(values, where))
