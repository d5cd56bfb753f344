"""`gear log`: what is in the log, and whether it is whole.

Reads what ingest has committed, while it runs or afterwards. Guarantees: only `trim` and `forget` write.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geartrain.adapters.system import SystemClock
from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain.records.event_time import START_OF_TIME, format_time
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.cli.state_place import log_folder
from geartrain_cloud.log.browse import find_entries, places
from geartrain_cloud.log.queries import registered, unregister
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.retention import Retention, retain
from geartrain_cloud.log.verify import Damage, verify_log
from geartrain_cloud.ports import Entry


def list_log(state: Path, *, as_json: bool) -> None:
    """Print every channel of the log; raises `GeartrainError`."""
    found = [
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
        for info in places(log_folder(state))
    ]
    if as_json:
        print_json(found)
        return
    names = ["flow", "partition", "channel", "first", "last", "position", "rows", "segments", "bytes"]
    heads = [*names, "old files", "clock"]
    lines = [
        [*(str(one[n]) for n in [*names, "old_files"]), str(one["clock_time"] or "not yet")] for one in found
    ]
    results().print(table_of("", heads, lines, numbers=[1, *range(3, 10)]))


def show_log(
    state: Path,
    place: str,
    after: int | None,
    limit: int,
    *,
    partition: int = 0,
    with_rows: bool,
    as_json: bool,
) -> None:
    """Print entries of `FLOW` or `FLOW/CHANNEL` in one partition, with their rows if asked for.

    Raises `GeartrainError`.
    """
    folder = log_folder(state)
    flow, _, channel = place.partition("/")
    known = {(i.flow, i.channel) for i in places(folder) if i.partition == partition}
    if (flow, channel) not in known | {(known_flow, "") for known_flow, _ in known}:
        has = ", ".join(sorted(f"{f}/{c}" if c else f for f, c in known)) or "nothing yet"
        raise ConfigError(f"partition {partition} of the log has no {place!r}; it has {has}")
    reader = LogReader(folder)
    entries = [
        _entry(reader, entry, with_rows=with_rows)
        for entry in find_entries(folder, flow, partition, channel, after, limit)
    ]
    if as_json:
        print_json(entries)
        return
    heads = ["position", "kind", "channel", "device", "seq", "rows", "clocks", "detail"]
    lines = [
        [
            str(e["position"]),
            e["kind"],
            e["channel"],
            e["device"],
            str(e["seq"]),
            str(e["count"]),
            ", ".join(f"{source} {time or 'not yet'}" for source, time in e["clock_times"].items()),
            " ".join(text for text in (e["source"], e["detail"]) if text),
        ]
        for e in entries
    ]
    out = results()
    out.print(table_of(place, heads, lines, numbers=(0, 4, 5)))
    for entry in entries if with_rows else ():
        for row in entry["rows"]:
            shown = ", ".join(f"{name}={value!r}" for name, value in row.items())
            out.print(printable(f"{entry['position']}: {shown}"))


def check_log(state: Path, *, as_json: bool) -> bool:
    """Read the whole log and print what is damaged; whether it is whole. Raises `GeartrainError`."""
    found = verify_log(log_folder(state))
    if as_json:
        print_json({"whole": not found.damages, **asdict(found)})
        return not found.damages
    out = results()
    for damage in found.damages:
        out.print(printable(f"damaged: {describe(damage)}"))
    unchecked = f"; {found.unchecked} of them without a checksum" if found.unchecked else ""
    out.print(
        f"read {found.entries:,} entries with {found.rows:,} rows in {found.segments:,} segments "
        f"({found.segment_bytes:,} bytes{unchecked}): "
        + ("the log is whole" if not found.damages else f"{len(found.damages)} damaged ranges")
    )
    return not found.damages


def describe(damage: Damage) -> str:
    """A damage as a sentence."""
    if not damage.first:
        return f"{damage.file}: {damage.reason}"
    positions = (
        f"position {damage.first}"
        if damage.first == damage.last
        else f"positions {damage.first} to {damage.last}"
    )
    channel = f", channel {damage.channel}" if damage.channel else ""
    return f"{damage.flow}/{damage.partition}{channel}, {positions} ({damage.file}): {damage.reason}"


def trim_log(state: Path, limits: Retention, *, as_json: bool) -> None:
    """Remove old segments that no query needs, and print what went; raises `GeartrainError`."""
    if limits.older_than_s is None and limits.bytes_max is None:
        raise ConfigError("say what may go: --older-than DAYS, --bytes-max BYTES, or both")
    done = retain(log_folder(state), limits, SystemClock().now_us())
    if as_json:
        print_json(asdict(done))
        return
    held = f"; {done.held} more are due, but no query is done with them" if done.held else ""
    results().print(
        f"removed {done.segments:,} segments ({done.bytes:,} bytes), {done.bytes_left:,} bytes are left{held}"
    )


def list_queries(state: Path, *, as_json: bool) -> None:
    """Print the queries for which the log is kept; raises `GeartrainError`."""
    found = [asdict(one) for one in registered(log_folder(state))]
    if as_json:
        print_json(found)
        return
    heads = ["name", "flow", "key", "position"]
    out = results()
    out.print(table_of("", heads, [[str(one[head]) for head in heads] for one in found], numbers=(3,)))
    if not found:
        out.print("no query is registered: nothing of the log may go")


def forget_query(state: Path, name: str) -> None:
    """Keep nothing for a query any more, which has ended for good; raises `GeartrainError`."""
    folder = log_folder(state)
    flows = sorted({one.flow for one in registered(folder) if one.name == name})
    if not flows:
        raise ConfigError(f"no query {name!r} is registered: see gear log queries")
    for flow in flows:
        unregister(folder, name, flow)
    results().print(printable(f"nothing is kept for {name} any more"))


def time_text(time_us: int) -> str | None:
    """A clock or event time as text, None where there is none yet."""
    return None if time_us == START_OF_TIME else format_time(time_us)


def json_value(value: Any) -> Any:
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
        "detail": entry.detail,
    }
    if with_rows:
        rows = reader.table(entry).to_pylist() if entry.segment else []
        found["rows"] = [{name: json_value(value) for name, value in row.items()} for row in rows]
    return found
