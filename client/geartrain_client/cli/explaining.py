"""`gear explain`: why a row of a table is as it is.

Guarantees: what a row or a record holds cannot steer a terminal. What is not shown is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from geartrain.printable import printable
from geartrain_client.rest.answers import answer_as
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import print_json, results

TIMEOUT_S = 330.0
"""The platform goes through the log before it answers."""
_NAMES_SHOWN = 5


class _Origin(msgspec.Struct, frozen=True):
    name: str
    number: int
    path: str = ""


class _Made(msgspec.Struct, frozen=True):
    step: str
    operator: str
    says: str
    records: int


class _Channel(msgspec.Struct, frozen=True):
    id: str
    records: int
    steps_on_devices: list[str] = []


class _Split(msgspec.Struct, frozen=True):
    name: str
    records: int
    first: int
    last: int


class _Record(msgspec.Struct, frozen=True):
    event_time: str
    origin: _Origin
    channel: str
    device: str
    epoch: str
    seq: int
    partition: int
    entry: int
    row: int
    late: bool = False
    overtaken: bool = False
    revision: int = 1
    values: dict[str, Any] = {}


class _Records(msgspec.Struct, frozen=True):
    count: int
    devices: dict[str, int] = {}
    devices_count: int = 0
    splits: list[_Split] = []
    splits_count: int = 0
    shown: list[_Record] = []


class _Explanation(msgspec.Struct, frozen=True):
    """The answer of the platform; see docs/platform.md."""

    instance: str
    table: str
    step: str
    row: dict[str, Any]
    rows_of_key: int
    event_time: str
    origin: _Origin
    revision: str
    records: _Records
    made_by: list[_Made] = []
    channels: list[_Channel] = []
    reproduced: bool | None = None
    why: str = ""
    notes: list[str] = []


def explain_row(platform: Platform, app: str, table: str, key: str, limit: int, *, as_json: bool) -> None:
    """Print why the row of `key` is as it is; raises `GeartrainError`."""
    path = f"/apps/{segment(app)}/tables/{segment(table)}/explain"
    found = platform.get(path, timeout_s=TIMEOUT_S, key=key, limit=limit)
    if as_json:
        print_json(found)
        return
    out = results()
    for line in _lines(answer_as(_Explanation, found)):
        out.print(printable(line), soft_wrap=True)


def _lines(found: _Explanation) -> Iterator[str]:
    yield f"{found.table}: {_values(found.row)}"
    if found.rows_of_key > 1:
        yield f"  the canonically last of {found.rows_of_key:,} rows that the key names"
    yield f"  event time {found.event_time}, origin {_origin(found.origin)}"
    yield f"  {found.instance}, revision {found.revision[:12]}"
    depth = 1
    yield f"{'  ' * depth}written by {found.step}"
    for made in found.made_by:
        depth += 1
        many = "record" if made.records == 1 else "records"
        yield f"{'  ' * depth}from {made.step} ({made.operator}): {made.says}; {made.records:,} {many}"
    depth += 1
    for channel in found.channels:
        *before, last = channel.steps_on_devices or [channel.id]
        made_there = f", made on devices by {', '.join([*before, last])}" if before else ""
        many = "record" if channel.records == 1 else "records"
        yield f"{'  ' * depth}from channel {channel.id}: {channel.records:,} {many} of the log{made_there}"
    records = found.records
    yield from _named("device", [f"{n} ({c:,})" for n, c in records.devices.items()], records.devices_count)
    splits = [f"{one.name} ({one.records:,}, number {one.first:,} to {one.last:,})" for one in records.splits]
    yield from _named("split", splits, records.splits_count)
    if len(records.shown) < records.count:
        yield f"the last {len(records.shown):,} of {records.count:,} records:"
    elif records.shown:
        yield "the records:"
    for record in records.shown:
        yield f"  {_record(record)}"
    for note in found.notes:
        yield f"note: {note}"
    answer = {True: "yes", False: "no", None: "not tried"}[found.reproduced]
    yield f"reproduced from these records alone: {answer}{f' ({found.why})' if found.why else ''}"


def _named(noun: str, names: list[str], count: int) -> Iterator[str]:
    if count:
        more = f" and {count - _NAMES_SHOWN:,} more" if count > _NAMES_SHOWN else ""
        yield f"{count:,} {noun}{'' if count == 1 else 's'}: {', '.join(names[:_NAMES_SHOWN])}{more}"


def _record(one: _Record) -> str:
    flags = f"{', late' if one.late else ''}{', overtaken' if one.overtaken else ''}"
    flags += f", run by revision {one.revision:,}" if one.revision > 1 else ""
    return (
        f"{one.event_time} {one.channel} {_values(one.values)}; device {one.device}, "
        f"split {_origin(one.origin)}, epoch {one.epoch[:8]}, seq {one.seq:,}, "
        f"entry {one.partition}:{one.entry:,}, row {one.row:,}{flags}"
    )


def _origin(origin: _Origin) -> str:
    return f"{origin.name} number {origin.number:,}" + (f" path {origin.path}" if origin.path else "")


def _values(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items())
