"""`gear log`: what is in the log, and whether it is whole.

Guarantees: what devices wrote is shown with its control characters escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.cli.inspected import Inspected
from geartrain_cloud.log.retention import Retention


def list_log(at: Inspected, *, as_json: bool) -> None:
    """Print every channel of the log; raises `GeartrainError`."""
    found = at.channels()
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
    at: Inspected,
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
    flow, _, channel = place.partition("/")
    entries = at.entries(flow, channel, partition, after, limit, with_rows=with_rows)
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


def check_log(at: Inspected, *, as_json: bool) -> bool:
    """Read the whole log and print what is damaged; whether it is whole. Raises `GeartrainError`."""
    found = at.verified()
    damages = found["damages"]
    if as_json:
        print_json(found)
        return not damages
    out = results()
    for damage in damages:
        out.print(printable(f"damaged: {describe(damage)}"))
    unchecked = f"; {found['unchecked']} of them without a checksum" if found["unchecked"] else ""
    out.print(
        f"read {found['entries']:,} entries with {found['rows']:,} rows in {found['segments']:,} segments "
        f"({found['segment_bytes']:,} bytes{unchecked}): "
        + ("the log is whole" if not damages else f"{len(damages)} damaged ranges")
    )
    return not damages


def describe(damage: Mapping[str, Any]) -> str:
    """A damage as a sentence."""
    first, last, file = damage["first"], damage["last"], damage["file"]
    if not first:
        return f"{file}: {damage['reason']}"
    positions = f"position {first}" if first == last else f"positions {first} to {last}"
    channel = f", channel {damage['channel']}" if damage["channel"] else ""
    return f"{damage['flow']}/{damage['partition']}{channel}, {positions} ({file}): {damage['reason']}"


def trim_log(at: Inspected, limits: Retention, *, as_json: bool) -> None:
    """Remove old segments that no query needs, and print what went; raises `GeartrainError`."""
    if not limits.is_limited:
        raise ConfigError("say what may go: --older-than DAYS, --bytes-max BYTES, or both")
    done = at.trim(limits)
    if as_json:
        print_json(done)
        return
    held = f"; {done['held']} more are due, but no query is done with them" if done["held"] else ""
    results().print(
        f"removed {done['segments']:,} segments ({done['bytes']:,} bytes), {done['bytes_left']:,} bytes are "
        f"left{held}"
    )


def list_queries(at: Inspected, *, as_json: bool) -> None:
    """Print the queries for which the log is kept; raises `GeartrainError`."""
    found = at.queries()
    if as_json:
        print_json(found)
        return
    heads = ["name", "flow", "key", "position"]
    out = results()
    out.print(table_of("", heads, [[str(one[head]) for head in heads] for one in found], numbers=(3,)))
    if not found:
        out.print("no query is registered: nothing of the log may go")


def forget_query(at: Inspected, name: str) -> None:
    """Keep nothing for a query any more, which has ended for good; raises `GeartrainError`."""
    at.forget(name)
    results().print(printable(f"nothing is kept for {name} any more"))
