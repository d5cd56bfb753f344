"""The graph: a flow as data, steps with stable ids and typed inputs.

Made by `Flow` (or by hand), read by the planner, the runtime and the Spark compiler. Guarantees: ids are
unique and plain, inputs exist, there is no cycle, and `steps` is in topological order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from geartrain.declarations.options import may_be_secret, path_options
from geartrain.declarations.secrets import secret_name
from geartrain.errors import ConfigError, FlowError
from geartrain.graph.operator import Operator

Tier = Literal["edge", "cloud"]
_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}\Z")
_INSTANCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\.[1-9][0-9]{0,8}\Z")
CHANNEL_ID = re.compile(r"_?[A-Za-z][A-Za-z0-9_]{0,62}(-[A-Za-z0-9_-]{1,62})?\Z")
"""The id of a channel: that of a step, or of a variant of its rows, which names the readers left out."""
_INSTANCE_CHARS_MAX = 63
"""As many as the name of a PostgreSQL schema may have."""

DEAD_LETTERS = "_dead_letters"
"""The channel of every flow for inputs that could not be processed."""
LATE = "_late"
"""The channel of every flow for records that were late at their birth."""
STATE = "_state"
"""The channel of a flow whose devices may leave steps with state to the cloud: the cells of these."""
CLAIMS = "_claims"
"""The channel of a flow whose devices may take steps with state from the cloud: what they say of that."""
GIVEN = "_given"
"""What goes down to such devices: the cells that they have claimed."""
OVERTAKEN = "_overtaken"
"""The sink of every flow for records that its clock had passed before they came into the log."""


def is_of_system(channel: str) -> bool:
    """Whether a channel has rows of Geartrain's own, and not those of a stream of the flow."""
    return channel.startswith("_")


class Grouping(Enum):
    """How the records of a stream are dealt to the instances of the step that reads it."""

    FORWARD = "forward"
    HASH = "hash"
    BROADCAST = "broadcast"


class Input(msgspec.Struct, frozen=True):
    """One input of a step: the id of the step whose output it reads, and the grouping."""

    step: str
    grouping: Grouping = Grouping.FORWARD


class Step(msgspec.Struct, frozen=True):
    """One node. `out` is the Python type of its output, None for a sink; `tier` a pin, None for the
    planner.
    """

    id: str
    operator: Operator
    inputs: tuple[Input, ...] = ()
    out: Any = None
    tier: Tier | None = None
    parallelism: int = 1

    def __post_init__(self) -> None:
        check_id(self.id)


def check_id(step_id: str) -> None:
    """Raise `FlowError` unless `step_id` can name a step (its channel, topic, table and state)."""
    if not _ID.match(step_id):
        raise FlowError(
            f"step id {step_id!r}: use a name of letters, digits and _ that starts with a letter (at most 63)"
        )


def check_instance(name: str) -> None:
    """Raise `FlowError` unless `name` can name an instance of an app: the app's name, a dot and a number."""
    if not _INSTANCE.match(name) or len(name) > _INSTANCE_CHARS_MAX:
        raise FlowError(
            f"instance {name!r}: write the app's name, a dot and a number from 1 to 999999999, such as "
            f"traffic.3 (at most {_INSTANCE_CHARS_MAX} characters)"
        )


