"""The outbox as a store of micro-batches: it deals and seals rows for devices, and keeps them until acked.

Last on a record's path inside the cloud, on its way to a device. Spark hands a micro-batch over at least
once. Its rows, its watermarks and its number are one transaction. Guarantees: the outbox holds a micro-batch
whole and once, or not at all. A row is given back with the reason if its device is not known or its lane is
full. The reason is the same in every repetition, and the row becomes a dead letter.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from geartrain.adapters.sqlite import transaction
from geartrain.declarations.sink import Sink
from geartrain.errors import USER_ERRORS, WireError
from geartrain.graph.conform import describe
from geartrain.graph.graph import GIVEN
from geartrain.operators.deal import Deal, no_device
from geartrain.ports import Randomness
from geartrain.records.codes import Code, Refusal, code_of
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec, Schema
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain_cloud.downlink.errors import OutboxError
from geartrain_cloud.downlink.outbox_file import (
    BUSY_S,
    INSERT_BATCH,
    lane_of,
    new_lane,
    open_outbox,
    outbox_errors,
)
from geartrain_cloud.downlink.sealing import Part, parts_of, seal
from geartrain_cloud.downlink.store import Lane, OutBatch
from geartrain_cloud.log.pack import pack, unpack
from geartrain_cloud.sinks.binding import NOTHING, Binding, Mark
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.rows import take_rows
from geartrain_cloud.sinks.store import Rows

LANE_BYTES_MAX = 64 << 20
"""Bytes that wait for one device, beyond which its rows are refused."""
TICKS_MAX = 64
"""Batches that wait for one device, beyond which none is added that only lets time pass."""
_INSERT_RETURNED = (
    "INSERT INTO returned (query, batch_id, channel, code, reason, packed) VALUES (?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class DownChannel:
    """A stream that goes down: how it is dealt, the query that writes it, and whether a step on the device
    waits for its time.
    """

    deal: Deal
    codec: RowCodec
    query: str
    is_timed: bool

    @property
    def schema(self) -> Schema:
        """That of its records."""
        return self.codec.schema

    def names(self, rows: ColumnBatch) -> list[str | BaseException]:
        """The device of each row, or why it has none."""
        found: list[str | BaseException] = []
        for value in self.codec.from_columns([list(column) for column in rows.fields]):
            try:
                found.append(self.deal.device_of(value))
            except USER_ERRORS as error:  # the user's own function
                found.append(error)
        return found

    def plain(self, rows: ColumnBatch) -> ColumnBatch:
        """The rows as they are sent."""
        return rows


@dataclass(frozen=True, slots=True)
class NamedChannel:
    """A stream whose rows have been named where the user's code runs.

    They have one column more than `schema`: the device, or an empty text where the record names none.
    """

    schema: Schema
    query: str
    is_timed: bool

    def names(self, rows: ColumnBatch) -> list[str | BaseException]:
        """The device of each row, or why it has none."""
        return [name or OutboxError("the record names no device") for name in rows.fields[-1]]

    def plain(self, rows: ColumnBatch) -> ColumnBatch:
        """The rows as they are sent."""
        return ColumnBatch(rows.fields[:-1], rows.times, rows.names, rows.numbers, rows.paths)


def unsendable(channel: DownChannel | NamedChannel, rows: ColumnBatch) -> dict[int, Refusal]:
    """The rows that name no device, or are too large to be sent, and why: what depends on the row alone."""
    refused = dict[int, Refusal]()
    for row, name in enumerate(channel.names(rows)):
        if isinstance(name, BaseException):
            code = Code.NO_DEVICE if isinstance(name, OutboxError) else code_of(name)
            refused[row] = Refusal(code, describe(name))
    for row in _too_large(channel.schema, channel.plain(rows)):
        refused.setdefault(row, Refusal(Code.TOO_LARGE, "this record is too large to be sent to a device"))
    return refused


def _too_large(schema: Schema, rows: ColumnBatch) -> Iterable[int]:
    try:
        list(parts_of("x", schema, rows))
    except WireError:
        for row in range(len(rows)):
            try:
                list(parts_of("x", schema, take_rows(rows, [row])))
            except WireError:
                yield row


class OutboxWriter:
    """`Store` over one file. Its methods may be called from several threads."""

    def __init__(
        self,
        path: Path,
        flow: str,
        channels: Mapping[str, DownChannel | NamedChannel],
        devices: Callable[[], Collection[str]],
        clock: Callable[[str, Mapping[str, int]], int],
        randomness: Randomness,
        lane_bytes_max: int = LANE_BYTES_MAX,
        busy_s: float = BUSY_S,
    ) -> None:
        """`devices`: those assigned to the flow; `clock`: that of a query at positions, microseconds;
        `busy_s`: how long a write waits for whoever else writes the file.

        Raises `OutboxError`.
        """
        self._path, self._flow, self._channels = path, flow, dict(channels)
        self._devices, self._clock, self._randomness = devices, clock, randomness
        self._lane_bytes_max = lane_bytes_max
        self._only_gives = channels.keys() <= {GIVEN}  # it may begin amid a flow: a claim is made again
        self._lock = threading.Lock()
        self._database = open_outbox(path, flow, busy_s)

    def check(self, layout: Layout) -> None:
        """It has no options."""

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Nothing is made before the first row."""

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint; raises `OutboxError` where they do not belong together."""
        with self._lock, outbox_errors(self._path):
            if self._is_unbound(query, checkpoint, has_run=has_run):
                with transaction(self._database):
                    values = (query, checkpoint, -1, "{}")
                    self._database.execute("INSERT OR REPLACE INTO queries VALUES (?, ?, ?, ?)", values)

    def _is_unbound(self, query: str, checkpoint: str, *, has_run: bool) -> bool:
        held = self._held(query)
        if self._only_gives:
            return held is None or held.checkpoint != checkpoint
        return self._binding(query).check_checkpoint(held, checkpoint, has_run=has_run)

    def _binding(self, query: str) -> Binding:
        return Binding(f"query {query!r}", f"the outbox {self._path}", "file", OutboxError)

    def _held(self, query: str) -> Mark | None:
        select = "SELECT checkpoint, batch_id, positions FROM queries WHERE query = ?"
        found = self._database.execute(select, (query,)).fetchone()
        return None if found is None else Mark(found[0], found[1], json.loads(found[2]))

    def stands(self, query: str) -> list[Mapping[str, int]]:
        """The positions at which it holds what a query has written; none where that is nothing."""
        with self._lock, outbox_errors(self._path):
            held = self._held(query)
        return [held.positions] if held is not None and held.positions else []

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """The rows that name no device, or cannot be sent: what depends on the row alone."""
        return unsendable(self._channels[sink_id], rows)

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Write a micro-batch, unless it is held; raises `OutboxError`."""
        clock, ends = self._clock(query, positions), json.dumps(dict(positions), sort_keys=True)
        known = frozenset(self._devices())
        with self._lock, outbox_errors(self._path):
            held = self._held(query) or NOTHING
            begins = self._only_gives and not held.positions
            if not begins and self._binding(query).holds(held, batch_id, positions):
                return
            dealt, back = self._dealt(rows, known)
            with transaction(self._database):
                marks = self._move_clock(query, clock)
                for device in sorted(known):
                    self._put(device, dealt.get(device, []), marks)
                self._database.execute("DELETE FROM returned WHERE query = ?", (query,))
                values = [(query, batch_id, sink, *refusal, pack(part)) for sink, refusal, part in back]
                self._database.executemany(_INSERT_RETURNED, values)
                where = (query, held.checkpoint, batch_id, ends)
                self._database.execute("INSERT OR REPLACE INTO queries VALUES (?, ?, ?, ?)", where)

    def returned(self, query: str, batch_id: int) -> Sequence[tuple[str, Refusal, ColumnBatch]]:
        """(channel, refusal, rows) that went to no device when this micro-batch was written: none is
        assigned, or its lane is full. The same however often it is asked, until the next one is written.
        """
        with self._lock, outbox_errors(self._path):
            select = "SELECT channel, code, reason, packed FROM returned WHERE query = ? AND batch_id = ?"
            found = self._database.execute(select, (query, batch_id)).fetchall()
        return [(channel, Refusal(code, reason), unpack(packed)) for channel, code, reason, packed in found]

    def _dealt(
        self, rows: Rows, known: frozenset[str]
    ) -> tuple[dict[str, list[Part]], list[tuple[str, Refusal, ColumnBatch]]]:
        """The parts for each device, channel by channel, and the rows that go to none, with the reasons."""
        dealt: dict[str, list[Part]] = {}
        back: list[tuple[str, Refusal, ColumnBatch]] = []
        full = self._full()
        for sink, batches in rows.items():
            channel, by_device = self._channels[sink], dict[str, list[ColumnBatch]]()
            for batch in batches:
                indexes: dict[str, list[int]] = {}
                for row, name in enumerate(channel.names(batch)):
                    if isinstance(name, BaseException):
                        raise OutboxError(f"a row of {sink!r} names a device only now and then: {name}")
                    indexes.setdefault(name, []).append(row)
                for device, chosen in indexes.items():
                    by_device.setdefault(device, []).append(channel.plain(take_rows(batch, chosen)))
            for device, several in by_device.items():
                why = self._why_not(device, known, full)
                if why is not None:
                    back.append((sink, why, _joined(several)))
                else:
                    parts = parts_of(sink, channel.schema, _joined(several))
                    dealt.setdefault(device, []).extend(parts)
        return dealt, back

    def _why_not(self, device: str, known: frozenset[str], full: frozenset[str]) -> Refusal | None:
        """Why rows cannot go to a device, None where they can."""
        if device not in known:
            return Refusal(Code.NO_DEVICE, no_device(device))
        if device in full:
            return Refusal(
                Code.DEVICE_FULL,
                f"device {device!r} does not ack what waits for it, {self._lane_bytes_max} bytes at most",
            )
        return None

    def _full(self) -> frozenset[str]:
        query = "SELECT device FROM lanes WHERE held_bytes >= ?"
        found = self._database.execute(query, (self._lane_bytes_max,)).fetchall()
        return frozenset(device for (device,) in found)

    def _move_clock(self, query: str, clock: int) -> dict[str, int]:
        """The watermark of each channel, now that the query's clock stands there."""
        for channel, its in self._channels.items():
            if its.query == query and channel != GIVEN:
                self._database.execute(
                    "INSERT INTO watermarks VALUES (?, ?) "
                    "ON CONFLICT (channel) DO UPDATE SET time = max(time, excluded.time)",
                    (channel, clock),
                )
        found = dict(self._database.execute("SELECT channel, time FROM watermarks").fetchall())
        return {one: found.get(one, START_OF_TIME) for one in self._channels if one != GIVEN}

    def _put(self, device: str, parts: Sequence[Part], marks: Mapping[str, int]) -> None:
        lane = lane_of(self._database, device)
        if lane is None:
            lane = new_lane(device, self._randomness.token(EPOCH_BYTES))
            told: dict[str, int] = {}
        else:
            (text,) = self._database.execute("SELECT told FROM lanes WHERE device = ?", (device,)).fetchone()
            told = json.loads(text)
        if not parts and not self._is_due(lane, told, marks):
            return
        batches = seal(self._flow, lane, parts, told, marks)
        self._keep(lane, batches, marks)

    def _is_due(self, lane: Lane, told: Mapping[str, int], marks: Mapping[str, int]) -> bool:
        """Whether a device without rows has to hear that time has passed."""
        moved = {c for c, mark in marks.items() if mark > told.get(c, START_OF_TIME)}
        if any(marks[c] == END_OF_TIME for c in moved):
            return True
        waiting = lane.last_seq - lane.acked_seq
        return waiting < TICKS_MAX and any(self._channels[c].is_timed for c in moved)

    def _keep(self, lane: Lane, batches: Sequence[OutBatch], marks: Mapping[str, int]) -> None:
        rows = [(lane.device, b.seq, b.header, b.body, b.digest, b.count) for b in batches]
        self._database.executemany(INSERT_BATCH, rows)
        lane = replace(lane, last_seq=batches[-1].seq, last_digest=batches[-1].digest)
        size, told = sum(b.size for b in batches), json.dumps(dict(marks), sort_keys=True)
        beside = (lane.acked_seq, lane.acked_digest, size, told)
        self._database.execute(
            "INSERT INTO lanes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (device) DO UPDATE SET "
            "last_seq = excluded.last_seq, last_digest = excluded.last_digest, "
            "held_bytes = held_bytes + excluded.held_bytes, told = excluded.told",
            (lane.device, lane.epoch, lane.ordinal, lane.last_seq, lane.last_digest, *beside),
        )

    def reset(self) -> None:
        """Empty it; what devices get from now on is of new epochs."""
        with self._lock, outbox_errors(self._path), transaction(self._database):
            for table in ("queries", "watermarks", "batches", "lanes", "returned"):
                self._database.execute(f"DELETE FROM {table}")  # noqa: S608 - constants

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()


def _joined(several: Sequence[ColumnBatch]) -> ColumnBatch:
    if len(several) == 1:
        return several[0]
    fields = [
        [v for part in columns for v in part] for columns in zip(*(b.fields for b in several), strict=True)
    ]
    paths = [p for b in several for p in (b.paths if b.paths is not None else [b""] * len(b))]
    return ColumnBatch(
        fields,
        [t for b in several for t in b.times],
        [n for b in several for n in b.names],
        [n for b in several for n in b.numbers],
        paths if any(paths) else None,
    )
