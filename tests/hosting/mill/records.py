"""What mill machines measure, and what is made of it."""

from __future__ import annotations

from geartrain import Record, State


class Reading(Record):
    """A value of a sensor."""

    sensor: str
    value: float


class Sum(Record):
    """What a sensor's values add up to."""

    sensor: str
    count: int
    total: float


class Halved(Record):
    """A sum, and the half of it where somebody has asked for that."""

    sensor: str
    count: int
    total: float
    half: float | None = None


class Text(Record):
    """A sum whose count is a text."""

    sensor: str
    count: str
    total: float


class Running(State):
    """Of one sensor."""

    count: int = 0
    total: float = 0.0


class Wide(State):
    """The same, and the last value."""

    count: int = 0
    total: float = 0.0
    last: float = 0.0


class Level(Record):
    """So many sensors have given so many readings."""

    readings: int
    sensors: int


class Spread(Record):
    """So many levels were reached by so many sensors."""

    sensors: int
    levels: int


class Second(Record):
    """So many readings of a sensor in a second, which begins at so many microseconds."""

    sensor: str
    window_start: int
    readings: int
