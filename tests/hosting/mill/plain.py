"""A flow without a shuffle, and its next revision, which has one."""

from __future__ import annotations

from geartrain import Flow, Table
from geartrain.testing import TestingSource
from tests.hosting.mill.flows import FACTORS, Above, Adding
from tests.hosting.mill.records import Reading


def make(*, sums: bool) -> Flow:
    """Readings above 3 to a table; sums: with the running sum of each sensor."""
    flow = Flow("plain")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    kept = readings.filter(Above(3.0), name="above")
    kept.sink("kept", Table("kept"))
    if sums:
        added = kept.key_by("sensor", name="by_sensor").process("adding", Adding(FACTORS[0]))
        added.sink("each", Table("each_sum"))
    return flow


direct, summed = make(sums=False), make(sums=True)
