"""An explanation as data: the row, the steps that made it, the records of the log behind it, and what is not
known.

Between the tracer and REST. Guarantees: the answer is bounded, and counts all that it does not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geartrain.errors import GeartrainError
from geartrain.operators.arrival import ARRIVAL
from geartrain.operators.union import UNION
from geartrain.planning import Plan
from geartrain.records.event_time import format_time
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.explaining.held_row import HeldRow, find_row, json_row
from geartrain_cloud.explaining.logged import LoggedFlow, LoggedRows
from geartrain_cloud.explaining.places import Place
from geartrain_cloud.explaining.question import Question
from geartrain_cloud.explaining.reproducing import made_again
from geartrain_cloud.explaining.tracing import Trace, Tracer
from geartrain_cloud.log.reader import LogReader

NAMES_MAX = 100
"""Devices and splits that are named; all are counted."""
TEXT_CHARS_MAX = 1_000
"""Of a text in a record that is shown."""


def explain(question: Question, plan: Plan) -> dict[str, Any]:
    """Why the row is so; raises `GeartrainError`."""
    held = find_row(Path(question.tables), question.table, question.key)
    if held.sink not in plan.cloud:
        raise ExplainError(
            f"step {held.sink} wrote table {question.table}, but the app's flow has no such step now"
        )
    logged = LoggedFlow(LogReader(question.log), question.instance, plan, question.given_up)
    trace = Tracer(logged).trace(plan.graph[held.sink].inputs[0].step, held.place)
    if question.former:
        trace.notes.append(
            f"the app ran revision {question.former[:12]} before its last update: the log does not say which "
            "of the two made this row"
        )
    if logged.boundaries:
        trace.notes.append(
            f"the flow has come to revision {logged.newest}: all records are explained by its "
            "steps, and each names the revision that ran it"
        )
    return {
        "instance": question.instance,
        "table": question.table,
        "step": held.sink,
        "row": _finite(held.row),
        "rows_of_key": held.count,
        **_place(held.place),
        "revision": question.revision,
        "former_revision": question.former or None,
        "made_by": [asdict(one) for one in trace.made],
        "channels": [_channel(plan, name, count) for name, count in sorted(trace.counts.items())],
        "records": _records(logged, trace, question.limit),
        **_checked(logged, trace, held),
        "notes": trace.notes,
    }


def _channel(plan: Plan, channel: str, count: int) -> dict[str, Any]:
    """A channel with the steps that stood on devices before it."""
    above = plan.graph.ancestors(plan.channel(channel).stream)
    on_device = [
        step.id
        for step in plan.graph.steps
        if step.id in above and step.operator.kind not in (ARRIVAL, UNION)
    ]
    return {"id": channel, "records": count, "steps_on_devices": on_device}


def _records(logged: LoggedFlow, trace: Trace, limit: int) -> dict[str, Any]:
    devices: dict[str, int] = {}
    splits: dict[str, dict[str, Any]] = {}
    for one in trace.found:
        for device in one.devices:
            devices[device] = devices.get(device, 0) + 1
        for name, number in zip(one.rows.names, one.rows.numbers, strict=True):
            known = splits.setdefault(name, {"name": name, "records": 0, "first": number, "last": number})
            known["records"] += 1
            known["first"], known["last"] = min(known["first"], number), max(known["last"], number)
    newest = sorted(_places(trace), key=lambda one: one[0])[-limit:]
    return {
        "count": sum(trace.counts.values()),
        "devices": dict(sorted(devices.items())[:NAMES_MAX]),
        "devices_count": len(devices),
        "splits": [splits[name] for name in sorted(splits)[:NAMES_MAX]],
        "splits_count": len(splits),
        "shown": [_record(logged, one, row, place) for place, one, row in newest],
    }


def _places(trace: Trace) -> Iterator[tuple[Place, LoggedRows, int]]:
    """The place of each row that was found, and where the row is."""
    for one in trace.found:
        for row in range(len(one.rows)):
            path = b"" if one.rows.paths is None else one.rows.paths[row]
            yield (one.rows.times[row], one.rows.names[row], one.rows.numbers[row], path), one, row


def _record(logged: LoggedFlow, one: LoggedRows, row: int, place: Place) -> dict[str, Any]:
    entry, schema = one.entry, logged.plan.channel(one.entry.channel).schema
    return {
        **_place(place),
        "channel": entry.channel,
        "device": one.devices[row],
        "epoch": entry.epoch.hex(),
        "seq": one.seqs[row],
        "partition": entry.partition,
        "entry": entry.number,
        "row": one.indexes[row],
        "late": one.late[row],
        "overtaken": one.overtaken[row],
        "values": _finite(json_row(schema, [column[row] for column in one.rows.fields])),
        "revision": logged.revision_at(entry),
    }


def _checked(logged: LoggedFlow, trace: Trace, held: HeldRow) -> dict[str, Any]:
    """Whether these records alone make the row again."""
    if not trace.whole:
        return {"reproduced": None, "why": "more records had a part than are followed"}
    try:
        again = made_again(logged, trace, held)
    except GeartrainError as error:
        return {"reproduced": False, "why": " ".join(str(error).split())}
    if again is None:
        return {"reproduced": False, "why": "run over these records alone, the flow gives no such row"}
    differs = sorted(name for name, value in held.row.items() if again.get(name) != value)
    if differs:
        return {"reproduced": False, "why": f"run over these records alone, {', '.join(differs)} differ"}
    return {"reproduced": True, "why": ""}


def _place(place: Place) -> dict[str, Any]:
    time, name, number, path = place
    return {
        "event_time": format_time(time),
        "event_time_us": time,
        "origin": {"name": name, "number": number, "path": path.hex()},
    }


def _finite(row: Any) -> dict[str, Any]:
    """A row as JSON can hold it, without long texts."""
    return {name: _short(value) for name, value in row.items()}


def _short(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return value[:TEXT_CHARS_MAX] + "..."
    return value
