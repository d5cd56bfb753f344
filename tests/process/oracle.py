"""The oracle of the fault suite: it counts what numbered records became, from the log's own files.

Behind everything. It believes the log's rows and entries, the ledger's quarantine, and of an agent only how
many rows it says that its spool took. Guarantees: a record counts as delivered only if it came unchanged;
what is missing and was not declared counts as lost, and one that came again as duplicated, to the unit.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.errors import WireError
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from tests.process.flows import check_of

LETTERS, LATE = "_dead_letters", "_late"

Key = tuple[str, int, bytes]
"""The origin of a row: name, number and path."""


@dataclass(slots=True)
class Seen:
    """What the log holds of one channel."""

    rows: int = 0
    reordered: int = 0
    altered: int = 0
    dropped: int = 0
    quarantined: int = 0
    keys: Counter[Key] = field(default_factory=Counter)

    @property
    def delivered(self) -> int:
        """Records that are there, each counted once."""
        return len(self.keys)

    @property
    def duplicated(self) -> int:
        """Rows beyond the first of each record."""
        return self.rows - len(self.keys)

    def numbers(self) -> set[tuple[str, int]]:
        """Which records of which split are there."""
        return {(name, number) for name, number, _ in self.keys}


@dataclass(frozen=True, slots=True)
class Account:
    """The sums of a run over all channels: `accepted` are rows that entered a spool."""

    accepted: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    declared_dropped: int = 0
    quarantined: int = 0
    dead_lettered: int = 0
    surplus: int = 0
    """More than ever entered a spool, in any channel: what was dropped is declared too high, or made up."""

    @property
    def balances(self) -> bool:
        """I2, to the unit, in every channel."""
        return not self.lost and not self.surplus

    @property
    def is_exact(self) -> bool:
        """Everything once, in order, and nothing given up."""
        return self.balances and not (self.duplicated or self.reordered)


def read_log(folder: Path, flow: str) -> dict[str, Seen]:
    """What the log holds of `flow`, by channel; raises `LedgerError`."""
    reader = LogReader(folder)
    seen: dict[str, Seen] = {}
    for key, newest in sorted(reader.positions(flow).items()):
        last: dict[tuple[str, str, bytes, str], int] = {}
        for entry in reader.entries(flow, key, 0, newest):
            if entry.kind is not EntryKind.ROWS:
                continue
            found = seen.setdefault(entry.channel, Seen())
            for row in _rows(reader, entry):
                origin = (row["_origin_name"], row["_origin_number"], row["_origin_path"])
                found.rows += 1
                found.keys[origin] += 1
                place = (entry.channel, entry.device, entry.epoch, origin[0])
                found.reordered += last.get(place, -1) >= origin[1] and found.keys[origin] == 1
                last[place] = max(last.get(place, -1), origin[1])
                if "check" in row:
                    found.altered += row["check"] != check_of(row["device"], row["number"])
    _declared(reader, flow, seen)
    _quarantined(folder, flow, seen)
    return seen


def _rows(reader: LogReader, entry: Any) -> Iterator[dict[str, Any]]:
    yield from reader.table(entry).to_pylist()


def _declared(reader: LogReader, flow: str, seen: dict[str, Seen]) -> None:
    prefix = f"dropped:{flow}/"
    for name, count in reader.counters().items():
        if name.startswith(prefix):
            seen.setdefault(name.removeprefix(prefix), Seen()).dropped = count


def _quarantined(folder: Path, flow: str, seen: dict[str, Seen]) -> None:
    """Rows of batches that had their turn and were kept raw."""
    with closing(
        sqlite3.connect(f"{(folder / 'ledger.sqlite').absolute().as_uri()}?mode=ro", uri=True)
    ) as db:
        kept = db.execute(
            "SELECT payload, count FROM quarantine WHERE acked AND flow = ?", (flow,)
        ).fetchall()
    for payload, count in kept:
        try:
            channel = decode_header(decode_envelope(payload).header).channel
        except WireError:
            channel = ""
        seen.setdefault(channel, Seen()).quarantined += count


def account(seen: Mapping[str, Seen], accepted: Mapping[str, int]) -> Account:
    """The sums over all channels; `accepted`: rows by channel, over all devices."""
    lost = surplus = 0
    for channel in seen.keys() | accepted.keys():
        found = seen.get(channel, Seen())
        intact = found.delivered - found.altered
        rest = accepted.get(channel, 0) - intact - found.dropped - found.quarantined
        lost, surplus = lost + max(rest, 0), surplus + max(-rest, 0)
    letters = seen.get(LETTERS, Seen())
    return Account(
        sum(accepted.values()),
        sum(found.delivered - found.altered for found in seen.values()) - letters.delivered,
        lost,
        sum(found.duplicated for found in seen.values()),
        sum(found.reordered for found in seen.values()),
        sum(found.dropped for found in seen.values()),
        sum(found.quarantined for found in seen.values()),
        letters.delivered,
        surplus,
    )


def missing_numbers(seen: Mapping[str, Seen], split: str, records: int) -> set[int]:
    """Which of the records 0 to `records` of a split are nowhere in the log, as rows or as letters."""
    there = {
        number
        for channel in ("numbers", LATE, LETTERS)
        for name, number in seen.get(channel, Seen()).numbers()
        if name == split
    }
    return set(range(records)) - there


def tallies_breach(folder: Path, flow: str) -> str:
    """Where the running counts of a lane leave a number out or say one twice; empty where nowhere."""
    reader = LogReader(folder)
    counts: dict[str, list[int]] = {}
    for key, newest in sorted(reader.positions(flow).items()):
        for entry in reader.entries(flow, key, 0, newest, {"tallies"}):
            if entry.kind is EntryKind.ROWS:
                for row in _rows(reader, entry):
                    counts.setdefault(row["lane"], []).append(row["count"])
    for lane, found in sorted(counts.items()):
        if found != list(range(1, len(found) + 1)):
            return f"the tallies of lane {lane} do not count up by one"
    return ""
