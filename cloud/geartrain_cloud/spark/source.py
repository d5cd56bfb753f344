"""Spark's reader of the log: which positions a micro-batch takes, and their rows, packed.

It stands between the log and the first step of a query. One reader serves all channels of its query, so that
one micro-batch has one end and one clock.

Guarantees: offsets are {key: position}, where a key is a partition. The rows of its channels between two
offsets are the same at every reading, and none of them is passed over. A segment that is missing or damaged
stops the query, and the error names the file and the positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from geartrain.errors import LedgerError
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.log.pack import table_to_ipc
from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.ports import Entry, position_key
from geartrain_cloud.spark.clocks import Clocks, encode_clocks, least_clock

SOURCE_NAME = "geartrain_log"
SOURCE_SCHEMA = "channel string, partition string, position long, clocks binary, packed binary"
"""position: that of the last row in `packed` (Arrow IPC of log rows of one channel) in its partition; clocks:
those of the flow's sources where the micro-batch ends (see `clocks.py`).

The first row of a micro-batch is its heartbeat: it has no channel and no rows, and brings the clocks where
nothing else came.
"""

FLUSHED = ""
"""Beside the keys, in the offsets of a query with a native plan: the clock where the micro-batch begins, up
to which Spark's watermark has come. So a last micro-batch without rows follows one that moved the clock, and
is asked for again after a restart.
"""

PACK_ROWS = 8_192
"""Rows of one channel that are packed together, whatever entries of other channels lie between; an entry
alone may hold more.
"""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("channel", pa.string()),
    pa.field("partition", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("clocks", pa.binary()),
    pa.field("packed", pa.binary()),
]
_ARROW_SCHEMA = pa.schema(_FIELDS)


@dataclass
class Span(InputPartition):
    """Entries (after, upto] of each key, read by one task: parts of (key, after, upto).

    The first span of a micro-batch has the heartbeat, unless the micro-batch has no entries, or is of a
    native plan and its clock has not moved (see `FLUSHED`).
    """

    parts: tuple[tuple[str, int, int], ...]
    clocks: Clocks
    heartbeat: bool


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the channels of one query: in a Python process of Spark's driver, and `read` in its workers."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: log (folder), flow, channels (JSON list), rows_max (rows of each partition in one
        micro-batch, those of other channels counted; an entry is never divided), readers (tasks that read a
        large micro-batch), flush (JSON list of the sources of a native plan), begin (JSON positions, where
        not before the first entry), stops (JSON list of positions, ascending, at each of which a micro-batch
        ends).
        """
        self._log = LogReader(options["log"])
        self._flow: str = options["flow"]
        self._channels = frozenset(json.loads(options["channels"]))
        self._keys = self._log.keys()
        self._rows_max, self._readers = int(options["rows_max"]), int(options["readers"])
        self._flush = frozenset(json.loads(options.get("flush", "[]")))
        self._begin: dict[str, int] = json.loads(options.get("begin", "{}"))
        self._stops: list[dict[str, int]] = json.loads(options.get("stops", "[]"))
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Before the first entry of every partition, or where the query begins."""
        first = {key: self._begin.get(key, 0) for key in self._keys}
        return first | {FLUSHED: START_OF_TIME} if self._flush else first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """At most `rows_max` rows of each partition."""
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Where the micro-batch that begins at `start` ends; `start` itself where nothing is new."""
        newest = self._log.positions(self._flow) if self._target is None else self._target
        end = dict(start)
        for key in self._keys:
            after, last = start[key], newest.get(key, 0)
            if last < after:
                raise LedgerError(
                    f"{self._flow}/{key}: the checkpoint stands at position {after}, but the log ends at "
                    f"{last}: it is another or an older one; bring the right one back, or begin anew with "
                    "--reset"
                )
            if isinstance(limit, ReadMaxRows):
                last = min(last, self._log.limit(self._flow, key, after, Room(limit.max_rows)))
            elif not isinstance(limit, ReadAllAvailable):
                raise LedgerError(f"the log cannot be read by {type(limit).__name__}: use rows_max")
            end[key] = last
        for stop in self._stops:
            if any(start[key] < stop.get(key, 0) for key in self._keys):
                end |= {key: min(end[key], max(start[key], stop.get(key, 0))) for key in self._keys}
                break
        if self._flush:
            end[FLUSHED] = least_clock(self._log.clocks_at(self._flow, start), self._flush)
        return end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the log's present end as the end of the query."""
        self._target = self._log.positions(self._flow)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One span for a small micro-batch, up to `readers` of about equal rows for a large one."""
        clocks = self._log.clocks_at(self._flow, end)
        moved = any(start[key] < end[key] for key in self._keys)
        if self._flush:  # a heartbeat at the clock that Spark's watermark has would be dropped
            moved = moved and least_clock(clocks, self._flush) > end[FLUSHED]
        entries: list[Entry] = []
        for key in self._keys:
            entries += self._log.entries(self._flow, key, start[key], end[key], self._channels)
        rows = sum(e.count for e in entries)
        readers = max(1, min(self._readers, rows // PACK_ROWS))
        parts: list[list[tuple[str, int, int]]] = [[] for _ in range(readers)]
        seen = 0
        for entry in entries:
            reader = min(readers - 1, seen * readers // rows) if rows else 0
            seen += entry.count
            part, key = parts[reader], position_key(entry.partition)
            after = part.pop()[1] if part and part[-1][0] == key else entry.number - 1
            part.append((key, after, entry.number))
        spans = enumerate(parts)
        return [Span(tuple(part), clocks, heartbeat=moved and number == 0) for number, part in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The packed rows of a span; raises `LedgerError` where they cannot all be read."""
        span = cast(Span, partition)
        clocks = encode_clocks(span.clocks)
        if span.heartbeat:
            yield _row("", "", 0, clocks, None)
        for key, after, upto in span.parts:
            for run in self._runs(key, after, upto, PACK_ROWS):
                for number, table in self._tables(run):
                    packed = table_to_ipc(table.combine_chunks())
                    yield _row(run[0].channel, key, number, clocks, packed)

    def _runs(self, key: str, after: int, upto: int, rows_max: int) -> Iterator[list[Entry]]:
        """Entries with rows, those of each channel together as long as they have at most `rows_max`.

        The order between channels says nothing: nothing in the log concerns several of them yet.
        """
        runs: dict[str, list[Entry]] = {}
        rows: dict[str, int] = {}
        for entry in self._log.entries(self._flow, key, after, upto, self._channels):
            if not entry.count:
                continue
            channel = entry.channel
            if channel in runs and rows[channel] + entry.count > rows_max:
                yield runs.pop(channel)
                rows[channel] = 0
            runs.setdefault(channel, []).append(entry)
            rows[channel] = rows.get(channel, 0) + entry.count
        yield from runs.values()

    def _tables(
        self, run: list[Entry], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """The rows of a run, all columns or those that are named: those of one type together, with the
        position of the last.
        """
        try:
            found = self._log.tables(run)
            parts = found if columns is None else [(number, part.select(columns)) for number, part in found]
            for _, several in groupby(parts, lambda one: one[1].schema.metadata):
                numbers, alike = zip(*several, strict=True)
                table = pa.concat_tables(alike)
                # A damaged offset would otherwise be followed to memory that is not the table's.
                table.validate(full=True)
                yield numbers[-1], table
        except (LedgerError, pa.ArrowException, KeyError) as error:
            which = f"{self._flow}/{position_key(run[0].partition)}, channel {run[0].channel}"
            place = f"{which}, positions {run[0].number} to {run[-1].number}"
            files = ", ".join(dict.fromkeys(e.segment for e in run))
            raise LedgerError(f"{place} ({files}): {error}") from None


def _row(channel: str, partition: str, position: int, clocks: bytes, packed: bytes | None) -> pa.RecordBatch:
    columns: list[list[Any]] = [[channel], [partition], [position], [clocks], [packed]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
