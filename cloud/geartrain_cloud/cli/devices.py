"""`gear log devices`: where each device stands, and which devices hold the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geartrain.printable import printable
from geartrain.records.event_time import END_OF_TIME, format_time
from geartrain_client.terminal.screen import print_json, results, table_of
from geartrain_cloud.cli.inspected import Inspected


def list_devices(at: Inspected, *, as_json: bool) -> None:
    """Print every (flow, device); raises `GeartrainError`."""
    found = at.devices()
    if as_json:
        print_json(found)
        return
    heads = [
        "flow",
        "device",
        "contact",
        "epoch",
        "seq",
        "unacked",
        "spool bytes",
        "event time",
        "behind",
        "holds",
    ]
    out = results()
    out.print(table_of("", heads, [_line(one) for one in found], numbers=(4, 5, 6, 8)))
    for alarm in dict.fromkeys(text for one in found for text in _alarms(one)):
        out.print(f"alarm: {printable(alarm)}")
    if not found:
        out.print("no device is assigned yet")


def _alarms(one: Mapping[str, Any]) -> list[str]:
    return [
        f"flow {one['flow']}: {found['field']} {found['value']!r} came from the devices "
        f"{' and '.join(found['devices'])} ({found['rows']:,} rows from the second), but its source says "
        f'partitioned_by="{found["field"]}": give each {found["field"]} to one device, or leave that out, '
        "and run the flow again"
        for found in one["misplaced"]
    ]


def _line(one: Mapping[str, Any]) -> list[str]:
    def shown(name: str) -> str:
        return "" if one[name] is None else str(one[name])

    return [
        one["flow"],
        one["device"],
        shown("last_contact") or "never",
        one["epoch"],
        shown("seq"),
        shown("unacked"),
        shown("spool_bytes"),
        "ended" if one["event_time"] == format_time(END_OF_TIME) else shown("event_time"),
        shown("behind_s"),
        ", ".join(one["holds"]) or ("excluded" if one["excluded"] else ""),
    ]
