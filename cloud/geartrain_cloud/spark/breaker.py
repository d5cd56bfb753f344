"""The breaker: stops a flow that turns too many of its records into dead letters, until a person resumes it.

It stands beside the record's path and counts after the write of each micro-batch. One bad record stops
nothing. A flow that refuses one record in a hundred is wrong, or reads data that it was not made for; going
on would only fill the table of dead letters.

Guarantees: the flow stops only after its tables durably hold what was counted. So nothing is lost or counted
twice when it goes on. It stays stopped through new starts of the host, with the same sentence.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

from geartrain.adapters.files import write_private
from geartrain_cloud.spark.errors import BreakerError

MICRO_BATCHES = 20
"""Micro-batches that are counted together: the last ones of this life of the host."""
LETTERS_MIN = 300
"""Fewer letters never stop a flow, whatever their share."""
LETTERS_PERCENT = 1.0
"""The share of the records that may become dead letters; 100 or more: any."""

_FILE = "tripped.json"


def too_many_letters(records: int, letters: int, percent: float = LETTERS_PERCENT) -> bool:
    """Whether `letters` dead letters of `records` records are more than a flow may have: `LETTERS_MIN` of
    them at least, and more than `percent` of all. `gear run` has the same rule.
    """
    return letters >= LETTERS_MIN and percent < 100 and letters * 100 > records * percent


class Breaker:
    """The breaker of a generation of the flow `flow`, whose folder is `folder`."""

    def __init__(self, flow: str, folder: Path, percent: float = LETTERS_PERCENT) -> None:
        """Raises `BreakerError` where it has stopped this generation."""
        self._flow, self._file, self._percent = flow, folder / _FILE, percent
        self._counted: deque[tuple[int, int]] = deque(maxlen=MICRO_BATCHES)
        if self._file.exists():
            raise BreakerError(_reason_in(self._file, flow))

    def count(self, records: int, letters: int, newest: str = "") -> None:
        """Take a micro-batch that was written: records of the log, dead letters made of them, the reason of
        the newest. Raises `BreakerError` where the last ones together have too many.
        """
        self._counted.append((records, letters))
        records, letters = (sum(column) for column in zip(*self._counted, strict=True))
        if not too_many_letters(records, letters, self._percent):
            return
        reason = (
            f"flow {self._flow} stopped: {letters:,} dead letters of {records:,} records, more than "
            f"{self._percent:g} % (the newest: {newest}); look at them with `gear deadletters ls`, mend the "
            f"flow or its source if it is theirs, then let it go on with {_way_on(self._flow)}: nothing is "
            "lost"
        )
        write_private(self._file, json.dumps({"flow": self._flow, "reason": reason}, indent=1) + "\n")
        raise BreakerError(reason)


def _reason_in(file: Path, flow: str) -> str:
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, TypeError, KeyError):
        return f"flow {flow} was stopped by its dead letters: let it go on with {_way_on(flow)}"


def _way_on(flow: str) -> str:
    return f"`gear resume {flow.rpartition('.')[0] or flow}`"
