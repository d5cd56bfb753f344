"""What may be removed from the log: old segments, once every query that reads them is done with them.

Used inside ingest, and by `gear log trim` on a running or stopped log. Guarantees: rows stay as long as a
registered query has not committed them, and as long as no query is registered for their partition. Only rows
go; positions and clocks stay, and whoever asks for removed rows is told so. A file is removed after the
ledger has forgotten it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from geartrain.errors import LedgerError
from geartrain_cloud.log.housekeeping import forget_rows
from geartrain_cloud.log.opening import ledger_of, writable_ledger
from geartrain_cloud.log.rows import read_queries
from geartrain_cloud.log.tables import SELECT_SEGMENTS, read_segment
from geartrain_cloud.ports import HeldSegment, QueryProgress, position_key


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept: older_than_s seconds, bytes_max bytes of segments in all; None: no limit."""

    older_than_s: float | None = None
    bytes_max: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether anything may go at all."""
        return self.older_than_s is not None or self.bytes_max is not None


@dataclass(frozen=True, slots=True)
class Retained:
    """What went, and what is left; held: segments that are due but that a query still needs."""

    segments: int
    bytes: int
    bytes_left: int
    held: int


@dataclass(slots=True)
class Due:
    """The segments that may go now, oldest first; held: how many more are due; bytes_left: what stays."""

    segments: list[HeldSegment] = field(default_factory=list)
    held: int = 0
    bytes_left: int = 0


def find_due(
    segments: Iterable[HeldSegment], queries: Iterable[QueryProgress], limits: Retention, now_us: int
) -> Due:
    """What of `segments`, the oldest first, may go; now_us: wall clock."""
    known, done = list(segments), done_with(queries)
    found = Due(bytes_left=sum(one.segment.size for one in known))
    for one in known:
        age_us = now_us - one.segment.made_us
        is_old = limits.older_than_s is not None and age_us > limits.older_than_s * 1e6
        if not is_old and (limits.bytes_max is None or found.bytes_left <= limits.bytes_max):
            continue
        if done.get((one.flow, position_key(one.partition)), 0) < one.last:
            found.held += 1
            continue
        found.segments.append(one)
        found.bytes_left -= one.segment.size
    return found


def find_all_due(
    segments: Iterable[HeldSegment],
    queries: Iterable[QueryProgress],
    limits: Retention,
    of_flow: Mapping[str, Retention],
    now_us: int,
) -> Due:
    """As `find_due`, with limits of some flows besides; what any limit lets go of may go.

    of_flow: by flow; its bytes are those of its own segments.
    """
    known, done = list(segments), list(queries)
    found = find_due(known, done, limits, now_us)
    going = {one.segment.name for one in found.segments}
    for flow, own in sorted(of_flow.items()):
        if own.is_limited:
            rest = [one for one in known if one.flow == flow and one.segment.name not in going]
            due = find_due(rest, done, own, now_us)
            found.segments += due.segments
            found.held += due.held
            found.bytes_left -= sum(one.segment.size for one in due.segments)
    return found


DAY_US = 86_400 * 1_000_000
_SPAN_US_MIN = 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class Holding:
    """What the log holds of a flow: bytes of segments, and how many came in a day, by the last span_s
    seconds; both None where nobody knows yet.
    """

    bytes: int
    bytes_per_day: float | None = None
    span_s: float | None = None


def holding(folder: Path, flow: str, now_us: int) -> Holding:
    """What the log in `folder` holds of a flow; now_us: wall clock. Raises `LedgerError`.

    What came in a day is that of the last day, or of the time since the first segment that is there. It is
    not known before that is a minute.
    """
    with ledger_of(folder) as ledger:
        held, first, newer = ledger.execute(
            "SELECT coalesce(sum(size), 0), min(made_us), coalesce(sum(size) FILTER (WHERE made_us >= ?), 0) "
            "FROM segments WHERE flow = ?",
            (now_us - DAY_US, flow),
        ).fetchone()
    span_us = min(DAY_US, now_us - first) if first is not None else 0
    if span_us < _SPAN_US_MIN:
        return Holding(held)
    return Holding(held, newer * DAY_US / span_us, span_us / 1e6)


def done_with(queries: Iterable[QueryProgress]) -> Mapping[tuple[str, str], int]:
    """By (flow, key), the position up to which all queries that are registered for it are done."""
    found: dict[tuple[str, str], int] = {}
    for query in queries:
        place = (query.flow, query.key)
        found[place] = min(found.get(place, query.position), query.position)
    return found


def retain(folder: Path, limits: Retention, now_us: int) -> Retained:
    """Remove what is due; now_us: wall clock. Raises `LedgerError`."""
    with writable_ledger(folder) as ledger:
        rows = ledger.execute(SELECT_SEGMENTS + "ORDER BY made_us, name").fetchall()
        due = find_due(map(read_segment, rows), read_queries(ledger), limits, now_us)
        names = [one.segment.name for one in due.segments]
        for name in names:
            forget_rows(ledger, name, now_us)
        # A crash before the files are gone leaves orphans, which ingest removes when it starts.
        ledger.executemany("DELETE FROM replaced WHERE name = ?", [(name,) for name in names])
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise LedgerError(f"{folder / name} cannot be removed: {error.strerror or error}") from None
    size = sum(one.segment.size for one in due.segments)
    return Retained(len(names), size, due.bytes_left, due.held)
