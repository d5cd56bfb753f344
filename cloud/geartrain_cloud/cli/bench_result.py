"""The figures of one run of `gear bench`, as JSON for programs and as tables for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import msgspec
from rich.table import Table

from geartrain_client.terminal.screen import table_of

SHORT_S = 5.0
"""A run that takes less is told to be too short: its times are read every 0.2 s."""


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    cut: as it was asked for; number: of the run among those of its cut, from 1; records: that the sources
    gave; log_rows: rows that came into the tables' micro-batches; seconds: from the first record read to the
    last row in its table; first_record_s: from submit to the first record read; first_row_s: from submit to
    the first rows in a table, None for none; cpu_s: seconds of a processor by process, from submit to the
    end, those of all that the process has started counted.
    """

    cut: str
    number: int
    records: int
    log_rows: int
    seconds: float
    first_record_s: float
    first_row_s: float | None
    cpu_s: dict[str, float]

    @property
    def records_per_s(self) -> float:
        """Records in a second, from the first one read to the last row in its table."""
        return self.records / self.seconds if self.seconds else 0.0


def machine() -> dict[str, str | int | float]:
    """Where the figures were made."""
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def as_json(results: Sequence[BenchResult]) -> dict[str, object]:
    """All runs, and where they were made."""
    runs = [msgspec.to_builtins(one) | {"records_per_s": round(one.records_per_s, 1)} for one in results]
    return {**machine(), "runs": runs}


def as_tables(results: Sequence[BenchResult]) -> list[Table]:
    """The speed of each run, and what each process took of a processor for a record."""
    heads = ["cut", "run", "records", "seconds", "records/s", "first record", "first row"]
    speeds = [
        [
            one.cut,
            str(one.number),
            f"{one.records:,}",
            f"{one.seconds:.1f}",
            f"{one.records_per_s:,.0f}",
            f"{one.first_record_s:.1f} s",
            "-" if one.first_row_s is None else f"{one.first_row_s:.1f} s",
        ]
        for one in results
    ]
    names = sorted({name for one in results for name in one.cpu_s})
    costs = [
        [name, *(_cost(one, name) for one in results)]
        for name in names
        if any(one.cpu_s.get(name, 0.0) >= 0.01 for one in results)
    ]
    columns = [f"{one.cut}, run {one.number}" for one in results]
    return [
        table_of("from the first record read to the last row in its table", heads, speeds, range(1, 7)),
        table_of(
            "processor seconds, and microseconds a record",
            ["process", *columns],
            costs,
            range(1, len(columns) + 1),
        ),
    ]


def _cost(one: BenchResult, name: str) -> str:
    used = one.cpu_s.get(name, 0.0)
    return f"{used:.1f} s, {used / one.records * 1e6:.1f} us" if one.records else f"{used:.1f} s"


def remarks(results: Sequence[BenchResult]) -> list[str]:
    """What one should know before one trusts the figures, a sentence each."""
    found = []
    if any(one.seconds < SHORT_S for one in results):
        found.append(
            f"a run of less than {SHORT_S:g} s says little, since times are read every 0.2 s: give the "
            "sources more records"
        )
    if len({one.number for one in results}) > 1:
        found.append(
            "the first run of each cut comes before Spark's code is warm: later ones say what is sustained"
        )
    return found
