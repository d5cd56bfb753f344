"""The secrets that the sources of a graph ask for, and the graph with their values in place.

An agent calls this right before it opens its sources. Guarantees: only the copy that is opened has values;
the graph that is cut, named in a revision and shown keeps the references.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec.structs import replace

from geartrain.declarations.options import Revealed, secret_options
from geartrain.declarations.secrets import secret_name
from geartrain.errors import SourceError
from geartrain.graph.graph import Graph, Step
from geartrain.operators.source import SourceOperator


def secrets_of(graph: Graph) -> tuple[str, ...]:
    """The names of the secrets that the enabled sources of `graph` ask for, sorted.

    Raises `ConfigError` for a name that cannot be one.
    """
    return tuple(sorted({name for step in graph.sources() for _, name in _asked(step)}))


def with_secrets(graph: Graph, values: Mapping[str, str]) -> Graph:
    """A copy of `graph` whose sources have the values of their secrets.

    values: by name; holds every name of `secrets_of`.

    Raises `SourceError` for a source that does not take them.
    """
    return replace(graph, steps=tuple(_filled(step, values) for step in graph.steps))


def refuse_secrets(step: Step) -> None:
    """Raise `SourceError` where a source that is to open still asks for a secret: nobody has put it in."""
    for option, name in _asked(step):
        raise SourceError(
            f"source {step.id}: {option} is secret {name}, and there are no secrets here: name their folder "
            "in the agent's file (secrets = DIR), or set the option to its value"
        )


def _asked(step: Step) -> Iterator[tuple[str, str]]:
    """(option, name of its secret) of a step, where it is an enabled source."""
    operator = step.operator
    if not isinstance(operator, SourceOperator) or not operator.enabled:
        return
    source: Any = operator.source
    if not dataclasses.is_dataclass(source):
        return
    for option in dataclasses.fields(source):
        if option.init and (
            name := secret_name(getattr(source, option.name, None), f"source {step.id}: {option.name}")
        ):
            yield option.name, name


def _filled(step: Step, values: Mapping[str, str]) -> Step:
    asked = {option: values[name] for option, name in _asked(step)}
    if not asked:
        return step
    operator = cast(SourceOperator, step.operator)
    for option in secret_options(type(operator.source)) & asked.keys():
        asked[option] = Revealed(asked[option])
    try:
        source = dataclasses.replace(cast(Any, operator.source), **asked)
        return replace(step, operator=replace(operator, source=source))
    except Exception:  # noqa: BLE001 - what it says may hold the value
        kind, options = type(operator.source).__name__, " and ".join(asked)
        raise SourceError(f"source {step.id}: {kind} does not take the secret of {options}") from None
