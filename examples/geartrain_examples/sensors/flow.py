"""Sensors: five series of the Numenta Anomaly Benchmark, statistics of every hour, and those that stand out.

gear run geartrain_examples.sensors.flow:flow --output build/sensors
"""

from datetime import datetime, timedelta
from pathlib import Path

from geartrain import Context, Flow, Record, State, Table, Task, agg
from geartrain.declarations.windows import tumbling
from geartrain_devices.csv_replay import CsvReplay

SAMPLE = Path(__file__).parent / "data" / "nab.csv.gz"


class Sample(Record):
    """What a sensor of one series measured."""

    series: str
    value: float


class Hour(Record):
    """The statistics of one hour of one series."""

    series: str
    window_start: datetime
    samples: int
    mean: float
    low: float
    high: float


class Anomaly(Record):
    """An hour whose mean lies far from what the series did so far."""

    series: str
    hour: datetime
    mean: float
    deviations: float


class Seen(State):
    """Mean and sum of squared distances of the hours so far (Welford 1962)."""

    hours: int = 0
    mean: float = 0.0
    squares: float = 0.0


class Watch(Task[Hour, Anomaly]):
    """Reports hours more than `deviations` standard deviations away, once it has seen `hours_min` of them."""

    state = Seen
    deviations: float = 4.0
    hours_min: int = 48

    def on_next(self, value: Hour, ctx: Context[Anomaly, Seen]) -> None:
        """Compare an hour with those before it, then learn from it."""
        seen = ctx.state
        away = value.mean - seen.mean
        spread = (seen.squares / seen.hours) ** 0.5 if seen.hours else 0.0
        if seen.hours >= self.hours_min and abs(away) > self.deviations * spread > 0:
            ctx.emit(Anomaly(value.series, value.window_start, value.mean, away / spread))
        seen.hours += 1
        seen.mean += away / seen.hours
        seen.squares += away * (value.mean - seen.mean)


flow = Flow("sensors")
source = CsvReplay[Sample](path=str(SAMPLE), time_column="time", partition_column="series", since_1970=True)
samples = flow.source("samples", source, out=Sample, partitioned_by="series", every=timedelta(hours=1))
by_hour = samples.key_by("series").window(tumbling(timedelta(hours=1)))
value = {"mean": agg.mean("value"), "low": agg.min("value"), "high": agg.max("value")}
hours = by_hour.aggregate("hourly", out=Hour, early=None, samples=agg.count(), **value)
hours.sink("hours", Table("hours", key=("series", "window_start")))
hours.key_by("series", name="by_series").process("watch", Watch()).sink("odd", Table("anomalies"))
