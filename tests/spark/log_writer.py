"""A log written for tests with the real ledger and segments, in the place of devices and ingest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec, Schema
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.part import SegmentPart, segment_digest
from geartrain_cloud.log.segment import encode_segment
from geartrain_cloud.ports import Entry, EntryKind, LedgerChange, StoredSchema, StoredSegment


class LogWriter:
    """Appends entries to the first partition of one flow; a segment for each `append`.

    sources: whose clocks there are, by default one for each channel that is not the system's; sealed: as
    ingest does, the ledger is told the schemas, and the checksum of each segment.
    """

    def __init__(
        self,
        folder: Path,
        flow: str,
        kinds: Mapping[str, Any],
        *,
        sources: Sequence[str] | None = None,
        sealed: bool = False,
    ) -> None:
        self.folder, self.flow = folder, flow
        self._codecs = {channel: RowCodec(kind) for channel, kind in kinds.items()}
        self.sources = [c for c in kinds if not c.startswith("_")] if sources is None else list(sources)
        self._number = 0
        self._clocks: dict[str, int] = {}
        self._segments = 0
        self._loop = asyncio.new_event_loop()
        self._ledger = SqliteLedger(folder)
        self._term = self._loop.run_until_complete(self._ledger.open())
        self._sealed = sealed
        if sealed:
            schemas = {channel: codec.schema for channel, codec in self._codecs.items()}
            stored = [StoredSchema(flow, c, s.schema_id, s.to_json()) for c, s in schemas.items()]
            self._loop.run_until_complete(self._ledger.commit(self._term, LedgerChange(schemas=stored)))

    def append(
        self,
        channel: str,
        records: Sequence[tuple[Any, int, str, int]],
        *,
        rows_per_entry: int = 1_000,
        clock: int | None = None,
    ) -> str:
        """Add (record, time, split, number) as entries; gives the segment's name. clock: after the last, of
        the source that the channel is called by, else of all.
        """
        codec = self._codecs[channel]
        values, times, names, numbers = (list(c) for c in zip(*records, strict=True))
        rows = ColumnBatch(codec.to_columns(values), times, names, numbers)
        return self.append_rows(channel, rows, rows_per_entry=rows_per_entry, clock=clock)

    def append_rows(
        self,
        channel: str,
        rows: ColumnBatch,
        *,
        rows_per_entry: int = 1_000,
        clock: int | None = None,
        clocks: Mapping[str, int] | None = None,
        schema: Schema | None = None,
    ) -> str:
        """As `append`, of rows as columns; clocks: by source, those that move after the last; schema: theirs,
        where it is not that of the channel's type.
        """
        if clock is not None:
            clocks = dict.fromkeys([channel] if channel in self.sources else self.sources, clock)
        schema = self._codecs[channel].schema if schema is None else schema
        self._segments += 1
        name = f"segments/{channel}-{self._segments}.arrow"
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = encode_segment(schema, [SegmentPart("device-1", self._segments, rows)])
        path.write_bytes(content)
        sealed = [StoredSegment(name, len(content), segment_digest(content))] if self._sealed else []
        entries = []
        for first in range(0, len(rows), rows_per_entry):
            count = min(rows_per_entry, len(rows) - first)
            if clocks is not None and first + count == len(rows):
                self._clocks |= clocks
            entries.append(
                self._entry(EntryKind.ROWS, channel=channel, segment=name, first_row=first, count=count)
            )
        self._commit(entries, sealed)
        return name

    def advance(self, clock: int, sources: Sequence[str] | None = None) -> None:
        """Move the clocks without rows."""
        self.move(dict.fromkeys(self.sources if sources is None else sources, clock))

    def move(self, clocks: Mapping[str, int]) -> None:
        """Move clocks by source without rows."""
        self._clocks |= clocks
        self._commit([self._entry(EntryKind.WATERMARK)])

    def revise(self, revision: int) -> None:
        """Go over to a revision."""
        self._commit([self._entry(EntryKind.REVISION, seq=revision)])

    def end(self) -> None:
        """All sources have ended."""
        self.advance(END_OF_TIME)

    def _entry(self, kind: EntryKind, **rows: Any) -> Entry:
        self._number += 1
        return Entry(self.flow, 0, self._number, kind, **rows, clocks=dict(self._clocks))

    def _commit(self, entries: Sequence[Entry], segments: Sequence[StoredSegment] = ()) -> None:
        change = LedgerChange(entries=entries, segments=segments)
        self._loop.run_until_complete(self._ledger.commit(self._term, change))

    def close(self) -> None:
        """Close the ledger."""
        self._loop.run_until_complete(self._ledger.close())
        self._loop.close()
