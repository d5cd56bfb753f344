"""What is in the log, as JSON values: its channels, entries, queries, and whether it is whole.

For `gear log` and for REST. Reads what ingest has committed, while it runs or afterwards. Guarantees: only
`forget` writes. A page of entries holds at most so many rows, or one entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from geartrain.records.event_time import START_OF_TIME, format_time
from geartrain_cloud.errors import AbsentError
from geartrain_cloud.log.browse import find_entries, places
from geartrain_cloud.log.entry_reasons import entry_sentence
from geartrain_cloud.log.queries import registered, unregister
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import Entry

ROWS_MAX = 10_000
"""Rows of a page of entries."""


def channels(folder: Path) -> list[dict[str, Any]]:
    """Every channel of the log in `folder`; raises `LedgerError`."""
    return [
        {
            "flow": info.flow,
            "partition": info.partition,
            "channel": info.channel,
            "first": info.first,
            "last": info.last,
            "position": info.position,
            "rows": info.rows,
            "segments": info.segments,
            "bytes": info.bytes,
            "old_files": info.replaced,
            "old_bytes": info.replaced_bytes,
            "clocks": dict(info.clocks),
            "clock_time": time_text(info.clock),
        }
        for info in places(folder)
    ]


def entries(
    folder: Path,
    flow: str,
    channel: str = "",
    *,
    partition: int = 0,
    after: int | None = None,
    limit: int = 20,
    with_rows: bool = False,
) -> tuple[list[dict[str, Any]], int | None]:
    """At most `limit` entries of a flow in one partition, of `channel` unless that is empty: those that
    follow the position `after`, or the newest. With them, where to go on if rows cut the page short.

    Raises `AbsentError` where the log has no such place, and `LedgerError`.
    """
    known = {(i.flow, i.channel) for i in places(folder) if i.partition == partition}
    if (flow, channel) not in known | {(known_flow, "") for known_flow, _ in known}:
        named = f"{flow}/{channel}" if channel else flow
        has = ", ".join(sorted(f"{f}/{c}" if c else f for f, c in known)) or "nothing yet"
        raise AbsentError(f"partition {partition} of the log has no {named!r}; it has {has}")
    found = find_entries(folder, flow, partition, channel, after, limit)
    fit = _fitting(found) if with_rows else len(found)
    reader = LogReader(folder)
    page = [_entry(reader, entry, with_rows=with_rows) for entry in found[:fit]]
    return page, found[fit - 1].number if fit < len(found) else None


def _fitting(found: Iterable[Entry]) -> int:
    """How many of the entries a page takes with their rows."""
    rows = count = 0
    for entry in found:
        rows += entry.count if entry.segment else 0
        if count and rows > ROWS_MAX:
            break
        count += 1
    return count


def verified(folder: Path) -> dict[str, Any]:
    """Whether the log is whole, and what is damaged; raises `GeartrainError`."""
    from geartrain_cloud.log.verify import verify_log  # pyarrow: control starts without it

    found = verify_log(folder)
    return {"whole": not found.damages, **asdict(found)}


def queries(folder: Path) -> list[dict[str, Any]]:
    """The queries for which the log is kept; raises `LedgerError`."""
    return [asdict(one) for one in registered(folder)]


def forget(folder: Path, name: str) -> None:
    """Keep nothing for a query any more; raises `AbsentError` where there is none, and `LedgerError`."""
    flows = sorted({one.flow for one in registered(folder) if one.name == name})
    if not flows:
        raise AbsentError(f"no query {name!r} is registered: see gear log queries")
    for flow in flows:
        unregister(folder, name, flow)


def time_text(time_us: int) -> str | None:
    """A clock or event time as text, None where there is none yet."""
    return None if time_us == START_OF_TIME else format_time(time_us)


def _json_value(value: Any) -> Any:
    """A value of a row as JSON can hold it: bytes in hexadecimal, times as text, no NaN."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else value.isoformat()


def _entry(reader: LogReader, entry: Entry, *, with_rows: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "position": entry.number,
        "kind": entry.kind.value,
        "channel": entry.channel,
        "source": entry.source,
        "clocks": dict(entry.clocks),
        "clock_times": {source: time_text(clock) for source, clock in entry.clocks.items()},
        "device": entry.device,
        "epoch": entry.epoch.hex(),
        "seq": entry.seq,
        "segment": entry.segment,
        "first_row": entry.first_row,
        "count": entry.count,
        "detail": entry_sentence(entry.reason),
        "reason": msgspec.to_builtins(entry.reason),
    }
    if with_rows:
        rows = reader.table(entry).to_pylist() if entry.segment else []
        found["rows"] = [{name: _json_value(value) for name, value in row.items()} for row in rows]
    return found
