"""A log of release 0.2 made one of this release: one sequence of entries for each partition of a flow.

Beside the log, on a stopped one. Release 0.2 had a sequence for each channel, and a clock of each channel.
How the channels' entries lay to each other was never written down. Each channel keeps its order here, and so
does each device, by epoch and seq; between devices any order gives the same results. No row is touched:
segments stay as they are.

Guarantees: the migration is one transaction, so a crash leaves the old log or the new one. A log is refused
that a registered query has not read to its end, because its position would mean nothing afterwards. Nothing
that lies behind a clock is given a place before it.

The clocks of sources follow from those of channels. Up to the end they are the least of all channels' clocks,
which no source has passed back. At the end, the sources of the queries stand exactly where the queries' clock
stood. So a query that is made again from the log gives neither more nor less than it had given.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain.errors import LedgerError
from geartrain.errors.reason import NO_REASON, Reason
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.log.checksums import Row, sealed, whole
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.opening import BUSY_S, stopped_log
from geartrain_cloud.log.rows import put, read_queries, read_replaced, read_resubmitted
from geartrain_cloud.log.tables import (
    BY_CHANNEL_VERSION,
    CREATE,
    INSERT_ENTRY,
    INSERT_SEGMENT,
    LEDGER_FILE,
    REPLACE_CURSOR,
    SELECT_SEGMENTS,
    VERSION,
    check_version,
    entry_row,
    read_segment,
    segment_row,
)
from geartrain_cloud.ports import Entry, EntryKind, QueryProgress, position_key

REPLACE_SEGMENT = INSERT_SEGMENT.replace("INSERT", "INSERT OR REPLACE", 1)
KEYED_QUERY = "keyed"
"""What release 0.2 called the query whose state waits for the clock."""

_SYSTEM = (DEAD_LETTERS, LATE)
_NOTES = {EntryKind.JOINED, EntryKind.EPOCH, EntryKind.LOSS}
"""Entries that release 0.2 wrote once for each channel, and that concern the whole partition."""
_MEMBERS = {EntryKind.ASSIGNED, EntryKind.EXCLUDED, EntryKind.READMITTED}
_SELECT_OLD = (
    "SELECT flow, channel, partition, number, kind, clock, device, epoch, seq, segment, first_row, count, "
    "detail, checksum FROM entries_by_channel "
)
_SELECT_OLD_CURSORS = (
    "SELECT device, flow, epoch, ordinal, seq, digest, positions, watermarks, checksum "
    "FROM cursors_by_channel"
)


@dataclass(frozen=True, slots=True)
class MigratedFlow:
    """What became of one flow: entries before and after, the rows of its channels, and the positions at its
    end; lost: registered queries that cannot be made again from the log, because their state is Spark's.
    """

    flow: str
    entries_before: int
    entries: int
    rows: Mapping[str, int]
    ends_before: Mapping[str, int]
    ends: Mapping[str, int]
    lost: tuple[str, ...] = ()


@dataclass(slots=True)
class _Flow:
    """What is known of a flow before its entries are renumbered."""

    name: str
    above: Mapping[str, frozenset[str]]
    """The sources above each channel."""
    ends: Mapping[tuple[str, int], tuple[int, int]]
    """By (channel, partition), number and clock of the newest entry."""
    ordinals: Mapping[tuple[str, bytes], int]
    """By (device, epoch), its place among the device's."""
    waiting: frozenset[str] = frozenset()
    """The sources of the query whose state waits for the clock."""
    clock: int = START_OF_TIME
    """That query's."""
    numbers: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """By (channel, partition, old number), the new number."""

    @property
    def data(self) -> list[str]:
        """The channels that are not the system's, whose clocks count."""
        return sorted({channel for channel, _ in self.ends if channel not in _SYSTEM})


def migrate_log(
    folder: Path,
    graphs: Sequence[Graph],
    stands: Mapping[str, Mapping[str, int]] | None = None,
    *,
    keep: bool,
    reached: Callable[[str], None] = lambda step: None,
) -> list[MigratedFlow]:
    """Renumber the log in `folder`; what became of each flow.

    graphs: of the flows that wrote it; stands: by query, the positions up to which its tables hold what it
    made, where they are known; keep: False to undo everything at the end, as a trial; reached: told of each
    step as it begins, for tests. Raises `LedgerError` where the log is in use, is not one of release 0.2, is
    not read to its end, or its flow is not given.
    """
    path, found = folder / LEDGER_FILE, list[MigratedFlow]()
    with (
        stopped_log(folder, "gear-ingest is running on it: stop it first"),
        translated(LedgerError, f"the ledger {path}"),
        closing(open_to_write(path, busy_s=BUSY_S)) as ledger,
    ):
        try:
            with transaction(ledger, "EXCLUSIVE"):
                found = _migrate(ledger, path, graphs, stands or {}, reached)
                if not keep:
                    raise _UndoneError
                reached("commit")
        except _UndoneError:
            pass
    return found


