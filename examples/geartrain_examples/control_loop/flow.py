"""Tanks: each reports its level, and the cloud takes the mean of every minute.

A tank whose mean passes the limit gets the command to open its valve, on its own device. A device has the
name of its tank.

gear run geartrain_examples.control_loop.flow:flow --output build/control_loop
"""

import math
from datetime import datetime, timedelta
from random import Random

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain.sinks import JsonLinesFile
from geartrain_devices.simulated import SimulatedSensor

LIMIT_M = 6.0


class Level(Record):
    """What a sensor measured."""

    tank: str
    level_m: float


class Minute(Record):
    """The mean level of one tank in one minute."""

    tank: str
    window_start: datetime
    level_m: float


class Command(Record):
    """Open the valve, by so many percent."""

    tank: str
    since: datetime
    open_percent: float


class Tank(SimulatedSensor[Level]):
    """A tank that fills and empties, and a sensor that is not quite sure."""

    def make(self, random: Random, number: int, device: str) -> Level:
        """One reading a second."""
        wave = math.sin(number / 97 + len(device))
        return Level(device, round(5 + 3 * wave + random.gauss(0, 0.2), 2))


def is_too_high(minute: Minute) -> bool:
    """Whether something has to be done."""
    return minute.level_m > LIMIT_M


def command(minute: Minute) -> Command:
    """The more water, the wider."""
    return Command(minute.tank, minute.window_start, min(100.0, 50 * (minute.level_m - LIMIT_M)))


flow = Flow("control_loop")
levels = flow.source("levels", Tank(records=1_200), out=Level)
minutes = levels.key_by("tank").window(tumbling(timedelta(minutes=1)))
means = minutes.aggregate("means", out=Minute, early=None, level_m=agg.mean("level_m")).at("cloud")
means.sink("minutes", Table("minutes", key=("tank", "window_start")))
commands = means.filter(is_too_high).map(command).at("edge", device="tank")
commands.sink("valve", JsonLinesFile("valve"))
