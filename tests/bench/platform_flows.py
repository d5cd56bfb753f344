"""Flows that are measured on a platform, a filter and a mean of each minute of 200 meters, and their data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain_devices.json_lines import JsonLines

METERS = 200
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = timedelta(milliseconds=20)
"""Between two records: 15 of each meter a minute."""
LIMIT = 50.0
"""Half of the values are above it."""


class Reading(Record):
    """What a meter says."""

    meter: str
    value: float


class Mean(Record):
    """Of a meter in a minute."""

    meter: str
    mean: float


def is_high(reading: Reading) -> bool:
    """Whether it is above the limit."""
    return reading.value > LIMIT


high = Flow("high")
high.source("meters", JsonLines[Reading](), out=Reading).filter(is_high).sink("out", Table("high"))

means = Flow("means")
_each = means.source("meters", JsonLines[Reading](), out=Reading).key_by("meter")
_minutes = _each.window(tumbling(timedelta(minutes=1)))
_minutes.aggregate("mean", out=Mean, mean=agg.mean("value")).sink("out", Table("means"))


def rows(count: int, device: int) -> Iterator[tuple[datetime, str, float]]:
    """What the meters of a device say, in order: time, meter, value."""
    chance = random.Random(device)
    for number in range(count):
        meter = f"d{device}-m{chance.randrange(METERS):03}"
        yield BEGIN + number * EVERY, meter, round(chance.uniform(0, 100), 2)


def write_lines(path: Path, count: int, device: int) -> None:
    """The same as a file of JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for at, meter, value in rows(count, device):
            file.write(f'{{"time":"{at.isoformat()}","meter":"{meter}","value":{value}}}\n')
