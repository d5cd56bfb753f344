"""Seal the fragment's output into batches: encoded, numbered, chained by digest, ready for one commit.

Between the fragment and the spool. Guarantees: every batch fits a publish. A record too large for one becomes
a dead letter. Only the last batch of a commit has the commit's watermarks and positions. So ingest never sees
a channel's clock ahead of rows that follow in the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.errors import SpoolError, WireError
from geartrain.graph.conform import raw_form
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.planning import Channel, Plan
from geartrain.planning.plan import claim_channel, state_channel
from geartrain.ports.spool import SplitProgress, SpooledBatch
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.codes import Code
from geartrain.records.event_time import START_OF_TIME
from geartrain.records.letters import to_batch
from geartrain.runtime.fragment import Output
from geartrain.schema import ColumnBatch, RowCodec, Schema
from geartrain.state import moving
from geartrain.state.claims import Claim
from geartrain.state.moving import Cells
from geartrain.wire.body import EncodedRows, encode_rows
from geartrain.wire.codec import encode_header, encode_schemas
from geartrain.wire.crossing import Crossing, encode_crossing
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import BatchKind, Envelope, Header
from geartrain.wire.limits import Limits
from geartrain_edge.spool.backlog import Counters, Identity

Positions = Mapping[tuple[str, str], SplitProgress]


class Part(msgspec.Struct, frozen=True):
    """The rows of one batch before it has a seq."""

    channel: str
    schema_id: str
    count: int
    rows: EncodedRows

    @property
    def size(self) -> int:
        """Bytes of its body."""
        return len(self.rows.body)


class Progress(msgspec.Struct, frozen=True):
    """Where a device stands: the watermarks of channels and of sources (microseconds), and the position of
    every split.
    """

    watermarks: Mapping[str, int]
    positions: Positions
    source_watermarks: Mapping[str, int]

    def has_time_of(self, other: Progress) -> bool:
        """Whether all watermarks are those of `other`."""
        return (self.watermarks, self.source_watermarks) == (other.watermarks, other.source_watermarks)


class Sealer:
    """Makes the batches of one epoch, in seq order."""

    def __init__(
        self, plan: Plan, who: Identity, seq: int, digest: bytes, limits: Limits, counters: Counters
    ) -> None:
        """`seq`, `digest`: of the last batch that was committed."""
        self._plan, self._who = plan, who
        self._seq, self._digest = seq, digest
        self._limits, self._counters = limits, counters
        self.crossing = 0
        """How often the device has gone over to another cut, as each header says."""
        self.header_bytes = 0
        """Bytes of the last header: the next one is about as long."""
        self.has_moved = False
        """Whether state has left the device in this spool, whose channel is then announced too."""
        self.has_claimed = False
        """The same of claims to state."""
        self._codecs = {channel.id: RowCodec(channel.kind) for channel in plan.channels}

    def announce(self, progress: Progress) -> SpooledBatch:
        """The first batch of an epoch: the schema of every channel."""
        body = encode_schemas(self._schemas())
        return self._seal(BatchKind.SCHEMA, Part("", "", 0, EncodedRows(body, 0, 0)), progress)

    def _schemas(self) -> dict[str, Schema]:
        channels = self._plan.channels
        if self.has_moved:
            channels = (*channels, state_channel(self._plan.graph))
        if self.has_claimed:
            channels = (*channels, claim_channel(self._plan.graph))
        return {channel.id: channel.schema for channel in channels}

    def schemas(self) -> Envelope:
        """The schema of every channel once more, outside the order of seqs."""
        body = encode_schemas(self._schemas())
        who = self._who
        header = encode_header(Header(BatchKind.SCHEMA, who.flow, who.device, who.epoch, 0))
        return Envelope(header, body, next_digest(FIRST_DIGEST, header, body), 1)

    def cross(self, crossing: Crossing, number: int, progress: Progress) -> SpooledBatch:
        """The batch from which on the device runs what `crossing` says, as its `number`-th."""
        self.crossing = number
        body = encode_crossing(crossing, self._schemas())
        return self._seal(BatchKind.CROSSING, Part("", "", 0, EncodedRows(body, 0, 0)), progress)

    def moved(
        self, cells: Cells, forms: Mapping[str, str], revision: int, progress: Progress
    ) -> list[SpooledBatch]:
        """The batches of cells that leave the device, behind the crossing with which their steps do.

        forms: by step, what stands for the layout of its cells; revision: that has kept them, 0 for unknown.
        """
        channel = state_channel(self._plan.graph)
        going = moving.records(cells, forms=forms, revision=revision)
        return [self._beside(channel, one, progress) for one in moving.batches(going)]

    def first_claim(self, progress: Progress) -> SpooledBatch:
        """The batch before the first claim of an epoch, which announces its channel."""
        self.has_claimed = True
        return self.announce(progress)

    def claimed(self, claims: Sequence[Claim], progress: Progress) -> list[SpooledBatch]:
        """The batch of what the device says of state that it claims."""
        return [self._beside(claim_channel(self._plan.graph), claims, progress)] if claims else []

    def _beside(self, channel: Channel, records: Sequence[Any], progress: Progress) -> SpooledBatch:
        """A batch of records that no step has made."""
        name, codec = f"{self._who.device}/{channel.id}/{self._who.epoch.hex()}", RowCodec(channel.kind)
        count, first = len(records), self._seq << 16
        numbers = list(range(first, first + count))
        columns = ColumnBatch(codec.to_columns(records), [START_OF_TIME] * count, [name] * count, numbers)
        rows = encode_rows(codec.schema, columns, self._limits)
        self._counters.add(f"rows.{channel.id}", count)
        return self._seal(BatchKind.DATA, Part(channel.id, codec.schema.schema_id, count, rows), progress)

    def under(self, plan: Plan) -> Sealer:
        """One that goes on from here under another plan, by which no state has left the device."""
        other = Sealer(plan, self._who, self._seq, self._digest, self._limits, self._counters)
        other.crossing = self.crossing
        return other

    def hello(self, ordinal: int, crossing: int = 0, fresh: Crossing | None = None) -> Envelope:
        """The question where this device stands, of an epoch that takes itself for the `ordinal`-th.

        crossing: the number before its first batch; fresh: what it runs, of a spool that knows of no number.
        """
        who, body = self._who, b"" if fresh is None else encode_crossing(fresh, {})
        header = encode_header(
            Header(
                BatchKind.HELLO,
                who.flow,
                who.device,
                who.epoch,
                0,
                ordinal=ordinal,
                crossing=crossing,
                fresh=fresh is not None,
            )
        )
        return Envelope(header, body, next_digest(FIRST_DIGEST, header, body), 1)

    def begin(self, epoch: bytes) -> Identity:
        """Seal for a new epoch from now on, from its first batch; returns who we are in it."""
        self._who = replace(self._who, epoch=epoch)
        self.stand_at(0, FIRST_DIGEST)
        return self._who

    def stand_at(self, seq: int, digest: bytes) -> None:
        """Go on behind a batch that was put into the spool otherwise."""
        self._seq, self._digest = seq, digest

    def seal(self, output: Output, before: Progress, after: Progress) -> list[SpooledBatch]:
        """The batches of one commit: all rows, and one batch without rows if only watermarks moved."""
        return self.number(self.encode(output), before, after)

    def encode(self, output: Output) -> list[Part]:
        """All rows of one commit, in parts that each fit a batch; what fits none becomes a dead letter."""
        letters: list[DeadLetter] = []
        parts: list[Part] = []
        for channel, batches in output.batches.items():
            if channel != DEAD_LETTERS:
                parts += self._parts(channel, batches, letters)
        refused = output.batches.get(DEAD_LETTERS, [])
        if letters:
            refused = [*refused, to_batch(letters)]
            letters = []
        parts += self._parts(DEAD_LETTERS, refused, letters)
        if letters:
            raise SpoolError(f"a dead letter of step {letters[0].step} is too large: {letters[0].reason}")
        return parts

    def number(
        self,
        parts: Sequence[Part],
        before: Progress,
        after: Progress,
        dropped: Mapping[str, int] | None = None,
    ) -> list[SpooledBatch]:
        """The batches of one commit in seq order; the last moves the watermarks and declares `dropped`."""
        if not parts and (dropped or not after.has_time_of(before)):
            parts = [Part("", "", 0, EncodedRows(b"", 0, 0))]
        last = len(parts) - 1
        return [
            self._seal(BatchKind.DATA, part, after, dropped or {})
            if number == last
            else self._seal(BatchKind.DATA, part, before)
            for number, part in enumerate(parts)
        ]

    def _parts(self, channel: str, batches: Sequence[Batch], letters: list[DeadLetter]) -> Iterator[Part]:
        batch = _joined(batches)
        for part in batch.slices(self._limits.rows_max) if len(batch) else ():
            yield from self._encoded(channel, part, letters)

    def _encoded(self, channel: str, batch: Batch, letters: list[DeadLetter]) -> Iterator[Part]:
        """`batch` in as few parts as fit: what does not is halved, down to the record that is to blame."""
        codec = self._codecs[channel]
        columns = ColumnBatch(
            codec.to_columns(batch.values), batch.times, batch.names, batch.numbers, batch.paths
        )
        try:
            rows = encode_rows(codec.schema, columns, self._limits)
        except WireError as error:
            if len(batch) == 1:
                reason = f"this record cannot be sent: {error}"
                raw = raw_form(batch.values[0])
                letters.append(
                    DeadLetter(channel, batch.origin(0), batch.times[0], Code.TOO_LARGE, reason, raw)
                )
                self._counters.add("records_too_large")
                return
            middle = len(batch) // 2
            yield from self._encoded(channel, batch.take(range(middle)), letters)
            yield from self._encoded(channel, batch.take(range(middle, len(batch))), letters)
        else:
            self._counters.add(f"rows.{channel}", len(batch))
            yield Part(channel, codec.schema.schema_id, len(batch), rows)

    def _seal(
        self, kind: BatchKind, part: Part, progress: Progress, dropped: Mapping[str, int] | None = None
    ) -> SpooledBatch:
        lost = dict(dropped or {})
        self._seq += 1
        header = encode_header(
            Header(
                kind,
                self._who.flow,
                self._who.device,
                self._who.epoch,
                self._seq,
                part.channel,
                part.schema_id,
                part.count,
                part.rows.first_number,
                progress.watermarks,
                progress.positions,
                part.rows.flags,
                dropped=dropped or {},
                source_watermarks=progress.source_watermarks,
                crossing=self.crossing,
            )
        )
        self.header_bytes = len(header)
        self._counters.add("bytes_sealed", len(header) + len(part.rows.body))
        self._digest = next_digest(self._digest, header, part.rows.body)
        if part.count:
            lost[part.channel] = lost.get(part.channel, 0) + part.count
        rows = tuple((self._seq, channel, count) for channel, count in sorted(lost.items()))
        return SpooledBatch(self._seq, header, part.rows.body, self._digest, part.count, rows)


def _joined(batches: Sequence[Batch]) -> Batch:
    """The records of several batches of one stream as one, in order."""
    if len(batches) == 1:
        return batches[0]
    joined = Batch([], [], [], [])
    paths: list[bytes] | None = [] if any(batch.paths is not None for batch in batches) else None
    for batch in batches:
        joined.values += batch.values
        joined.times += batch.times
        joined.names += batch.names
        joined.numbers += batch.numbers
        if paths is not None:
            paths += batch.paths if batch.paths is not None else [b""] * len(batch)
    joined.paths = paths
    return joined