class _UndoneError(Exception):
    """The end of a trial."""


def _migrate(
    ledger: sqlite3.Connection,
    path: Path,
    graphs: Sequence[Graph],
    stands: Mapping[str, Mapping[str, int]],
    reached: Callable[[str], None],
) -> list[MigratedFlow]:
    (version,) = ledger.execute("PRAGMA user_version").fetchone()
    if version != BY_CHANNEL_VERSION:
        check_version(ledger, path)
        raise LedgerError(f"{path} is of this release already: there is nothing to migrate")
    reached("tables")
    _make_tables(ledger)
    queries = read_queries(ledger)
    by_name = {graph.name: graph for graph in graphs}
    found, numbers = [], dict[tuple[str, str, int, int], int]()
    for (name,) in ledger.execute("SELECT DISTINCT flow FROM entries_by_channel ORDER BY flow").fetchall():
        reached(f"flow {name}")
        flow = _known(ledger, name, by_name)
        ours = [query for query in queries if query.flow == name]
        _check_read(flow, ours, stands)
        _set_clock(flow, ours)
        found.append(_renumber(ledger, flow, ours))
        numbers |= {(name, *place): number for place, number in flow.numbers.items()}
    reached("cursors")
    _move_cursors(ledger, by_name)
    _move_schemas(ledger, by_name)
    _move_files(ledger, numbers)
    ledger.execute("DELETE FROM queries")  # none can go on with its position
    for table in ("entries_by_channel", "cursors_by_channel", "schemas_by_channel"):
        ledger.execute(f"DROP TABLE {table}")
    ledger.execute(f"PRAGMA user_version = {VERSION}")
    return found


def _make_tables(ledger: sqlite3.Connection) -> None:
    """Put the old tables aside, and make those that have changed, or are new."""
    for index in ("assigned", "moves", "in_segment"):
        ledger.execute(f"DROP INDEX {index}")
    for table in ("entries", "cursors", "schemas"):
        ledger.execute(f"ALTER TABLE {table} RENAME TO {table}_by_channel")
    known = {name for (name,) in ledger.execute("SELECT name FROM sqlite_master")}
    for statement in CREATE.split(";"):
        words = statement.split()
        if words and words[2] not in known:
            ledger.execute(statement)


def _known(ledger: sqlite3.Connection, name: str, graphs: Mapping[str, Graph]) -> _Flow:
    query = (
        "SELECT channel, partition, max(number), max(clock) FROM entries_by_channel WHERE flow = ? "
        "GROUP BY channel, partition"
    )
    ends = {(c, p): (number, clock) for c, p, number, clock in ledger.execute(query, (name,))}
    above = {channel: sources_above(graphs, name, channel) for channel, _ in ends}
    ordinals: dict[tuple[str, bytes], int] = {}
    for table in ("closed_epochs", "cursors_by_channel"):
        rows = ledger.execute(f"SELECT device, epoch, ordinal FROM {table} WHERE flow = ?", (name,))  # noqa: S608
        ordinals |= {(device, bytes(epoch)): ordinal for device, epoch, ordinal in rows}
    return _Flow(name, above, ends, ordinals)


def sources_above(graphs: Mapping[str, Graph], flow: str, channel: str) -> frozenset[str]:
    """The sources above a channel of release 0.2; raises `LedgerError` where the flow does not have it."""
    graph = graphs.get(flow)
    if graph is None:
        raise LedgerError(
            f"the log holds flow {flow!r}, whose sources are not known: name it with --flow module:name"
        )
    if channel in _SYSTEM:
        return frozenset(step.id for step in graph.sources())
    above, step = graph.sources_above(), channel
    while step not in above and "_" in step:
        step = step.rpartition("_")[0]  # a step of the plan, called by the one that it was made for
    if step not in above:
        raise LedgerError(
            f"flow {flow!r} has no step for the log's channel {channel!r}: give the one that wrote it"
        )
    return above[step]


def old_key(channel: str, partition: int) -> str:
    """How positions of release 0.2 named a partition of a channel."""
    return f"{channel}/{partition}" if partition else channel


def _check_read(
    flow: _Flow, queries: Iterable[QueryProgress], stands: Mapping[str, Mapping[str, int]]
) -> None:
    ends = {old_key(channel, partition): number for (channel, partition), (number, _) in flow.ends.items()}
    for query in queries:
        in_tables = stands.get(query.name.partition("@")[0], {}).get(query.key, 0)
        done, end = max(query.position, in_tables), ends.get(query.key, 0)
        if done < end:
            raise LedgerError(
                f"query {query.name} has come to position {done} of {end} of {flow.name}/{query.key}: "
                "let it read to the end with release 0.2, or take it out with its gear log forget"
            )


