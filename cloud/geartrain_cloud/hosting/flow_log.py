"""The part of the log that is one flow's, as a hosting query reads it.

Between the log and the source of a hosting query. Guarantees: those of `LogReader` and `LogStreamReader`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.ports import Entry
from geartrain_cloud.spark.clocks import Clocks
from geartrain_cloud.spark.source import LogStreamReader


class FlowLog(LogStreamReader):
    """What a hosting query asks of one flow's log."""

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
        """Entries with rows, each time of one channel, that are read together."""
        return self._runs(key, after, upto, rows_max)

    def rows(self, run: list[Entry]) -> list[tuple[int, pa.Table]]:
        """The rows of a run: those of one type together, with the position of the last."""
        return [(number, table.combine_chunks()) for number, table in self._tables(run)]
