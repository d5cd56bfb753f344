"""Rows of the log that no step of a flow reads: of channels that its revisions have left without readers.

Beside the group, at a crossing and for its status. Guarantees: what is counted is a function of the log and
of where the revisions begin. A row is looked at once in the life of a process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.reader import LogReader

Since = dict[str, dict[str, int]]
"""By channel, behind which positions nobody reads it."""


def unread_since(earlier: Hosted, channels: Collection[str], places: Mapping[str, int]) -> Since:
    """The channels without readers once `earlier` has gone over, at `places`, to a revision that reads
    `channels`.
    """
    known = {channel: dict(places) for channel in earlier.channels} | earlier.unread
    return {channel: since for channel, since in sorted(known.items()) if channel not in channels}


class UnreadRows:
    """How many there are of each flow of a group."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._counted: dict[tuple[str, str, str], tuple[int, int]] = {}

    def of(self, hosted: Hosted, positions: Mapping[str, int]) -> dict[str, int]:
        """By channel, the rows that a flow has passed by up to `positions`; raises `LedgerError`."""
        found: dict[str, int] = {}
        for channel, since in hosted.unread.items():
            for key, position in positions.items():
                at = hosted.name, channel, key
                upto, count = self._counted.get(at, (since.get(key, 0), 0))
                if position > upto:
                    count += self._log.rows_of(hosted.flow, channel, key, upto, position)
                    self._counted[at] = position, count
                found[channel] = found.get(channel, 0) + count
        return {channel: count for channel, count in found.items() if count}

    def forget(self, name: str) -> None:
        """Forget a generation."""
        self._counted = {at: known for at, known in self._counted.items() if at[0] != name}