def _set_clock(flow: _Flow, queries: Iterable[QueryProgress]) -> None:
    """Where the clock of the query stood whose state waits for it: at the least of its channels'."""
    read = {q.key.partition("/")[0] for q in queries if q.name.partition("@")[0] == KEYED_QUERY}
    channels = {channel for channel, _ in flow.ends} & read or set(flow.data)
    flow.waiting = frozenset().union(*(flow.above[channel] for channel in channels))
    partitions = {partition for _, partition in flow.ends}
    flow.clock = min(
        (flow.ends.get((c, p), (0, START_OF_TIME))[1] for c in channels for p in partitions),
        default=START_OF_TIME,
    )


def _renumber(ledger: sqlite3.Connection, flow: _Flow, queries: Sequence[QueryProgress]) -> MigratedFlow:
    before, ends, rows = 0, dict[str, int](), dict[str, int]()
    for partition in sorted({partition for _, partition in flow.ends}):
        query = _SELECT_OLD + "WHERE flow = ? AND partition = ? ORDER BY channel, number"
        old = [_Old.of(row) for row in ledger.execute(query, (flow.name, partition))]
        entries = _renumbered(flow, partition, old)
        ledger.executemany(INSERT_ENTRY, [entry_row(entry) for entry in entries])
        before += len(old)
        ends[position_key(partition)] = len(entries)
        for entry in old:
            if entry.segment:
                rows[entry.channel] = rows.get(entry.channel, 0) + entry.count
    ends_before = {old_key(c, p): number for (c, p), (number, _) in sorted(flow.ends.items())}
    put(ledger, "renumbered", [(flow.name, *end) for end in (ends_before | ends).items()])
    names = {query.name.partition("@")[0] for query in queries}
    lost = tuple(sorted(name for name in names if name.startswith("native_")))
    return MigratedFlow(flow.name, before, sum(ends.values()), rows, ends_before, ends, lost)


@dataclass(frozen=True, slots=True)
class _Old:
    """An entry of release 0.2; clock: of its channel and partition after it."""

    channel: str
    number: int
    kind: EntryKind
    clock: int
    device: str
    epoch: bytes
    seq: int
    segment: str
    first_row: int
    count: int
    detail: str

    @classmethod
    def of(cls, row: Row) -> _Old:
        """The entry of a row; raises `LedgerError` where it is not what was written."""
        _, channel, _, number, kind, *rest = whole(row, f"entry {row[3]} of {row[0]}/{row[1]}")
        return cls(channel, number, EntryKind(kind), *rest)


def _renumbered(flow: _Flow, partition: int, old: Sequence[_Old]) -> list[Entry]:
    """The new entries of a partition, in order, with a last one that sets the clocks."""
    made = _Sequence(flow, partition)
    for entry in in_order(flow.ordinals, old):
        made.take(entry)
    made.end()
    return made.entries


def in_order(ordinals: Mapping[tuple[str, bytes], int], old: Sequence[_Old]) -> Iterable[_Old]:
    """The entries of a partition, given by channel, in an order that keeps that of each channel and, where
    that can be, of each device.

    Where a device's batch was put into the log long after its place (`resubmit`), the channel's order wins.
    """

    def place(entry: _Old) -> tuple[int, int]:
        return ordinals.get((entry.device, entry.epoch), 0), entry.seq

    heads: dict[str, deque[_Old]] = {}
    by_device: dict[str, list[_Old]] = {}
    for entry in old:
        heads.setdefault(entry.channel, deque()).append(entry)
        by_device.setdefault(entry.device, []).append(entry)
    turns = {device: deque(sorted(entries, key=place)) for device, entries in by_device.items()}
    done: set[tuple[str, int]] = set()
    while heads:
        ready = [q[0] for q in heads.values() if place(q[0]) == place(turns[q[0].device][0])]
        chosen = min(ready or [q[0] for q in heads.values()], key=lambda entry: (entry.clock, entry.channel))
        heads[chosen.channel].popleft()
        if not heads[chosen.channel]:
            del heads[chosen.channel]
        done.add((chosen.channel, chosen.number))
        turn = turns[chosen.device]
        while turn and (turn[0].channel, turn[0].number) in done:
            turn.popleft()
        yield chosen


