"""The sources of the traffic flow: CSV files of passes, of loop readings, and of checkpoints, .gz too.

First on a record's path. Guarantees: an event time is the start plus the exact decimal of the text, rounded
to microseconds half to even; all rows of a street (`edge`) are on one device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from math import isfinite
from typing import Any, TypeVar

from geartrain.printable import shortened
from geartrain.records.event_time import parse_time
from geartrain.source import Split
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.file_order import RowChunk
from geartrain_examples.traffic.records import Checkpoint, Pass, Reading

T = TypeVar("T")

START = "2026-01-01T00:00:00Z"
_SECONDS = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_MICROSECOND = Decimal("0.000001")
_SECONDS_MAX = 10**12
"""Beyond the years that event time has, and far below the digits that a Decimal is rounded to."""


def microseconds(text: str) -> int:
    """The decimal number of seconds in `text`, exact, half to even; raises `ValueError` with a sentence.

    >>> microseconds("0.0000025"), microseconds("1e-3")
    (2, 1000)
    """
    plain = text.strip()
    if len(plain) > 1_000 or not _SECONDS.fullmatch(plain):
        raise ValueError(f"{shortened(text)} is not a number of seconds, such as 8.58")
    seconds = Decimal(plain)
    if abs(seconds) > _SECONDS_MAX:
        raise ValueError(f"{shortened(text)} is more seconds than event time has")
    return int(seconds.quantize(_MICROSECOND, ROUND_HALF_EVEN).scaleb(6))


def street_of(detector: str) -> str:
    """The street of a loop: its name without `loop_` and its last `_N`; raises `ValueError`.

    >>> street_of("loop_A0left0_1")
    'A0left0'
    """
    street, mark, lane = detector.removeprefix("loop_").rpartition("_")
    if not (street and mark and lane.isascii() and lane.isdigit()):
        raise ValueError(f"{shortened(detector)} is no loop of a street, such as loop_A0A1_0")
    return street


class OptionalFile(CsvReplay[T]):
    """A CSV file that may be left out: without a path there are no rows."""

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError`."""
        return super().open(device, step, out) if self.path else [self.split(device, step, _NoRows())]


class _NoRows:
    """A file that nobody has named."""

    path = ""
    paths: Sequence[str] = ()

    def chunks(self, sizes: Mapping[str, int] = {}) -> Iterator[RowChunk]:
        """None."""
        return iter(())

    def record(self, content: Any) -> Any:
        """Never asked for."""
        raise LookupError("there are no rows")


class PassFile(CsvReplay[Pass]):
    """Columns time_s, detector, edge, lane, vehicle, speed_mps; times are seconds since `start`."""

    start: str = START
    time_column: str = "time_s"
    partition_column: str = "edge"

    def moment(self, text: str) -> int:
        """The start plus so many seconds."""
        return parse_time(self.start) + microseconds(text)

    def check(self, record: Pass) -> str | None:
        """Why a row is no pass."""
        for name in ("detector", "edge", "vehicle"):
            if not getattr(record, name):
                return f"the {name} is empty"
        return None if isfinite(record.speed_mps) else f"the speed {record.speed_mps} is not a finite number"


class LoopFile(OptionalFile[Reading]):
    """Columns begin_s, detector, n, speed_mps, occupancy_pct; edge, if not by the detector's name."""

    start: str = START
    time_column: str = "begin_s"
    partition_column: str = "edge"

    def moment(self, text: str) -> int:
        """The start plus so many seconds."""
        return parse_time(self.start) + microseconds(text)

    def derived(self, column: str) -> tuple[str, Callable[[str], str]] | None:
        """The street."""
        return ("detector", street_of) if column == "edge" else None

    def check(self, record: Reading) -> str | None:
        """Why a row is no reading."""
        if not record.edge:
            return "the edge is empty"
        occupancy = record.occupancy_pct
        if occupancy is None:
            return "the occupancy is empty"
        return None if isfinite(occupancy) else f"the occupancy {occupancy} is not a finite number"


class CheckpointFile(OptionalFile[Checkpoint]):
    """Columns detector, x_m, y_m; before all passes, in 1970."""

    time_column: str = ""

    def moment(self, text: str) -> int:
        """1970: a checkpoint stood there before anything passed it."""
        return 0

    def check(self, record: Checkpoint) -> str | None:
        """Why a row is no place."""
        return None if isfinite(record.x_m) and isfinite(record.y_m) else "its place is not finite"
