"""The records of the traffic flow: what cameras and loops see, and the rows of its tables.

They go from the sources on the devices to the tables. A record needs no field for its event time; a row of a
table has one.
"""

from datetime import datetime

from geartrain import Record


class Pass(Record):
    """A vehicle passes a camera on a lane of a street (`edge`); its event time is that moment."""

    detector: str
    edge: str
    lane: int
    vehicle: str
    speed_mps: float


class Reading(Record):
    """What a loop counted in the interval that begins at its event time, or a camera at that moment.

    speed_mps: the mean of the `n` vehicles, -1 where there was none; occupancy_pct: None for a camera.
    """

    detector: str
    edge: str
    n: int
    speed_mps: float
    occupancy_pct: float | None


class Checkpoint(Record):
    """Where a camera stands, in metres east and north of a corner of the city."""

    detector: str
    x_m: float
    y_m: float


class Placed(Record):
    """A pass, and where its camera stands; None where nobody knows."""

    detector: str
    edge: str
    vehicle: str
    x_m: float | None
    y_m: float | None


class Overspeed(Record):
    """A pass above the limit."""

    time: datetime
    detector: str
    vehicle: str
    edge: str
    speed_mps: float


class Section(Record):
    """A vehicle's way from one checkpoint to the next; speed_mps: None where it took no time at all."""

    time: datetime
    vehicle: str
    from_detector: str
    to_detector: str
    from_time: datetime
    distance_m: float
    speed_mps: float | None


class Leg(Record):
    """A section that was too fast for the limit, for any vehicle, or for both."""

    section: Section
    above_limit: bool
    impossible: bool


class TracePass(Record):
    """One pass of a trace."""

    time: datetime
    detector: str
    edge: str
    speed_mps: float


class Trace(Record):
    """The last passes of a vehicle, oldest first."""

    vehicle: str
    passes: list[TracePass]


class StreetMinute(Record):
    """A street in one minute; level: `congested`, `silent` or `free`."""

    edge: str
    minute: datetime
    passes: int
    mean_speed_mps: float | None
    occupancy_pct: float | None
    level: str


class CityMinute(Record):
    """All streets in one minute."""

    minute: datetime
    passes: int
    mean_speed_mps: float


class WindowedCity(Record):
    """The same, as the window gives it."""

    window_start: datetime
    passes: int
    mean_speed_mps: float
