"""Devices of the flow `held` without a spool, which say of their sources what agents of release 0.2 say: how
far their channels are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from geartrain.ports import SplitProgress
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.wire.envelope import BatchKind, Header
from tests.cloud.fleet import TestDevice
from tests.spark.faults.flows import LEFT, MILLISECOND, RIGHT, SENSORS, T0, Row
from tests.spark.flows import Reading

NAMES = ("device-1", "device-3")
"""Of two partitions, each has one."""
TURNS = 60
"""Batches of the first half of a run."""

_CODEC = RowCodec(Reading)


class HeldDevice(TestDevice):
    """A device with both sources, each of one split."""

    __test__ = False

    def __init__(self, name: str) -> None:
        super().__init__(name, flow="held")
        self.marks = {LEFT: START_OF_TIME, RIGHT: START_OF_TIME}
        self.numbers = {LEFT: 0, RIGHT: 0}

    def header(self, kind: BatchKind = BatchKind.DATA, watermark: int | None = None) -> Header:
        """The header of the next batch."""
        least, moved = min(self.marks.values()), kind is BatchKind.DATA
        splits = {
            (s, f"{self.name}/{s}"): SplitProgress(number, max(self.marks[s], 0))
            for s, number in self.numbers.items()
        }
        return Header(
            kind=kind,
            flow=self.flow,
            device=self.name,
            epoch=self.epoch,
            seq=self.seq + 1,
            watermarks={**self.marks, "_dead_letters": least, "_late": least} if moved else {},
            positions=splits if moved else {},
        )

    def announce(self) -> bytes:
        """The schemas of both channels."""
        return self.schemas({LEFT: _CODEC.schema, RIGHT: _CODEC.schema})

    def readings(self, source: str, found: Sequence[tuple[Reading, int]]) -> tuple[bytes, list[Row]]:
        """A batch of readings with their event times, and the rows that it makes."""
        values, times = [reading for reading, _ in found], [time for _, time in found]
        first = self.numbers[source]
        numbers = list(range(first, first + len(found)))
        self.numbers[source] += len(found)
        self.marks[source] = times[-1]
        split = f"{self.name}/{source}"
        columns = ColumnBatch(_CODEC.to_columns(values), times, [split] * len(found), numbers)
        made = [(value, time, split, n) for value, time, n in zip(values, times, numbers, strict=True)]
        return self.rows(source, _CODEC.schema, columns), made

    def ended(self) -> bytes:
        """The batch after which nothing more comes."""
        self.marks = dict.fromkeys(self.marks, END_OF_TIME)
        return self.batch(self.header(), b"")


class HeldRun:
    """What two such devices send: the same in every process and release."""

    def __init__(self) -> None:
        self.devices = [HeldDevice(name) for name in NAMES]
        self.records: list[Row] = []
        self._rng = random.Random(3)
        self._time = T0

    def announced(self) -> list[tuple[HeldDevice, bytes]]:
        """The first batch of each."""
        return [(device, device.announce()) for device in self.devices]

    def turns(self, count: int) -> Iterator[tuple[HeldDevice, bytes]]:
        """More batches; the right source is read less often, so the left one waits for it."""
        for _ in range(count):
            device = self._rng.choice(self.devices)
            source = RIGHT if self._rng.random() < 0.3 else LEFT
            found = []
            for _ in range(self._rng.randrange(1, 6)):
                self._time += MILLISECOND
                value = round(self._rng.uniform(0.1, 9.9), 3)
                found.append((Reading(f"s{self._rng.randrange(SENSORS)}", value), self._time))
            payload, made = device.readings(source, found)
            self.records += made
            yield device, payload

    def ends(self) -> list[tuple[HeldDevice, bytes]]:
        """The last batch of each."""
        return [(device, device.ended()) for device in self.devices]


async def deliver(world: Any, sent: Sequence[tuple[HeldDevice, bytes]]) -> None:
    """Send batches to a running ingest and wait for the last ack of each device."""
    for device, payload in sent:
        world.net.deliver(device.topic, payload)
    for device in {id(one): one for one, _ in sent}.values():
        await world.net.acked(device)


def driver_toml(folder: Path) -> str:
    """The driver's configuration for a run in `folder`."""
    return (
        'flow = "tests.spark.faults.flows:flow"\ncut = "cloud"\nlog = "log"\nstate = "driver"\n'
        'tables = "tables.sqlite"\nmaster = "local[2]"\nrows_max = 40\n'
    )
