"""Meters: they weigh the rows of a stream and time the work of a step, while a flow runs.

Under `geartrain_client.planning.measure`, which puts them around and below the steps of a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.errors import WireError
from geartrain.graph.operator import Plain, Running, Services, Stoppable, Transform
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.letters import to_batch
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.wire.body import encode_rows
from geartrain_client.planning.cost import StepCost, StreamCost
from geartrain_client.planning.reasons import is_untyped

BATCH_ROWS = 256
"""Rows of a batch, when an agent is busy."""
CpuTime = Callable[[], float]
"""CPU seconds that this process has used so far."""


class StreamMeter:
    """Weighs the rows of one stream of records of the type `kind`."""

    def __init__(self, kind: Any, cpu_time: CpuTime) -> None:
        self._codec, self._cpu_time = RowCodec(kind), cpu_time
        self._waiting = Batch([], [], [], [], [])
        self._cost = StreamCost()
        fields = self._codec.schema.fields
        self._untyped = [index for index, one in enumerate(fields) if is_untyped(one)]

    def add(self, batch: Batch) -> None:
        """Take rows; every 256 of them are a batch."""
        waiting = self._waiting
        waiting.values += batch.values
        waiting.times += batch.times
        waiting.names += batch.names
        waiting.numbers += batch.numbers
        waiting.paths = (waiting.paths or []) + (
            batch.paths if batch.paths is not None else [b""] * len(batch)
        )
        if len(waiting) >= BATCH_ROWS:
            parts = list(waiting.slices(BATCH_ROWS))
            short = len(parts[-1]) < BATCH_ROWS
            self._waiting = parts.pop() if short else Batch([], [], [], [], [])
            for part in parts:
                self._weigh(part)

    def finish(self) -> StreamCost:
        """The cost of all rows, the last of them in a batch of fewer."""
        if len(self._waiting):
            self._weigh(self._waiting)
            self._waiting = Batch([], [], [], [], [])
        return self._cost

    def _weigh(self, batch: Batch) -> None:
        began_s = self._cpu_time()
        columns = self._codec.to_columns(batch.values)
        rows = ColumnBatch(columns, batch.times, batch.names, batch.numbers, batch.paths)
        try:
            size, too_large = len(encode_rows(self._codec.schema, rows).body), 0
        except WireError:  # as an agent does: in halves, down to the record that fits none
            if len(batch) > 1:
                middle = len(batch) // 2
                self._weigh(batch.take(range(middle)))
                self._weigh(batch.take(range(middle, len(batch))))
                return
            size, too_large = 0, 1
        cost, took_s = self._cost, self._cpu_time() - began_s
        self._cost = StreamCost(
            cost.records + len(batch),
            cost.bytes + size,
            cost.encode_s + took_s,
            cost.too_large + too_large,
            cost.untyped_bytes + sum(len(x) for i in self._untyped for x in columns[i] if x is not None),
        )


class StepMeter(msgspec.Struct):
    """The work of one step so far."""

    letters: StreamMeter
    records: int = 0
    cpu_s: float = 0.0

    def cost(self) -> StepCost:
        """As measured."""
        return StepCost(self.records, self.cpu_s, self.letters.finish())


class Tap(Plain, frozen=True):
    """Stands below a step, so that its output leaves the fragment."""

    kind = "tap"

    def open(self, services: Services) -> Transform:
        """All that comes leaves."""
        return lambda batch: batch


class TimedOperator:
    """Another operator, whose work is timed once it is open."""

    def __init__(self, operator: Any, meter: StepMeter, cpu_time: CpuTime) -> None:
        self._operator, self._meter, self._cpu_time = operator, meter, cpu_time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def open(self, services: Services) -> Transform | Running:
        """The operator at work, timed."""

        def reject(letter: DeadLetter) -> None:
            self._meter.letters.add(to_batch([letter]))
            services.reject(letter)

        opened = self._operator.open(replace(services, reject=reject))
        running = _TimedRunning(opened, self._meter, self._cpu_time)
        return running.transform if callable(opened) else running


class _TimedRunning:
    """An operator at work, timed."""

    def __init__(self, opened: Any, meter: StepMeter, cpu_time: CpuTime) -> None:
        self._opened, self._meter, self._cpu_time = opened, meter, cpu_time

    def transform(self, batch: Batch) -> Batch:
        """Of an operator that is a function."""
        self._meter.records += len(batch)
        began_s = self._cpu_time()
        out: Batch = self._opened(batch)
        self._meter.cpu_s += self._cpu_time() - began_s
        return out

    def feed(self, batch: Batch, port: int) -> Batch:
        """Of one that has several inputs or is told of time."""
        self._meter.records += len(batch)
        began_s = self._cpu_time()
        out: Batch = self._opened.feed(batch, port)
        self._meter.cpu_s += self._cpu_time() - began_s
        return out

    def advance(self, watermark: int) -> Batch:
        """Of the same."""
        began_s = self._cpu_time()
        out: Batch = self._opened.advance(watermark)
        self._meter.cpu_s += self._cpu_time() - began_s
        return out

    def stop(self) -> None:
        """Stop it, if it wants that."""
        if isinstance(self._opened, Stoppable):
            self._opened.stop()
