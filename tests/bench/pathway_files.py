"""The flows of `files_flow` as Pathway has them: `python pathway_files.py WORK FILE RESULTS`.

A program of its own, since Pathway and the packages of Geartrain ask for different versions of others. It
imports nothing of this project.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from importlib import import_module
from typing import Any


def run(work: str, source: str, results: str) -> None:
    """Read the file, and write the results as lines of JSON."""
    pw: Any = import_module("pathway")
    schema = pw.schema_from_types(time=str, sensor=str, celsius=float)
    read = pw.io.csv.read if source.endswith(".csv") else pw.io.jsonlines.read
    rows = read(source, schema=schema, mode="static")
    if work == "filter":
        out = rows.filter(rows.celsius > 50).select(pw.this.sensor, pw.this.celsius)
    else:
        timed = rows.select(
            rows.sensor,
            rows.celsius,
            at=rows.time.dt.strptime("%Y-%m-%dT%H:%M:%S.%fZ", contains_timezone=False),
        )
        minutes = timed.windowby(
            timed.at, window=pw.temporal.tumbling(duration=timedelta(minutes=1)), instance=timed.sensor
        )
        out = minutes.reduce(
            sensor=pw.this._pw_instance,
            window_end=pw.this._pw_window_end.dt.timestamp(unit="us"),
            celsius=pw.reducers.avg(pw.this.celsius),
        )
    pw.io.jsonlines.write(out, results)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    run(*sys.argv[1:])
