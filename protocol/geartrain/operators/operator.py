"""What an operator is: the meaning of a step, apart from where it runs.

One operator, one file in this folder. `open` turns its declaration into a function from batch to batch that a
fused chain calls; the same function runs in the agent, inside Spark and in `gear run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from geartrain.batch import Batch, DeadLetter
from geartrain.errors import ConfigError
from geartrain.runtime.state import KeyedState

Transform = Callable[[Batch], Batch]


@dataclass(frozen=True, slots=True)
class Services:
    """What the runtime lends to an opened operator.

    step: its id; out: the Python type of its output; reject: hands over a dead letter; state: the keyed
    state.
    """

    step: str
    out: Any
    reject: Callable[[DeadLetter], None]
    state: KeyedState


class Operator(Protocol):
    """The declaration of a step's meaning. Immutable, and free of I/O.

    kind: the operator's name; stateful: it keeps state for each key.
    """

    @property
    def kind(self) -> str:
        """The operator's name."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether it keeps state for each key."""
        ...

    def open(self, services: Services) -> Transform:
        """A function that maps a batch of the input stream to a batch of the output stream."""
        ...

    def close(self) -> None:
        """Called once when the process ends cleanly."""
        ...

    def with_options(self, values: Mapping[str, Any], where: str) -> Operator:
        """A copy with other options; raises `ConfigError`."""
        ...


class Plain:
    """Base of the operators that keep no state and have no options."""

    stateful = False

    def close(self) -> None:
        """Nothing to release."""

    def with_options(self, values: Mapping[str, Any], where: str) -> Any:
        """This operator has no options, so any is a `ConfigError`."""
        raise ConfigError(f"{where}: this step has no options, so {', '.join(sorted(values))} cannot be set")
