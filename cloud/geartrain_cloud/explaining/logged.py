"""The records of an instance in the log, in its order, and what the cloud's steps make of them here.

On the read side of the log, in a short-lived process. Guarantees: steps are fed with what Spark feeds them,
row by row in the order of each partition, and their clocks move as the log says. So a replay gives the same
records. Rows that retention has removed are noted by channel, not passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from geartrain.adapters.system import SystemClock
from geartrain.errors import LedgerError
from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, STATE, key_step
from geartrain.graph.operator import Services
from geartrain.planning import Plan
from geartrain.planning.properties import derive_properties
from geartrain.records.batch import Batch, DeadLetter
from geartrain.runtime.fragment import Fragment
from geartrain.schema import ColumnBatch, Schema
from geartrain.state.claims import HAS
from geartrain.state.keyed import DictBackend, KeyedState
from geartrain.state.moving import said_of
from geartrain_cloud.explaining.errors import ExplainError
from geartrain_cloud.log.arrow import from_table
from geartrain_cloud.log.pack import take
from geartrain_cloud.log.part import SYSTEM_NAMES
from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.ports import Entry, position_key
from geartrain_cloud.spark.claims import claims_lost
from geartrain_cloud.spark.followed import Followed
from geartrain_cloud.spark.rows import decoded
from geartrain_cloud.spark.upgrading import Present

CHUNK_ROWS = 20_000
"""Rows of a partition that are fed before the clocks move."""


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """Rows of one entry. indexes: of each in its entry; devices, seqs: the batch that each came in; late,
    overtaken: what ingest has said of each.
    """

    entry: Entry
    rows: ColumnBatch
    indexes: list[int]
    devices: list[str]
    seqs: list[int]
    late: list[bool]
    overtaken: list[bool]

    def column(self, schema: Schema, field: str) -> list[Any]:
        """The values of a field, in the form of the log; schema: of its channel."""
        return self.rows.fields[[one.name for one in schema.fields].index(field)]

    def chosen(self, rows: list[int]) -> LoggedRows:
        """Some of the rows."""
        return LoggedRows(
            self.entry,
            take(self.rows, rows),
            [self.indexes[row] for row in rows],
            [self.devices[row] for row in rows],
            [self.seqs[row] for row in rows],
            [self.late[row] for row in rows],
            [self.overtaken[row] for row in rows],
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in the order of the log, and the flow's clocks behind them."""

    rows: list[LoggedRows]
    clocks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Moved:
    """State that has gone from one tier to the other: of which device, and the entry that says so."""

    device: str
    entry: Entry


