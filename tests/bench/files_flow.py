"""Flows over a recorded file, as a new user writes them: a filter, and the mean of each minute and key."""

from __future__ import annotations

from datetime import timedelta

from geartrain import Flow, Record, Source, Table, agg, tumbling
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.json_lines import JsonLines


class Reading(Record):
    """A row of the file, beside its time."""

    sensor: str
    celsius: float


class Mean(Record):
    """Of the readings of a sensor in one minute."""

    sensor: str
    window_end: int
    celsius: float


def hot(reading: Reading) -> bool:
    """The filter: about a tenth passes."""
    return reading.celsius > 50


def filter_of(source: Source[Reading]) -> Flow:
    """The readings that pass."""
    flow = Flow("files")
    flow.source("readings", source, out=Reading).filter(hot, name="hot").sink("out", Table("out"))
    return flow


def windows_of(source: Source[Reading]) -> Flow:
    """The means."""
    flow = Flow("files")
    readings = flow.source("readings", source, out=Reading)
    minutes = readings.key_by("sensor").window(tumbling(timedelta(minutes=1)))
    minutes.aggregate("means", celsius=agg.mean("celsius"), out=Mean).sink("out", Table("out"))
    return flow


filter_jsonl = filter_of(JsonLines(time="time"))
filter_csv = filter_of(CsvReplay(time_column="time"))
windows_jsonl = windows_of(JsonLines(time="time"))
windows_csv = windows_of(CsvReplay(time_column="time"))
