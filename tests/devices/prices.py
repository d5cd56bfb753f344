"""A record, a source and files for the tests of the CSV replay."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from geartrain import Record
from geartrain.source import Batch, Reject, Split
from geartrain_devices.csv_replay import CsvReplay


class Price(Record):
    symbol: str
    price: float


class Everything(Record):
    flag: bool
    count: int
    ratio: float
    name: str
    raw: bytes
    seen: datetime
    maybe: float | None
    note: str | None


class Prices(CsvReplay[Price]):
    time_column: str = "date"
    partition_column: str = "symbol"

    def check(self, record: Price) -> str | None:
        if record.symbol == "BOOM":
            raise RuntimeError("the check itself fails")
        return (
            None
            if 0 < record.price < math.inf
            else f"the price {record.price} is not a finite number above 0"
        )


class Anything(CsvReplay[Everything]):
    time_column: str = "seen"


def write(path: Path, text: str | bytes) -> str:
    """The file's name, after writing it."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def open_split(source: CsvReplay[Any], kind: type[Any] = Price, device: str = "d1") -> Split:
    """The one split of a source on a device."""
    (split,) = source.open(device, "quotes", kind)
    return split


class Replayed:
    """All that a split gave."""

    def __init__(self, polls: Sequence[Batch]) -> None:
        self.polls = polls
        self.values: list[Any] = [value for poll in polls for value in poll.values]
        self.times = [time for poll in polls for time in poll.times]
        self.numbers = [number for poll in polls for number in poll.numbers]
        self.rejects: list[Reject] = [reject for poll in polls for reject in poll.rejects]

    @property
    def rows(self) -> list[tuple[Any, int, int]]:
        return list(zip(self.values, self.times, self.numbers, strict=True))


def replay(split: Split, start: int = 0, limit: int = 7, reads_max: int = 100_000) -> Replayed:
    """Read a split from a position to its end."""

    async def read_all() -> Replayed:
        polls: list[Batch] = []
        position = start
        while len(polls) < reads_max:
            poll = await split.read(position, limit)
            assert len(poll.values) + len(poll.rejects) <= limit
            polls.append(poll)
            position = poll.position
            if poll.ended:
                break
        await split.close()
        return Replayed(polls)

    return asyncio.run(read_all())
