"""Speed of light: records of one size pass through steps that do nothing, to a table of one row.

gear run geartrain_examples.sol.flow:flow --set light.records=1000000 --set light.payload_bytes=100
GEARTRAIN_SOL_STAGES=8 gear run geartrain_examples.sol.flow:flow
"""

import os
import random

from geartrain import Flow, Record, Stream, Table, agg
from geartrain_devices.simulated import SimulatedSensor

STAGES = int(os.environ.get("GEARTRAIN_SOL_STAGES", "3"))
"""Steps between source and count: part of the graph, and so fixed before it is built."""


class Payload(Record):
    """A record of some size."""

    number: int
    body: bytes


class Arrived(Record):
    """How many have arrived, and which was the last."""

    key: bool
    records: int
    newest: int


class Light(SimulatedSensor[Payload]):
    """As many records as are asked for, each with `payload_bytes` bytes."""

    payload_bytes: int = 100

    def make(self, random: random.Random, number: int, device: str) -> Payload:
        """The same bytes again and again: what is measured is the way."""
        return Payload(number, bytes(self.payload_bytes))


def same(payload: Payload) -> Payload:
    """Nothing is done."""
    return payload


def everything(payload: Payload) -> bool:
    """One key for all."""
    return True


flow = Flow("sol")

light = flow.source("light", Light(records=100_000, period_ms=1), out=Payload)
stage: Stream[Payload] = light
for number in range(STAGES):
    stage = stage.map(same, name=f"stage{number + 1}")
one = stage.key_by(everything)
arrived = one.aggregate("arrived", out=Arrived, records=agg.count(), newest=agg.last("number"))
arrived.sink("table", Table("arrived", key=("key",)))