class Graph(msgspec.Struct, frozen=True, dict=True):
    """A flow as data: a named graph of steps without a cycle, in topological order. `Flow.graph` makes it.

    Args:
        name: the flow's name, or that of an instance of it, such as `traffic.3`.
        steps: each reads only steps before it.

    Raises:
        FlowError: for an id that is there twice, or an input that is no step before it.
    """

    name: str
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if "." in self.name:
            check_instance(self.name)
        else:
            check_id(self.name)
        by_id: dict[str, Step] = {}
        for step in self.steps:
            if step.id in by_id:
                raise FlowError(f"flow {self.name}: two steps are named {step.id!r}; give one another name")
            for source in step.inputs:
                if source.step not in by_id:
                    raise FlowError(
                        f"flow {self.name}: step {step.id!r} reads {source.step!r}, which is not a "
                        "step before it"
                    )
            by_id[step.id] = step
        self.__dict__["_by_id"] = by_id

    @cached_property
    def _by_id(self) -> dict[str, Step]:
        """There since the graph was made; one that was copied makes it again."""
        return {step.id: step for step in self.steps}

    @cached_property
    def _below(self) -> dict[str, list[Step]]:
        """Made when first asked for: most graphs on the way to a plan never are."""
        below: dict[str, list[Step]] = {}
        for step in self.steps:
            for above in {i.step for i in step.inputs}:
                below.setdefault(above, []).append(step)
        return below

    def __getitem__(self, step_id: str) -> Step:
        try:
            return self._by_id[step_id]
        except KeyError:
            raise FlowError(
                f"flow {self.name} has no step {step_id!r}; its steps: {', '.join(self._by_id)}"
            ) from None

    def consumers(self, step_id: str) -> tuple[Step, ...]:
        """The steps that read the output of a step.

        Args:
            step_id: the step.

        Returns:
            They, in topological order.
        """
        return tuple(self._below.get(step_id, ()))

    def sources(self) -> tuple[Step, ...]:
        """The steps without inputs.

        Returns:
            They, in topological order.
        """
        return tuple(s for s in self.steps if not s.inputs)

    def sinks(self) -> tuple[Step, ...]:
        """The steps without output.

        Returns:
            They, in topological order.
        """
        return tuple(s for s in self.steps if s.out is None)

    def ancestors(self, step_id: str) -> frozenset[str]:
        """All steps above a step, itself included.

        Args:
            step_id: the step.

        Returns:
            Their ids.
        """
        found: set[str] = set()
        waiting = [step_id]
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting += [i.step for i in self[current].inputs]
        return frozenset(found)

    def sources_above(self) -> dict[str, frozenset[str]]:
        """The sources above each step, itself if it is one.

        Returns:
            Their ids, by the id of the step; steps below the same sources share a set.
        """
        found: dict[str, frozenset[str]] = {}
        for step in self.steps:
            sets = [found[i.step] for i in step.inputs] or [frozenset((step.id,))]
            found[step.id] = sets[0] if all(s is sets[0] for s in sets) else sets[0].union(*sets[1:])
        return found

    def named(self, instance: str) -> Graph:
        """The graph as one instance of its flow: topics, log and tables have that name instead of the flow's.

        Args:
            instance: the app's name, a dot and a number, such as `traffic.3`; "" for the graph as it is.

        Returns:
            The copy.

        Raises:
            FlowError: for a name that is not such.
        """
        if not instance:
            return self
        check_instance(instance)
        return replace(self, name=instance)

    def with_options(self, options: Mapping[str, Mapping[str, Any]], where: str = "--set") -> Graph:
        """A graph whose steps have other options.

        Args:
            options: by step id, option to value; one that a person wrote on a command line is a
                `geartrain.declarations.options.Text`.
            where: how the sentence of an error begins.

        Returns:
            The copy.

        Raises:
            ConfigError: for a step or option that does not exist, or a value that does not fit.
        """
        unknown = sorted(set(options) - set(self._by_id))
        if unknown:
            raise ConfigError(
                f"{where}: flow {self.name} has no step {unknown[0]!r}; its steps: {', '.join(self._by_id)}"
            )
        return replace(
            self, steps=tuple(self._with_options(s, options.get(s.id, {}), where) for s in self.steps)
        )

    @staticmethod
    def _with_options(step: Step, values: Mapping[str, Any], where: str) -> Step:
        for name, value in values.items():
            _check_secret(step, name, value, f"{where} {step.id}.{name}")
        return (
            replace(step, operator=step.operator.with_options(values, f"{where} {step.id}"))
            if values
            else step
        )

    @staticmethod
    def of(name: str, steps: Iterable[Step]) -> Graph:
        """A graph of some steps.

        Args:
            name: the flow's name.
            steps: in any topological order.

        Returns:
            The graph.

        Raises:
            FlowError: as for the class.
        """
        return Graph(name, tuple(steps))


def key_step(graph: Graph | Mapping[str, Step], stream: str) -> Step | None:
    """The `key_by` whose keys the records of a stream have, None for a stream without keys.

    Of rows that carry the keys of what they were made of (partial aggregates), their step with the operator
    that reads them.
    """
    step = graph[stream]
    while step.operator.keeps_key:
        step = graph[step.inputs[0].step]
    if step.operator.row_key is not None:
        return replace(step, operator=step.operator.row_key)
    return step if step.operator.kind == "key_by" else None


def _check_secret(step: Step, option: str, value: Any, where: str) -> None:
    """Raise `ConfigError` for a reference to a secret where none can be."""
    if not secret_name(value, where):
        return
    source, sink = (getattr(step.operator, name, None) for name in ("source", "table"))
    if sink is not None and option in may_be_secret(type(sink)):
        return
    if source is None:
        raise ConfigError(
            f"{where} = {str(value)!r}: only an option of a source, or a sink's url, can be a secret"
        )
    if option in path_options(type(source)):
        raise ConfigError(f"{where} = {str(value)!r}: a path cannot be a secret")
