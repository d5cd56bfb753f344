"""Where each device stands, and which devices hold the clock.

Reads the ledger, what ingest says of itself, and the agents' own reports if these are in the same state
folder. Guarantees: epoch, seq and watermarks are durable ones. What nobody reports is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from geartrain.records.event_time import END_OF_TIME, START_OF_TIME, format_time
from geartrain_cloud.inspecting.entries import time_text
from geartrain_cloud.inspecting.places import log_folder, run_folder
from geartrain_cloud.log.browse import all_cursors, assigned_devices, excluded_devices
from geartrain_cloud.platform.places import STATUS_FILE, PlatformPlaces, read_report
from geartrain_cloud.ports import NO_SOURCE, AckCursor


def describe_devices(state: Path) -> list[dict[str, Any]]:
    """Every (flow, device) as JSON values, sorted; raises `GeartrainError`."""
    folder, places = log_folder(state), PlatformPlaces(run_folder(state))
    cursors = {(c.flow, c.device): c for c in all_cursors(folder)}
    had: dict[tuple[str, str], list[str]] = {}
    for flow, device, source in assigned_devices(folder):
        had.setdefault((flow, device), []).extend([] if source == NO_SOURCE else [source])
    marks = _watermarks(cursors, had)
    reports = [read_report(path).get("flows", {}) for path in sorted(folder.glob("status*.json"))]
    found, out = [], excluded_devices(folder)
    for flow, device in sorted(cursors.keys() | had.keys()):
        cursor, sources = cursors.get((flow, device)), had.get((flow, device), [])
        away = [s for s in sources if (flow, device, s) in out]
        own = {source: marks[flow, source][device] for source in sources}
        agent = _agent_status(places, device, flow)
        reported = _newest(report.get(flow, {}).get("devices", {}).get(device, {}) for report in reports)
        found.append(
            {
                "flow": flow,
                "device": device,
                "last_contact": _contact(reported),
                "epoch": "" if cursor is None else cursor.epoch.hex(),
                "ordinal": 0 if cursor is None else cursor.ordinal,
                "seq": 0 if cursor is None else cursor.seq,
                **_spool(agent, cursor),
                "event_time": _event_time(own.values(), agent),
                "behind_s": _behind_s(flow, own, marks),
                "holds": [
                    s
                    for s, mark in own.items()
                    if s not in away
                    and _holds(mark, [m for d, m in marks[flow, s].items() if (flow, d, s) not in out])
                ],
                "excluded": away,
                "misplaced": _misplaced(reports, flow, device),
            }
        )
    return found


def _event_time(marks: Iterable[int], agent: Mapping[str, Any]) -> str | None:
    """How far the device has come: the least watermark of the sources that have one, as ingest has it made
    durable, else as the agent says. A source that has given nothing yet says nothing of the others.
    """
    found = [mark for mark in marks if mark > START_OF_TIME]
    if not found:
        said = agent.get("watermarks", {}).values()
        found = [mark for mark in said if isinstance(mark, int) and mark > START_OF_TIME]
    return time_text(min(found, default=START_OF_TIME))


def _newest(reported: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What was said of a device by the ingest that last heard of it: several may share the fleet."""
    return max(reported, key=lambda one: int(one.get("last_contact_us", -1)), default={})


def _misplaced(reports: Iterable[Mapping[str, Any]], flow: str, device: str) -> list[dict[str, Any]]:
    """The values of partition fields that came from this device and from another one."""
    found = (one for report in reports for one in report.get(flow, {}).get("misplaced", []))
    return [one for one in found if device in one["devices"]]


def _watermarks(
    cursors: Mapping[tuple[str, str], AckCursor], had: Mapping[tuple[str, str], list[str]]
) -> dict[tuple[str, str], dict[str, int]]:
    """By (flow, source), the watermark of each device that has it."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for (flow, device), sources in had.items():
        cursor = cursors.get((flow, device))
        for source in sources:
            mark = START_OF_TIME if cursor is None else cursor.source_watermarks.get(source, START_OF_TIME)
            found.setdefault((flow, source), {})[device] = mark
    return found


def _holds(mark: int, of_live: list[int]) -> bool:
    lowest = min(of_live)
    return mark == lowest < min(END_OF_TIME, max(of_live))


def _behind_s(
    flow: str, own: Mapping[str, int], marks: Mapping[tuple[str, str], Mapping[str, int]]
) -> float | None:
    """How far the device is behind the foremost one that has not ended, in the worst source, seconds."""
    behind = []
    for source, mark in own.items():
        others = [m for m in marks[flow, source].values() if START_OF_TIME < m < END_OF_TIME]
        if START_OF_TIME < mark < END_OF_TIME:
            behind.append((max(others) - mark) / 1e6)
    return max(behind, default=None)


def _contact(reported: Mapping[str, Any]) -> str | None:
    contact = reported.get("last_contact_us")
    return format_time(contact) if isinstance(contact, int) and contact > 0 else None


def _agent_status(places: PlatformPlaces, device: str, flow: str) -> dict[str, Any]:
    """What an agent says of one flow: several of them have folders of their own."""
    own = read_report(places.agent(device, flow) / STATUS_FILE)
    return own or read_report(places.device(device) / STATUS_FILE)


def _spool(agent: Mapping[str, Any], cursor: AckCursor | None) -> dict[str, Any]:
    # Another epoch's report says nothing of this one.
    spooled = agent.get("spooled_seq") if cursor is None or agent.get("epoch") == cursor.epoch.hex() else None
    seq = 0 if cursor is None else cursor.seq
    return {
        "spooled_seq": spooled,
        "unacked": max(0, spooled - seq) if isinstance(spooled, int) else None,
        "spool_bytes": agent.get("spool_bytes"),
    }
