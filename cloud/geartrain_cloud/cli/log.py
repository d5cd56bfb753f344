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
from geartrain_cloud.cli.screen import print_json, results, table_of
from geartrain_cloud.cli.state_place import log_folder
from geartrain_cloud.log.browse import places
from geartrain_cloud.log.queries import registered, unregister
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.retention import Retention, retain
from geartrain_cloud.log.verify import Damage, verify_log
from geartrain_cloud.ports import Entry


def list_log(state: Path, *, as_json: bool) -> None:
    """Print every channel of the log; raises `GeartrainError`."""
    found = [
        {
            "flow": info.newest.flow,
            "channel": info.newest.channel,
            "partition": info.newest.partition,
            "first": info.first,
            "position": info.newest.number,
            "rows": info.rows,
            "segments": info.segments,
            "bytes": info.bytes,
            "old_files": info.replaced,
            "old_bytes": info.replaced_bytes,
            "clock": info.newest.clock,
            "clock_time": time_text(info.newest.clock),
        }
        for info in places(log_folder(state))
    ]
    if as_json:
        print_json(found)
        return
    names = ["flow", "channel", "partition", "first", "position", "rows", "segments", "bytes", "old_files"]
    heads = [*(name.replace("_", " ") for name in names), "clock"]
    lines = [[*(str(one[n]) for n in names), str(one["clock_time"] or "not yet")] for one in found]
    results().print(table_of("", heads, lines, numbers=range(2, 9)))


def show_log(
    state: Path, place: str, after: int | None, limit: int, *, with_rows: bool, as_json: bool
) -> None:
    """Print entries of `FLOW/CHANNEL`, with their rows if asked for; raises `GeartrainError`."""
    folder = log_folder(state)
    flow, _, channel = place.partition("/")
    newest = {(i.newest.flow, i.newest.channel): i for i in places(folder)}
    if (flow, channel) not in newest:
        known = ", ".join(f"{f}/{c}" for f, c in newest) or "none yet"
        raise ConfigError(f"the log has no channel {place!r}; it has {known}")
    end = newest[flow, channel].newest.number
    start = max(0, end - limit) if after is None else after
    reader = LogReader(folder)
    entries = [
        _entry(reader, entry, with_rows=with_rows)
        for entry in reader.entries(flow, channel, start, min(end, start + limit))
    ]
    if as_json:
        print_json(entries)
        return
    heads = ["position", "kind", "device", "seq", "rows", "clock", "detail"]
    lines = [
        [
            str(e["position"]),
            e["kind"],
            e["device"],
            str(e["seq"]),
            str(e["count"]),
            e["clock_time"] or "",
            e["detail"],
        ]
        for e in entries
    ]
    out = results()
    out.print(table_of(place, heads, lines, numbers=(0, 3, 4)))
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
    place = f"{damage.flow}/{damage.channel} partition {damage.partition}"
    return f"{place}, {positions} ({damage.file}): {damage.reason}"


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
        "clock": entry.clock,
        "clock_time": time_text(entry.clock),
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
