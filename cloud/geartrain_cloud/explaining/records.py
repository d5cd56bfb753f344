"""A page of the records of an instance in the log, as JSON holds them without loss.

On the read side of the log, in a short-lived process that imports no user's code. Guarantees: pages that go
on where the one before ended hold each record once, in the order of each partition. A page is bounded. Each
record is as its device sent it, and names its type: a channel has several where an update gave it another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from geartrain.graph.graph import CLAIMS, STATE
from geartrain.records.event_time import format_time
from geartrain.schema import FieldType
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.explaining.question import RecordsQuestion
from geartrain_cloud.log.arrow import from_table
from geartrain_cloud.log.part import SYSTEM_NAMES
from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.log.segment import schema_of
from geartrain_cloud.ports import Entry

PAGE_ROWS, PAGE_BYTES = 10_000, 4 << 20
"""After which a page ends with the entry at hand."""
RUN_ROWS = 2_000
"""Of entries that are read together: each question to the ledger opens it."""
SCANNED_ROWS = 500_000
"""Rows of other times that a page looks at, at the most."""
_TIMELESS = frozenset({STATE, CLAIMS})
"""Channels whose rows have no time of their own: what became of state at their places, in any range."""


def page_of(question: RecordsQuestion) -> dict[str, Any]:
    """The next page; raises `LedgerError` and `ExplainError`."""
    log, flow = LogReader(question.log), question.instance
    ends = question.upto or log.positions(flow)
    if unknown := ends.keys() - log.keys():
        raise ExplainError(f"upto: the log has no partition {min(unknown)}: give what the page before has")
    at = {key: question.after.get(key, 0) for key in ends}
    found: dict[str, Any] = {"records": [], "upto": ends, "clocks": log.clocks_at(flow, ends), "removed": {}}
    types: dict[str, dict[str, str]] = {}
    size = scanned = 0

    def is_full() -> bool:
        return size >= PAGE_BYTES or scanned >= SCANNED_ROWS or len(found["records"]) >= PAGE_ROWS

    for key, end in ends.items():
        while at[key] < end and not is_full():
            upto = min(end, log.limit(flow, key, at[key], Room(RUN_ROWS)))
            for entry in log.entries(flow, key, at[key], upto):
                at[key] = entry.number
                scanned += entry.count
                if entry.count and not entry.segment:
                    found["removed"][entry.channel] = entry.number
                for record in _records(log, entry, types, question) if entry.segment else ():
                    found["records"].append(record)
                    size += len(msgspec.json.encode(record))
                if is_full():
                    break
            else:
                at[key] = upto
    return {
        **found,
        "after": at,
        "done": at == ends,
        "types": types,
    }


def _records(
    log: LogReader, entry: Entry, types: dict[str, dict[str, str]], question: RecordsQuestion
) -> Iterator[dict[str, Any]]:
    table = log.table(entry)
    schema = schema_of(table) or log.schema(entry.flow, entry.channel)
    if schema is None:
        raise ExplainError(f"channel {entry.channel}: no device has announced what its records are")
    rows = from_table(schema, table)
    said: list[list[Any]] = [table.column(name).to_pylist() for name in SYSTEM_NAMES[4:]]
    paths = rows.paths if rows.paths is not None else [b""] * len(rows)
    known = types.setdefault(entry.channel, {})
    for row, time in enumerate(rows.times):
        if question.begin <= time < question.end or entry.channel in _TIMELESS:
            if schema.schema_id not in known:
                known[schema.schema_id] = schema.to_json()
            device, seq, late, overtaken = (column[row] for column in said)
            values = [column[row] for column in rows.fields]
            yield {
                "channel": entry.channel,
                "event_time": "" if entry.channel in _TIMELESS else format_time(time),
                "time": time,
                "split": rows.names[row],
                "number": rows.numbers[row],
                "path": paths[row].hex(),
                "device": device,
                "epoch": entry.epoch.hex(),
                "seq": seq,
                "entry": f"{entry.partition}:{entry.number}",
                "late": late,
                "overtaken": overtaken,
                "schema": schema.schema_id,
                "values": {
                    field.name: _value(field.type, value)
                    for field, value in zip(schema.fields, values, strict=True)
                },
            }


def _value(kind: FieldType, value: Any) -> Any:
    """A value of a column: bytes in hexadecimal, and as text what no number of JSON can say."""
    if kind is FieldType.BYTES and value is not None:
        return value.hex()
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
