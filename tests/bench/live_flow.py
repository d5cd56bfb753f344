"""A sensor by the clock, and a step behind it: a flow whose latency is measured on a platform."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from geartrain import Flow, Record, Source, Table
from geartrain.source import Batch, Split


class Reading(Record):
    """One value of a sensor. born_s: when it was measured, seconds of the system's clock since 1970."""

    sensor: str
    value: float
    born_s: float


@dataclass
class _Sensor:
    """Reading n is born at `began_s` + n / rate."""

    name: str
    rate: int
    out_of_orderness_us: int = 0
    began_s: float = 0.0

    async def read(self, position: int, limit: int) -> Batch:
        """Those that are born."""
        self.began_s = self.began_s or time.time() - position / self.rate
        due = int((time.time() - self.began_s) * self.rate)
        numbers = range(position, max(position, min(due, position + limit)))
        born = [self.began_s + number / self.rate for number in numbers]
        values = [
            Reading(f"sensor-{n % 1_000:03d}", n % 80 / 4, at) for n, at in zip(numbers, born, strict=True)
        ]
        return Batch(values, [int(at * 1e6) for at in born], numbers, numbers.stop)

    async def close(self) -> None:
        """Nothing to release."""


class Ticking(Source[Reading]):
    """A sensor of so many readings a second by the clock, without an end.

    Args:
        rate: readings a second.
    """

    rate: Annotated[int, msgspec.Meta(ge=1)] = 1_000

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        """The one split."""
        return [_Sensor(device, self.rate)]


def corrected(reading: Reading) -> Reading:
    """By what the sensors are known to be off."""
    return Reading(reading.sensor, reading.value + 0.25, reading.born_s)


flow = Flow("live")
flow.source("readings", Ticking(), out=Reading).map(corrected).sink("out", Table("corrected"))
