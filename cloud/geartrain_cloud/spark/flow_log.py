"""The part of the log that is one flow's, as a query of Spark's reads it.

Between the log and whoever reads it for Spark: the source of a hosting query, and the columns of a channel.
Guarantees: those of `LogReader`. The rows between two positions are the same at every reading, and none of
them is passed over. A segment that is missing or damaged is an error that names the file and the positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby

import pyarrow as pa

from geartrain.errors import LedgerError
from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.ports import Entry, position_key
from geartrain_cloud.spark.clocks import Clocks

SOURCE_NAME = "geartrain_log"
"""With which the names of Spark's sources of the log begin."""


class FlowLog:
    """What a query asks of one flow's log."""

    def __init__(self, log: LogReader, flow: str, channels: Collection[str]) -> None:
        """channels: those that the query reads."""
        self._log, self._flow, self._channels = log, flow, frozenset(channels)

    def limit(self, key: str, after: int, room: Room, revision: int) -> int:
        """How far `key` goes in one micro-batch that runs a revision."""
        return self._log.limit(self._flow, key, after, room, revision)

    def entries(self, key: str, after: int, upto: int) -> list[Entry]:
        """The entries of its channels behind `after`."""
        return self._log.entries(self._flow, key, after, upto, self._channels)

    def clocks(self, positions: Mapping[str, int]) -> Clocks:
        """The clock of each source at the positions of all partitions, microseconds."""
        return self._log.clocks_at(self._flow, positions)

    def assigned(self) -> list[str]:
        """The devices of the flow."""
        return self._log.assigned(self._flow)

    def runs(self, key: str, after: int, upto: int, rows_max: int) -> Iterator[list[Entry]]:
        """Entries with rows, those of each channel together as long as they have at most `rows_max`.

        The order between channels says nothing: nothing in the log concerns several of them yet.
        """
        runs: dict[str, list[Entry]] = {}
        rows: dict[str, int] = {}
        for entry in self.entries(key, after, upto):
            if not entry.count:
                continue
            channel = entry.channel
            if channel in runs and rows[channel] + entry.count > rows_max:
                yield runs.pop(channel)
                rows[channel] = 0
            runs.setdefault(channel, []).append(entry)
            rows[channel] = rows.get(channel, 0) + entry.count
        yield from runs.values()

    def rows(self, run: list[Entry]) -> list[tuple[int, pa.Table]]:
        """The rows of a run as `tables` gives them, each table in one piece."""
        return [(number, table.combine_chunks()) for number, table in self.tables(run)]

    def tables(
        self, run: list[Entry], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """The rows of a run, all columns or those that are named: those of one type together, with the
        position of the last. Raises `LedgerError` where they cannot all be read.
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
