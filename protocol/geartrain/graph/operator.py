"""What an operator is: the meaning of a step, apart from where it runs.

One operator, one file in this folder. `open` turns its declaration into something that the runtime drives;
the same runs in the agent, inside Spark and in `gear run`. What the planner must know of an operator (whether
it keeps state, what it does to order and keys) is declared here too. So adding an operator is adding its
file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from geartrain.errors import ConfigError, QuestionError
from geartrain.ports import Clock, Randomness
from geartrain.records.batch import Batch, DeadLetter
from geartrain.state.keyed import KeyedState
from geartrain.state.told import Told

Transform = Callable[[Batch], Batch]
"""An operator at work that needs neither state nor a watermark nor a second input."""


class Running(Protocol):
    """An operator at work that is told of time, or has several inputs."""

    def feed(self, batch: Batch, port: int) -> Batch:
        """Take a batch of the input number `port`; returns what leaves at once."""
        ...

    def advance(self, watermark: int) -> Batch:
        """No later record of any input has an event time below `watermark` (microseconds): returns what
        leaves for it.
        """
        ...


@runtime_checkable
class Stoppable(Protocol):
    """An operator at work that wants to be told when its process ends cleanly."""

    def stop(self) -> None:
        """Called once, after the last batch."""
        ...


class StreamProperties(msgspec.Struct, frozen=True):
    """What is known of a stream before it runs.

    domain: the field whose every value lives on one device only, None where none is known; in_order: within a
    split the records come in canonical order; key_local: the stream is keyed and each key lives in one split;
    key_order: it is keyed and the records of each key come in canonical order; timely: its records obey its
    watermark; from_cloud: it comes to the devices from the cloud, dealt; born_in_cloud: it
    is that of a source in the cloud.
    """

    domain: str | None
    in_order: bool
    key_local: bool = False
    key_order: bool = False
    timely: bool = True
    from_cloud: bool = False
    born_in_cloud: bool = False


class Services(msgspec.Struct, frozen=True):
    """What the runtime lends to an opened operator.

    step: its id; out: the Python type of its output; reject: hands over a dead letter; state: the keyed
    state; inputs: the Python types of its input streams; counters: those of the fragment; clock, randomness:
    lent to tasks that are not replayable, None where the runtime has none.
    """

    step: str
    out: Any
    reject: Callable[[DeadLetter], None]
    state: KeyedState
    inputs: tuple[Any, ...] = ()
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    clock: Clock | None = None
    randomness: Randomness | None = None


class Operator(Protocol):
    """The declaration of a step's meaning. Immutable, and free of I/O.

    kind: the operator's name; stateful: it keeps state for each key; ordered: it must see the records of each
    key in canonical order; replayable: its output depends on nothing but its input; keeps_key: its output is
    keyed as its first input is; broadcast_ports: the inputs of which each of its instances needs all records;
    only_tier: the tier that it cannot leave, None where it may stand on both.
    """

    @property
    def kind(self) -> str:
        """The operator's name."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether it keeps state for each key."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether it must see the records of each key in canonical order."""
        ...

    @property
    def replayable(self) -> bool:
        """Whether its output depends on nothing but its input."""
        ...

    @property
    def keeps_key(self) -> bool:
        """Whether its output is keyed as its first input is."""
        ...

    @property
    def broadcast_ports(self) -> tuple[int, ...]:
        """The inputs of which each of its instances needs all records."""
        ...

    @property
    def row_key(self) -> Any:
        """What gives its output keys that the records themselves carry, None where they carry none."""
        ...

    @property
    def only_tier(self) -> Literal["edge", "cloud"] | None:
        """The tier that it cannot leave."""
        ...

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """The properties of its output, from those of its inputs."""
        ...

    def open(self, services: Services) -> Transform | Running:
        """The operator at work, over the given services."""
        ...

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """What a saved cell of a key holds, for who asks for it. Raises `QuestionError` where the step keeps
        nothing that can be told, `SchemaError` for a cell of another type, and what user code raises.
        """
        ...

    def with_options(self, values: Mapping[str, Any], where: str) -> Operator:
        """A copy with other options; raises `ConfigError`."""
        ...


class Plain(msgspec.Struct, frozen=True):
    """Base of the operators that keep no state and have no options."""

    stateful: ClassVar[bool] = False
    keeps_key: ClassVar[bool] = False
    broadcast_ports: ClassVar[tuple[int, ...]] = ()
    only_tier: ClassVar[Literal["edge", "cloud"] | None] = None
    row_key: ClassVar[Any] = None

    @property
    def ordered(self) -> bool:
        """Whether it must see the records of each key in canonical order: not so."""
        return False

    @property
    def replayable(self) -> bool:
        """Whether its output depends on nothing but its input: so it is."""
        return True

    def derive(self, inputs: Sequence[StreamProperties]) -> StreamProperties:
        """Nothing is known of the output, except whether it obeys its watermark."""
        return StreamProperties(None, False, timely=all(i.timely for i in inputs))

    def told(self, services: Services, key: bytes, cell: bytes) -> Told:
        """Nothing is kept that could be told by key, so any question is a `QuestionError`."""
        raise QuestionError(f"step {services.step!r} keeps no state of a key: ask a step that does")

    def with_options(self, values: Mapping[str, Any], where: str) -> Any:
        """This operator has no options, so any is a `ConfigError`."""
        raise ConfigError(f"{where}: this step has no options, so {', '.join(sorted(values))} cannot be set")


class Keyed(Plain, frozen=True):
    """Base of the operators that keep state for each key and have no options."""

    stateful: ClassVar[bool] = True


def transformed(inputs: Sequence[StreamProperties], keeps: frozenset[str]) -> StreamProperties:
    """The properties of what a function makes of each record, where it passes the fields `keeps` on
    unchanged.
    """
    above = inputs[0]
    domain = above.domain if above.domain in keeps else None
    if domain == above.domain and not (
        above.key_local or above.key_order or above.from_cloud or above.born_in_cloud
    ):
        return above
    return StreamProperties(domain, above.in_order, timely=above.timely)
