"""Two flows for one agent: one with a backlog, and one whose bell is rung by the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from geartrain import Flow, Record, Table
from geartrain.records.event_time import SECOND_US
from geartrain.source import Batch, Source, Split
from geartrain.testing import TestingSource

BULK_ROWS = 2_000
RINGS = 5


class Sample(Record):
    number: int


class _Bell:
    """A record for each time that it was rung, and an end after the last one."""

    name, out_of_orderness_us = "bell", 0

    async def read(self, position: int, limit: int) -> Batch:
        rung = range(position, Bells.rung)
        values = [Sample(number) for number in rung]
        times = [number * SECOND_US for number in rung]
        return Batch(values, times, list(rung), Bells.rung, ended=Bells.rung >= RINGS)

    async def close(self) -> None:
        """Nothing to release."""


class Bells(Source[Sample]):
    rung: ClassVar[int] = 0

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [_Bell()]


bulk = Flow("bulk")
bulk.source(
    "samples", TestingSource(items=[(n * SECOND_US, Sample(n)) for n in range(BULK_ROWS)]), out=Sample
).sink("kept", Table("kept"))

alarms = Flow("alarms")
alarms.source("bell", Bells(), out=Sample).sink("rings", Table("rings"))
