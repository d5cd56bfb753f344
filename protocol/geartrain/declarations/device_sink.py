"""Sinks on a device: what is done there with the records of a stream that ends on it.

Last on the path of a record that came down to a device, or never left it. The agent commits such records
first and hands them over afterwards (`geartrain_edge.sinks.delivering`); `gear run` keeps them in a table of
the sink's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from geartrain.declarations.sink import DeviceSink
from geartrain.errors import FlowError

T = TypeVar("T")


class Delivery(msgspec.Struct, frozen=True):
    """The identity of one record at one device sink, the same however often it is handed over.

    Args:
        epoch: the life of the outbox (of a record that never left the device: of its spool), in hexadecimal.
        seq: the batch there, or a count of the agent's.
        index: the record's place among those of the batch that reached this sink, from 0.
        time_us: the record's event time, microseconds since 1970 UTC.
    """

    epoch: str
    seq: int
    index: int
    time_us: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.seq}/{self.index}"


@dataclass(frozen=True)
class JsonLinesFile(DeviceSink):
    """A file of JSON lines on the device: exactly once, by the file's length.

    Only the agent writes to it. A file that was made shorter stops the agent.

    Args:
        name: what the sink is called.
        key: not used.
        path: where the file is; a relative one is in the agent's state folder, and empty means NAME.jsonl
            there.

    Raises:
        FlowError: for a name that cannot name a table.
    """

    path: str = ""


@dataclass(frozen=True)
class Actuator(DeviceSink, Generic[T]):
    """Something that acts on each record, one after the other: subclass it and define `act`.

    It travels inside the flow, to Spark's workers too, so what it needs of the device it takes in `start`. A
    subclass with options of its own is a frozen dataclass.

    At least once: a record is handed over after it was committed. It is handed over again when the agent dies
    before it has noted that `act` returned. The identity tells a repetition.

    Args:
        name: what the sink is called.
        key: not used.
        attempts: how often `act` may raise or take too long before the record is a dead letter, 1 or more.
        timeout_ms: how long one call may take, 1 or more.
        pause_ms: how long to wait between two attempts, doubling up to 32 times, 1 or more.

    Raises:
        FlowError: for an option below 1, or a name that cannot name a table.
    """

    attempts: int = 5
    timeout_ms: int = 10_000
    pause_ms: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("attempts", "timeout_ms", "pause_ms"):
            if getattr(self, option) < 1:
                raise FlowError(f"actuator {self.name}: {option}={getattr(self, option)} must be 1 or more")

    async def start(self, device: str) -> None:
        """Called once, before the first record.

        Args:
            device: the device's name.
        """

    async def act(self, value: T, at: Delivery) -> None:
        """Act on a record. It must not block the loop: what waits is awaited.

        Args:
            value: the record.
            at: its identity, the same in a repetition.

        Raises:
            Exception: whatever it raises counts as one of the `attempts`.
        """
        raise TypeError(f"{type(self).__name__} must define act(value, at)")

    async def stop(self) -> None:
        """Called once when the agent ends in good order."""