@dataclass
class LoggedFlow:
    """The log of one instance, up to where it stood when this was made.

    plan: of all cuts that its devices have; given_up: by channel the layouts of former types whose rows are
    dead letters. Two are known once the log was read. removed: by channel, the newest entry whose rows
    retention has removed; unread: by channel and entry (partition, number), how many of its rows a former
    revision has read, and the present type cannot take.
    """

    log: LogReader
    instance: str
    plan: Plan
    given_up: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    removed: dict[str, Entry] = field(default_factory=dict)
    unread: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ends = self.log.positions(self.instance)
        graph, channels = self.plan.graph, self.plan.channels
        self._present = {
            channel.id: Present(channel.id, channel.kind, self.given_up.get(channel.id, ()))
            for channel in channels
        }
        self._entries = {channel.id: channel.entry for channel in channels}
        known = derive_properties(graph)
        self._timely = {c for c, entry in self._entries.items() if entry in known and known[entry].timely}
        self._cloud = frozenset(self.plan.cloud)

    @property
    def clocks(self) -> Mapping[str, int]:
        """The flow's clocks at its end."""
        return self.log.clocks_at(self.instance, self._ends)

    @cached_property
    def boundaries(self) -> list[Mapping[str, int]]:
        """Behind which positions the flow's second revision ran, its third, and so on."""
        found: list[Mapping[str, int]] = []
        while boundary := self.log.boundary(self.instance, len(found) + 2):
            found.append(boundary)
        return found

    def revision_at(self, entry: Entry) -> int:
        """The number of the revision that ran the rows of an entry."""
        key = position_key(entry.partition)
        return 1 + sum(key in one and one[key] < entry.number for one in self.boundaries)

    @property
    def newest(self) -> int:
        """The number of the revision that the flow has come to."""
        return 1 + len(self.boundaries)

    def chunks(self, channels: Collection[str]) -> Iterator[Chunk]:
        """All rows of these channels; raises `LedgerError`, and `ExplainError` for rows of another type, and
        for a device that has sent by a cut that the plan does not know.
        """
        at = dict.fromkeys(self._ends, 0)
        while at != self._ends:
            rows: list[LoggedRows] = []
            for key, end in self._ends.items():
                upto = min(end, self.log.limit(self.instance, key, at[key], Room(CHUNK_ROWS)))
                entries = self.log.entries(self.instance, key, at[key], upto)
                self._check_known(entries)
                wanted = (entry for entry in entries if entry.channel in channels)
                rows += [found for entry in wanted for found in self._rows(entry)]
                at[key] = upto
            yield Chunk(rows, self.log.clocks_at(self.instance, at))

    def _check_known(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.count and entry.channel not in self._present:
                raise ExplainError(
                    f"the log has rows of {entry.channel!r}, which a device has sent by a cut that the app "
                    "does not have any more, and only what came by its present cuts can be explained"
                )

    def _rows(self, entry: Entry) -> Iterator[LoggedRows]:
        if entry.count and not entry.segment:
            known = self.removed.get(entry.channel)
            if known is None or known.number < entry.number:
                self.removed[entry.channel] = entry
        table = self.log.table(entry) if entry.segment else claims_lost([entry])
        if table is None:
            return
        present = self._present[entry.channel]
        try:
            table, indexes = present.table(table, entry.channel, _nobody)
        except LedgerError:
            raise ExplainError(
                f"channel {entry.channel}: the log holds records of another type than the flow now has: "
                "install the code that the app runs"
            ) from None
        if len(indexes) < entry.count and self.revision_at(entry) < self.newest:
            lost = self.unread.setdefault(entry.channel, {})
            lost[entry.partition, entry.number] = entry.count - len(indexes)
        said: list[list[Any]] = [table.column(name).to_pylist() for name in SYSTEM_NAMES[4:]]
        yield LoggedRows(entry, from_table(present.codec.schema, table), list(indexes), *said)

    def on_time(self, found: LoggedRows) -> ColumnBatch:
        """The rows without those that the clock had passed when they came: no step is fed with these."""
        if found.entry.channel not in self._timely or not any(found.overtaken):
            return found.rows
        return take(found.rows, [row for row, flag in enumerate(found.overtaken) if not flag])

    def batch(self, channel: str, rows: ColumnBatch) -> Batch:
        """Rows of a channel as records; one that cannot be read is left out, as its dead letter says."""
        return decoded(self._present[channel].codec, rows, channel, _nobody)

    def above(self, step: str) -> set[str]:
        """The steps of the cloud from which records go to a step, and itself; what comes from the log ends
        the way up.
        """
        found, waiting = set[str](), [step]
        while waiting:
            one = waiting.pop()
            if one in self._cloud and one not in found:
                found.add(one)
                waiting += [source.step for source in self.plan.graph[one].inputs]
        return found

    def channel_of(self, stream: str) -> str:
        """The channel whose rows are fed as `stream`."""
        return next(channel for channel, entry in self._entries.items() if entry == stream)

    def read_by(self, steps: Collection[str]) -> set[str]:
        """The channels that some of the cloud's steps read."""
        read = {one.step for step in steps for one in self.plan.graph[step].inputs}.difference(steps)
        return {c for c, entry in self._entries.items() if entry in read} - {
            DEAD_LETTERS,
            LATE,
            STATE,
            CLAIMS,
        }

    def opened(self, steps: Collection[str], open_fragment: Callable[..., Fragment] = Fragment) -> Followed:
        """Some of the cloud's steps, ready to be fed; open_fragment: as of `Followed`."""
        return Followed(self.plan, steps, SystemClock(), open_fragment)

    def feed(self, steps: Followed, found: LoggedRows) -> None:
        """Feed rows to steps, without those that the clock had passed when they came; or tell them of state
        that devices have left or taken.
        """
        channel = found.entry.channel
        if channel == STATE:
            steps.take_in(found.rows, found.devices)
        elif channel == CLAIMS:
            steps.answer(found.rows, found.devices)
        else:
            steps.note_owners(channel, found.rows, found.devices)
            steps.feed(channel, self.batch(channel, self.on_time(found)))

    def stream(self, stream: str) -> Iterator[Batch]:
        """The records of a stream, keyed where it is, from the log's beginning on."""
        steps = self.above(stream)
        if not steps:
            channel = self.channel_of(stream)
            for chunk in self.chunks({channel}):
                for found in chunk.rows:
                    yield self._keyed(stream, self.batch(channel, self.on_time(found)))
            return
        channels, followed = self.read_by(steps), self.opened(steps)
        for chunk in self.chunks(channels | self.moving):
            for found in chunk.rows:
                self.feed(followed, found)
            followed.advance(channels, chunk.clocks)
            yield from followed.take().batches.get(stream, [])

    @property
    def moving(self) -> frozenset[str]:
        """The channels by which devices leave state to the data centre and claim it from there."""
        return frozenset({STATE, CLAIMS} & self._present.keys())

    @cached_property
    def taken(self) -> Mapping[str, list[Moved]]:
        """By step, where devices have said that they have what it keeps."""
        found: dict[str, list[Moved]] = {}
        for rows in self._of(CLAIMS):
            for claim, device in zip(self.batch(CLAIMS, rows.rows).values, rows.devices, strict=True):
                if claim.says == HAS:
                    found.setdefault(claim.step, []).append(Moved(device, rows.entry))
        return found

    def left(self, step: str, keys: Collection[bytes] | None = None) -> list[Moved]:
        """Where devices have left what a step keeps of some keys, or of any, to the data centre."""
        return [
            Moved(device, rows.entry)
            for rows in self._of(STATE)
            for cell, device in zip(self.batch(STATE, rows.rows).values, rows.devices, strict=True)
            if said_of(cell.step)[0] == step and (keys is None or cell.key in keys)
        ]

    def _of(self, channel: str) -> Iterator[LoggedRows]:
        if channel in self._present:
            yield from (rows for chunk in self.chunks({channel}) for rows in chunk.rows)

    def _keyed(self, stream: str, batch: Batch) -> Batch:
        """A batch of a channel with the keys of its stream, which no channel carries."""
        step = key_step(self.plan.graph, stream)
        if step is None:
            return batch
        kind = self.plan.graph[stream].out
        transform = step.operator.open(Services(stream, kind, _nobody, KeyedState(DictBackend())))
        return transform(batch) if callable(transform) else batch


def _nobody(letter: DeadLetter) -> None:
    """Dead letters are in a table of their own already."""
