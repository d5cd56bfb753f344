"""What several stories begin with."""

from __future__ import annotations

from datetime import timedelta

from geartrain import Record


def us(count: int) -> timedelta:
    return timedelta(microseconds=count)


class Reading(Record):
    """What a sensor measured."""

    sensor: str
    value: int


def reading(sensor: str, value: int) -> Reading:
    return Reading(sensor, value)


WORDS = [(1, "to be"), (2, "or"), (3, "not")]
TWO = [
    (10, reading("a", 1)),
    (20, reading("b", 5)),
    (30, reading("a", 2)),
    (40, reading("a", -4)),
    (50, reading("b", 6)),
]
