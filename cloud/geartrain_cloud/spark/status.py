"""status.json of the driver: how far each query is, for people, supervisors and pages.

It stands beside the record's path and decides nothing. Guarantees: a reader sees a whole status, the newest
or the one before. The positions, rows and records in it are durable in the tables.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.records.event_time import START_OF_TIME, format_time
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.spark.clocks import least_clock
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.source import FLUSHED
from geartrain_cloud.spark.streams import RunningQuery

INTERVAL_S = 0.5
"""How often the file is written at most, while nothing changes its state."""


class StatusFile:
    """The file, and the state that the driver is in.

    state: `waiting` (for the log), `starting` (Spark), `running`, `finished` (a bounded run has ended),
    `stopped` (by a signal), `failed`, or `tripped` (stopped by dead letters), which have a reason.
    """

    def __init__(self, path: Path, flow: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path, self._flow, self._monotonic = path, flow, monotonic
        self._written_at = float("-inf")
        self._state, self._reason = "", ""
        self._details: dict[str, Any] = {"clock": None, "clock_time": None, "queries": {}, "records": {}}

    def enter(self, state: str, reason: str = "") -> None:
        """Write the new state at once; raises `OSError`."""
        self._state, self._reason = state, reason
        self._write()

    def show(self, details: Callable[[], dict[str, Any]]) -> None:
        """Write what `details` gives, unless the file was written less than `INTERVAL_S` ago."""
        if self._monotonic() - self._written_at >= INTERVAL_S:
            self._details = details()
            self._write()

    def show_last(self, details: dict[str, Any]) -> None:
        """Keep `details` for the next `enter`."""
        self._details = details

    def _write(self) -> None:
        status = {
            "flow": self._flow,
            "pid": os.getpid(),
            "state": self._state,
            "finished": self._state == "finished",
            "reason": self._reason,
            **self._details,
        }
        write_private(self._path, json.dumps(status, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        self._written_at = self._monotonic()


def describe(log: LogReader, tables: Tables, running: Sequence[RunningQuery]) -> dict[str, Any]:
    """How far the queries are; docs/data_files.md describes it. Raises `LedgerError` or `TableError`."""
    queries: dict[str, Any] = {}
    clocks: list[int] = []
    for one in running:
        newest = log.positions(one.query.graph.name)
        held = tables.progress(one.query.name)
        positions = {} if held is None else dict(held.positions)
        clock, keys = query_clock(log, one.query, positions), log.keys()
        clocks.append(clock)
        queries[one.query.name] = {
            "batch_id": -1 if held is None else held.batch_id,
            "batch_seconds": round(one.writer.last.seconds, 3),
            "repeated": one.writer.repeated,
            "restarts": one.restarts,
            "log_rows": 0 if held is None else held.log_rows,
            "channels": sorted(one.query.channels),
            "positions": {key: positions.get(key, 0) for key in keys},
            "log_positions": {key: newest.get(key, 0) for key in keys},
            "clock": clock,
            "sinks": list(one.query.sinks),
        }
    clock = min(clocks, default=START_OF_TIME)
    return {
        "clock": clock,
        "clock_time": None if clock == START_OF_TIME else format_time(clock),
        "queries": queries,
        "records": tables.records(),
    }


def query_clock(log: LogReader, query: Query, positions: dict[str, int]) -> int:
    """The clock of a query that has come to `positions`: the least of its sources', microseconds."""
    return least_clock(log.clocks_at(query.graph.name, positions), query.sources)


def is_flushed(log: LogReader, query: Query, positions: dict[str, int]) -> bool:
    """Whether nothing waits in Spark that the clock of a query has passed."""
    if not query.native:
        return True
    return positions.get(FLUSHED, START_OF_TIME) >= query_clock(log, query, positions)
