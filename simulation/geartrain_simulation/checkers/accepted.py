"""What each spool has taken in, record by record: the truth that the log is compared with.

Stands beside the spool of one (device, flow), which tells it of each commit. Guarantees: a record counts
once, from the commit that took it in, whatever becomes of the batch that carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from geartrain.errors import WireError
from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch
from geartrain.records.batch import origin_name
from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch, Schema
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_header, decode_schemas
from geartrain.wire.crossing import decode_crossing
from geartrain.wire.envelope import BatchKind, Header
from geartrain_edge.spool.admission import DECLARED
from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.stores.segments import Row
from geartrain_simulation.stores.stores import SpoolBook

Identity = tuple[str, int, bytes, int]
"""What is unique in a channel: of a record its origin (name, number, path) and 0; of what a timer has put out
its time besides.
"""
Place = tuple[str, bytes, int]
"""(channel, epoch, seq)."""


def identity(row: Row) -> Identity:
    """What tells a record from all others of its channel."""
    is_result = row.number == 0 and row.path
    return row.name, row.number, row.path, row.time if is_result else 0


def rows_of(columns: ColumnBatch) -> list[Row]:
    """The rows of a decoded batch."""
    fields = zip(*columns.fields, strict=True) if columns.fields else iter([()] * len(columns))
    return [
        Row(
            columns.times[n],
            columns.names[n],
            columns.numbers[n],
            columns.paths[n] if columns.paths else b"",
            v,
        )
        for n, v in enumerate(map(tuple, fields))
    ]


@dataclass(slots=True)
class Taken:
    """The records of one channel: each by its identity, in the order of the commits; `former`: what else was
    made of them, by a spool that was set back since; `unsealed`: how many were dropped before they stood in a
    batch, so that nothing but their number is known.
    """

    rows: dict[Identity, Row] = field(default_factory=dict)
    former: dict[Identity, list[Row]] = field(default_factory=dict)
    unsealed: int = 0


class Accepted:
    """All that the spools of one (device, flow) have taken in."""

    def __init__(self, device: str, flow: str, breach: Breach) -> None:
        self.device, self.flow, self._breach = device, flow, breach
        self.channels: dict[str, Taken] = {}
        self.contents: dict[Place, list[list[Identity]]] = {}
        """What each batch held, in its order: one content, unless the spool was an old one again."""
        self.batches = 0
        self.rows_in_batch_max = 1
        self.may_repeat = False
        """Whether records may come in again: the device has lost a spool, or went back to an old one."""
        self.forgotten = 0
        """Records that were in a spool that is gone."""
        self._schemas: dict[str, Schema] = {}
        """By their ids, also of former revisions, whose batches a new epoch takes along."""
        self._oldest: dict[tuple[bytes, int], tuple[str, int]] = {}
        self._watermarks: dict[tuple[SpoolBook, bytes], dict[tuple[str, str], int]] = {}
        self._named: dict[tuple[SpoolBook, bytes], set[str]] = {}
        """The sources of the last header."""
        self._is_lost = False
        self._starts: dict[bytes, dict[str, int]] = {}

    def committed(self, spool: SpoolBook, change: SpoolCommit) -> None:
        """Take in what a commit has put into the spool."""
        for batch in change.batches:
            self.batches += 1
            header = self._take(spool, batch)
            for channel, count in header.dropped.items():
                self.taken(channel).unsealed += count

    def renewed(self, spool: SpoolBook, batches: Sequence[SpooledBatch]) -> None:
        """Note the batches of a new epoch, whose records were taken in before."""
        before, self.may_repeat = self.may_repeat, True
        for batch in batches:
            self._take(spool, batch)
        self.may_repeat = before

    def begin_again(self, *, is_lost: bool) -> None:
        """Note that the spool is gone, or is an old one again: what it took in may come in once more."""
        self.may_repeat, self._is_lost = True, is_lost
        self._watermarks.clear()

    def opened(self, epoch: bytes, positions: Mapping[tuple[str, str], SplitProgress]) -> None:
        """Note where the device stood when ingest opened an epoch: after a loss it goes on from there."""
        if self._is_lost:
            starts = {origin_name(*split): at.position for split, at in positions.items()}
            self._starts.setdefault(epoch, starts)

    def taken(self, channel: str) -> Taken:
        """The records of a channel."""
        return self.channels.setdefault(channel, Taken())

    def undeclared(self, spool: SpoolBook) -> dict[str, int]:
        """What was dropped before it stood in a batch, and that no batch declares yet, by channel."""
        stored = spool.state.get(DECLARED)
        return {} if stored is None else msgspec.json.decode(stored, type=dict[str, int])

    def oldest(self, epoch: bytes, seq: int) -> tuple[str, int]:
        """Channel and lowest event time of the rows of a batch; END_OF_TIME for one without rows."""
        return self._oldest.get((epoch, seq), ("", END_OF_TIME))

    def _learn(self, announced: Mapping[str, Schema]) -> None:
        self._schemas.update({schema.schema_id: schema for schema in announced.values()})

    def _take(self, spool: SpoolBook, batch: SpooledBatch) -> Header:
        header, epoch = decode_header(batch.header), spool.epoch
        self._go_on(spool, header)
        if header.kind is BatchKind.SCHEMA:
            self._learn(decode_schemas(batch.body))
        elif header.kind is BatchKind.CROSSING:
            self._learn(decode_crossing(batch.body)[1])
        if header.kind is not BatchKind.DATA or not header.channel:
            return header
        schema = self._schemas.get(header.schema_id)
        if schema is None:
            kind = f"schema {header.schema_id} of {header.channel}"
            self._breach("announced", f"{self.device} has rows of {kind}, which nothing before announces")
        rows = self._read(schema, header, batch)
        self._oldest[epoch, batch.seq] = header.channel, min(row.time for row in rows)
        self.rows_in_batch_max = max(self.rows_in_batch_max, len(rows))
        taken, order = self.taken(header.channel), list[Identity]()
        starts = self._starts.get(epoch, {})
        for row in rows:
            one = identity(row)
            if row.number < starts.get(row.name, row.number):
                self._breach("goes on", f"{self.device} has lost its spool, and takes in {row} of before")
            if one in taken.rows and not self.may_repeat:
                self._breach("one birth", f"{self.device} takes {row} into {header.channel} twice")
            if taken.rows.get(one, row) != row:
                taken.former.setdefault(one, []).append(taken.rows[one])
            taken.rows[one] = row
            order.append(one)
        self.contents.setdefault((header.channel, epoch, batch.seq), []).append(order)
        return header

    def _read(self, schema: Schema, header: Header, batch: SpooledBatch) -> list[Row]:
        """The rows of a batch, of which there is one at least."""
        what = f"batch {batch.seq} of {self.device}"
        try:
            rows = rows_of(decode_rows(schema, header, batch.body))
        except WireError as error:
            self._breach("announced", f"{what} is not as {header.channel} was announced: {error}")
        if not rows:
            self._breach("content", f"{what} says that it is of {header.channel}, and has no rows")
        return rows

    def _go_on(self, spool: SpoolBook, header: Header) -> None:
        """What a device has promised of its event times holds for its whole epoch, over all restarts. Only
        the channels of the system go back where a header names a source more, since they lie below all.
        """
        watermarks = self._watermarks.setdefault((spool, spool.epoch), {})
        has = {step for step, _ in header.positions}
        said = [("channel", *mark) for mark in header.watermarks.items()]
        said += [("source", *mark) for mark in header.source_watermarks.items()]
        comes = header.source_watermarks.keys() - self._named.get((spool, spool.epoch), set())
        self._named[spool, spool.epoch] = set(header.source_watermarks)
        for what, name, watermark in said:
            may_go_back = bool(comes) and what == "channel" and name in (DEAD_LETTERS, LATE)
            if watermark < watermarks.get((what, name), watermark) and not may_go_back:
                detail = f"{self.device} sets that of {what} {name} back to {watermark} in batch {header.seq}"
                self._breach("watermark", detail)
            if what == "source" and watermark == END_OF_TIME and name not in has:
                self._breach("watermark", f"{self.device} ends {name}, of which it has no split")
            watermarks[what, name] = watermark