class _Sequence:
    """The new entries of one partition as they are made."""

    def __init__(self, flow: _Flow, partition: int) -> None:
        self._flow, self._partition = flow, partition
        self._clocks = dict.fromkeys(flow.data, START_OF_TIME)
        self._said: set[tuple[Any, ...]] = set()
        self._members: dict[tuple[str, str], EntryKind] = {}
        self.entries: list[Entry] = []

    def take(self, old: _Old) -> None:
        """Make what an old entry says one or several new ones; none where that was said, or moved clocks."""
        if old.channel in self._clocks:
            self._clocks[old.channel] = old.clock
        if old.kind in _MEMBERS:
            if old.channel not in _SYSTEM or not self._flow.data:
                for source in sorted(self._flow.above[old.channel]):
                    self._member(old, source)
        elif old.kind in _NOTES:
            said = (old.kind, old.device, old.epoch, old.seq, old.detail)
            if said not in self._said:
                self._said.add(said)
                self._add(old, "")
        elif old.kind not in (EntryKind.WATERMARK, EntryKind.ADVANCE):
            self._add(old, old.channel)
        self._flow.numbers[old.channel, self._partition, old.number] = len(self.entries)

    def end(self) -> None:
        """Set the clocks where they are to stand."""
        flow, clocks = self._flow, dict[str, int]()
        for source in sorted(frozenset().union(*flow.above.values())):
            below = [channel for channel in flow.data if source in flow.above[channel]]
            least = min((self._clocks[channel] for channel in below), default=START_OF_TIME)
            clock = flow.clock if source in flow.waiting else least
            if clock > START_OF_TIME:
                clocks[source] = clock
        number = len(self.entries) + 1
        last = Entry(
            flow.name,
            self._partition,
            number,
            EntryKind.WATERMARK,
            reason=Reason(EntryCode.RENUMBERED),
            clocks=clocks,
        )
        self.entries.append(last)

    def _member(self, old: _Old, source: str) -> None:
        before = self._members.get((source, old.device))
        if before is old.kind or (before is not None and old.kind is EntryKind.ASSIGNED):
            return
        self._members[source, old.device] = old.kind
        self._add(old, "", source)

    def _add(self, old: _Old, channel: str, source: str = "") -> None:
        place = (self._flow.name, self._partition, len(self.entries) + 1, old.kind, channel)
        batch, rows = (old.device, old.epoch, old.seq), (old.segment, old.first_row, old.count)
        reason = Reason(EntryCode.FORMER, {"text": old.detail}) if old.detail else NO_REASON
        self.entries.append(Entry(*place, *batch, *rows, source, reason, self._least()))

    def _least(self) -> dict[str, int]:
        """What no source is behind: the least of all channels' clocks."""
        least = min([self._flow.clock, *self._clocks.values()])
        sources = frozenset().union(*self._flow.above.values())
        return dict.fromkeys(sorted(sources), least) if least > START_OF_TIME else {}


def _move_cursors(ledger: sqlite3.Connection, graphs: Mapping[str, Graph]) -> None:
    """Cursors with the watermarks of sources: of each, the greatest of the channels below it, because a
    channel's is the least of its sources'.
    """
    for row in ledger.execute(_SELECT_OLD_CURSORS).fetchall():
        values = whole(row, f"the cursor of {row[0]}/{row[1]}")
        marks: dict[str, int] = {}
        for channel, mark in json.loads(values[-1]).items():
            for source in () if channel in _SYSTEM else sources_above(graphs, values[1], channel):
                marks[source] = max(marks.get(source, mark), mark)
        of_sources = msgspec.json.encode(marks, order="sorted").decode()
        ledger.execute(REPLACE_CURSOR, sealed((*values, of_sources)))


def _move_schemas(ledger: sqlite3.Connection, graphs: Mapping[str, Graph]) -> None:
    """Schemas with the sources above their channels."""
    query = "SELECT flow, channel, schema_id, text, checksum FROM schemas_by_channel ORDER BY number"
    for row in ledger.execute(query).fetchall():
        flow, channel, schema_id, text = whole(row, f"the schema of {row[0]}/{row[1]}")
        above = " ".join(sorted(sources_above(graphs, flow, channel)))
        put(ledger, "schemas", [(flow, channel, schema_id, text, above)])


def _move_files(ledger: sqlite3.Connection, numbers: Mapping[tuple[str, str, int, int], int]) -> None:
    """Give what names entries by their numbers the new ones."""
    for row in ledger.execute(SELECT_SEGMENTS).fetchall():
        held = read_segment(row)
        place = (held.flow, held.channel, held.partition)
        moved = replace(held, first=numbers[*place, held.first], last=numbers[*place, held.last])
        ledger.execute(REPLACE_SEGMENT, segment_row(moved))
    for file in read_replaced(ledger, "ORDER BY name"):
        last = numbers.get((file.flow, file.channel, file.partition, file.last), 0)
        values = (file.name, file.flow, file.channel, file.partition, last, file.size, file.since_us)
        put(ledger, "replaced", [values], "INSERT OR REPLACE")
    letters = [
        (flow, partition, numbers[flow, DEAD_LETTERS, partition, number], row)
        for flow, partition, number, row in sorted(read_resubmitted(ledger))
    ]
    ledger.execute("DELETE FROM resubmitted_letters")
    put(ledger, "resubmitted_letters", letters)
