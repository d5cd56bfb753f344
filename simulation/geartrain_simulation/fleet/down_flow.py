"""What a simulated fleet runs downwards: its flow, its driver's micro-batches and its devices' files.

Under `DownFleet`. Guarantees: what is drawn is a function of the seed; a file holds what was appended to it
before a kill, and perhaps a part of what was being appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import msgspec

from geartrain import Context, Flow, Record, Source, State, Task, by_key
from geartrain.errors import SpoolError
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import END_OF_TIME
from geartrain.sinks import JsonLinesFile
from geartrain.source import Split
from geartrain_simulation.machine.world import Process


class Order(Record):
    """What a device is to do."""

    device: str
    number: int


class Sums(State):
    """What it was told so far."""

    total: int = 0


class Adding(Task[Order, Order]):
    """The running sum, and at each full second of event time once more, by a timer."""

    state: ClassVar[type[Sums]] = Sums

    def on_next(self, value: Order, ctx: Context[Order, Sums]) -> None:
        """Add, and ask to be woken."""
        ctx.state.total += value.number
        ctx.emit(Order(value.device, ctx.state.total))
        ctx.notify_at(ctx.event_time // 1_000_000 * 1_000_000 + 1_000_000)

    def on_notify(self, time: int, ctx: Context[Order, Sums]) -> None:
        """Say the sum."""
        ctx.emit(Order(str(ctx.key), -ctx.state.total))


class Nothing(Source[Order]):
    """A source that no device has a split of: it has ended before it began."""

    bounded: ClassVar[bool] = True

    def open(self, device: str, step: str, out: type[Order]) -> Sequence[Split]:
        """No split."""
        return ()


def make_down_plan() -> Plan:
    """Orders come down, are added up on the device by its name, and end in a file."""
    flow = Flow("down")
    orders = flow.source("orders", Nothing(), out=Order).filter(lambda order: True, name="made").at("cloud")
    sums = orders.key_by("device").process("adding", Adding()).at("edge", device=by_key)
    sums.sink("valve", JsonLinesFile("valve"))
    return make_plan(flow.graph(), "edge")


class FileBook:
    """The bytes of a device's file, as its disk holds them."""

    def __init__(self) -> None:
        self.data = b""

    def numbers(self) -> list[int]:
        """What its lines say."""
        return [int(msgspec.json.decode(line)["number"]) for line in self.data.splitlines()]


class SimFiles:
    """`geartrain_edge.sinks.delivering.LineFiles` of one process: a kill leaves a part of what it writes."""

    def __init__(self, process: Process, book: FileBook) -> None:
        self._process, self._book, self._random = process, book, process.random("files")

    async def size(self, path: str) -> int:
        """Bytes of the file."""
        self._process.point("file.size")
        return len(self._book.data)

    async def append(self, path: str, at: int, data: bytes) -> None:
        """Write from byte `at` on."""
        self._process.point("file.append", str(at))
        if len(self._book.data) < at:
            raise SpoolError(f"{path} is shorter than {at}")
        self._book.data = self._book.data[:at] + data[: self._random.randint(0, len(data))]
        await self._process.pause(self._random, self._process.node.faults)
        self._book.data = self._book.data[:at] + data
        self._process.point("file.append done", str(at))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a driver writes at once: (device, number) in order of time, and the clock after it."""

    rows: tuple[tuple[str, int, int], ...]
    clock_us: int


def draw_batches(seed: int, devices: Sequence[str]) -> list[MicroBatch]:
    """Micro-batches of orders, whose times lie before the clock after each, and the end."""
    random, batches, clock, number = Random(f"{seed}/micro-batches"), list[MicroBatch](), 0, 0
    for _ in range(random.randint(3, 10)):
        rows = []
        for _ in range(random.choice((0, 1, 3, 8))):
            number += 1
            clock += random.choice((0, 200_000, 1_500_000))
            rows.append((random.choice(devices), number, clock))
        clock += random.choice((1, 1, 700_000))
        batches.append(MicroBatch(tuple(rows), clock))
    return [*batches, MicroBatch((), END_OF_TIME)]
