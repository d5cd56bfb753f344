"""The log of many hosted flows, written for tests; and what plain Python makes of the records in it."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain.records.letters import Letter
from geartrain_cloud.sinks.tables import rows
from tests.spark.flows import Reading
from tests.spark.log_writer import LogWriter

LETTER, RAISE, EXIT, HANG = 1013.0, 1333.0, 1666.0, 1777.0
SLOW = 500.5
FACTORS = (0.5, 0.25, 0.75, 0.125, -0.5, 1.0)
T0_US = 1_700_000_000_000_000
SENSORS = 40
TABLES = ("each_sum", "last_sum", "kept", "dead_letters")
DEEP = 6
"""The number of the flow with three shuffles."""
DEEP_TABLES = ("level", "spread")

Row = tuple[Reading, int, str, int]


class MillLog:
    """The log of one instance of a flow of `mill`."""

    def __init__(self, folder: Path, instance: str, number: int, *, sealed: bool = False) -> None:
        self.instance, self.number = instance, number
        kinds = {"readings": Reading, "_dead_letters": Letter, "_late": Letter}
        self.writer = LogWriter(folder, instance, kinds, sealed=sealed)
        self.writer._segments = zlib.crc32(instance.encode()) * 10_000  # its files have names of their own
        self.records: list[Row] = []
        self._rng = random.Random(f"{instance}{number}")

    def append(self, count: int, special: Sequence[float] = ()) -> None:
        """Add records, 5 ms apart; then one of each special value."""
        values = [float(self._rng.randrange(0, 12)) for _ in range(count)]
        found: list[Row] = []
        for value in [*values, *special]:
            number = len(self.records) + len(found)
            reading = Reading(f"s{self._rng.randrange(SENSORS)}", value)
            found.append((reading, T0_US + number * 5_000, "device-1/readings", number))
        self.records += found
        self.writer.append("readings", found, rows_per_entry=50, clock=found[-1][1])

    def expected(self, upto: int | None = None) -> list[tuple[str, int, float]]:
        """The rows of `each_sum`, in order."""
        count: dict[str, int] = {}
        total: dict[str, float] = {}
        found = []
        for reading, _, _, _ in self.records[:upto]:
            name, value = reading.sensor, reading.value
            if value <= self.number % 3 or value >= LETTER:
                continue
            count[name] = count.get(name, 0) + 1
            total[name] = total.get(name, 0.0) * FACTORS[self.number % len(FACTORS)] + value
            found.append((name, count[name], total[name]))
        return found

    def assert_tables(self, path: Path, letters: int = 0) -> None:
        """The tables hold what plain Python makes of the records: each row once, none too many."""
        names = (*TABLES, *(DEEP_TABLES if self.number == DEEP else ()))
        found = {name: rows(path, name, canonical=True) for name in names}
        self.assert_rows({name: [tuple(row.values()) for row in found[name]] for name in names}, letters)

    def assert_rows(self, tables: Mapping[str, Sequence[tuple[Any, ...]]], letters: int = 0) -> None:
        """As `assert_tables`, of rows in canonical order."""
        wanted = self.expected()
        assert list(tables["each_sum"]) == wanted
        assert sorted(tables["last_sum"]) == sorted({row[0]: row for row in wanted}.values())
        kept = [(r.sensor, r.value) for r, *_ in self.records if r.value > self.number % 3]
        assert list(tables["kept"]) == kept
        assert len(tables["dead_letters"]) == letters
        if self.number == DEEP:
            ordered = self.expected(len(self.records) - 1)  # the last one waits until the clock is past it
            levels = each_so_far(row[1] for row in ordered)
            assert sorted(tables["level"]) == sorted(levels)
            assert sorted(tables["spread"]) == sorted(each_so_far(n for _, n in levels))


def each_so_far(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Each key with how often it has come so far: the same pairs in whatever order keys come."""
    seen: Counter[int] = Counter()
    found = []
    for key in keys:
        seen[key] += 1
        found.append((key, seen[key]))
    return found
