"""What the simulated disk of a log holds of its ledger, as readers see it.

Under `SimLedgerStore`, which is one process's way to it. Guarantees: each transaction is carried out wholly,
in the order of the calls, and once more from the disk after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import msgspec

from geartrain.errors import ConfigError, FencedError, LedgerError
from geartrain_cloud.ports import (
    AckCursor,
    ClosedEpoch,
    Entry,
    EntryKind,
    HeldSegment,
    LedgerChange,
    QuarantinedBatch,
    QueryProgress,
    ReplacedFile,
    StoredSchema,
    StoredSegment,
)
from geartrain_simulation.machine.journal import Tail
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import tell

T = TypeVar("T")

DIGESTS_KEPT = 1_024

_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "take": msgspec.msgpack.Decoder(tuple[int, list[int] | None]),
    "commit": msgspec.msgpack.Decoder(tuple[int, LedgerChange]),
    "retire": msgspec.msgpack.Decoder(tuple[int, list[str], int, StoredSegment | None, dict[str, int]]),
    "forget": msgspec.msgpack.Decoder(list[str]),
}


class LedgerBook:
    """What one log's ledger has committed. `on_commit` is told of each change once it is durable."""

    def __init__(self, platter: Platter | None = None) -> None:
        """`platter`: the disk that it lies on."""
        self.platter = platter if platter is not None else Platter(Random(0))
        self.tail = Tail()
        self.told = 0
        """Transactions that the hook has heard of."""
        self.is_loading = False
        """Whether what the hook hears of was done before a crash."""
        self.queries: list[QueryProgress] = []
        self.on_commit: Callable[[LedgerChange], None] = lambda change: None
        self._begin()

    def _begin(self) -> None:
        self.term = 0
        self.terms: dict[int, int] = {}
        self.taken: dict[int, tuple[int, ...]] = {}
        self.replaced: dict[str, ReplacedFile] = {}
        self.entries: dict[tuple[str, int], list[Entry]] = {}
        self.cursors: dict[tuple[str, str], AckCursor] = {}
        self.closed: dict[tuple[str, str, bytes], ClosedEpoch] = {}
        self.schemas: dict[tuple[str, str, str], StoredSchema] = {}
        self.quarantined: list[QuarantinedBatch] = []
        self.digests: dict[tuple[str, str, bytes], dict[int, bytes]] = {}
        self.counters: dict[str, int] = {}
        """The sums over all ingests of the log."""
        self._counters: dict[int, dict[str, int]] = {}
        self.segments: dict[str, StoredSegment] = {}
        self._done = 0

    def load(self, records: Sequence[bytes]) -> None:
        """Hold what the disk holds; the hook hears of what was made durable before its caller heard."""
        self._begin()
        self.is_loading = True
        for record in records:
            name, _, body = record.partition(b":")
            self.do(name.decode(), _DECODERS[name.decode()].decode(body))
        self.told, self.is_loading = self._done, False

    def do(self, name: str, what: Any) -> Any:
        """Carry out a transaction that is on the disk."""
        hook, self._done = self._done >= self.told, self._done + 1
        self.told = max(self.told, self._done)
        if name == "take":
            return self._take(*what)
        if name == "retire":
            return self._retire(*what)
        if name == "forget":
            for one in what:
                self.replaced.pop(one, None)
            return None
        self._apply(*what)
        if hook:
            tell(self.on_commit, what[1])
        return None

    def all_entries(self) -> list[Entry]:
        """Every entry, by place and number."""
        return [entry for place in sorted(self.entries) for entry in self.entries[place]]

    def check_partitions(self, partitions: int) -> None:
        """Raise `ConfigError` for another number of partitions than before."""
        if self.terms and len(self.terms) != partitions:
            raise ConfigError(f"the ledger has {len(self.terms)} partitions, not {partitions}")

    def _take(self, partitions: int, owned: Sequence[int] | None) -> int:
        self.term += 1
        self.terms = {**dict.fromkeys(range(partitions), 0), **self.terms}
        self.taken[self.term] = tuple(range(partitions)) if owned is None else tuple(owned)
        self.terms.update(dict.fromkeys(self.taken[self.term], self.term))
        return self.term

    def check(self, term: int) -> None:
        """Raise `FencedError` when a later term has a partition of this one."""
        if term not in self.taken or any(self.terms[p] != term for p in self.taken[term]):
            raise FencedError(f"another ingest has taken the ledger (its term is {self.term}, ours {term})")

    def held(self, term: int) -> list[HeldSegment]:
        """The segments that entries of the partitions of `term` name, the oldest first."""
        found: dict[str, list[Entry]] = {}
        for entry in self.all_entries():
            if entry.segment and entry.partition in self.taken[term]:
                found.setdefault(entry.segment, []).append(entry)
        held = [
            HeldSegment(
                self.segments[name],
                *(es[0].flow, es[0].channel, es[0].partition, es[0].number, es[-1].number),
                sum(e.count for e in es),
            )
            for name, es in found.items()
        ]
        return sorted(held, key=lambda h: (h.segment.made_us, h.segment.name))

    def holds(self, term: int, names: Sequence[str]) -> bool:
        """Whether entries of the partitions of `term` name all these segments."""
        return {one.segment.name for one in self.held(term)} >= set(names)

    def _retire(
        self,
        term: int,
        names: Sequence[str],
        now_us: int,
        merged: StoredSegment | None,
        counters: Mapping[str, int],
    ) -> None:
        """Have the entries of segments name `merged`, or nothing."""
        held, rows = {one.segment.name: one for one in self.held(term)}, 0
        for name in names:
            one = held[name]
            place = (one.flow, one.partition)
            for at, entry in enumerate(self.entries[place]):
                if entry.segment != name:
                    continue
                self.entries[place][at] = (
                    replace(entry, kind=EntryKind.REMOVED, segment="", first_row=0)
                    if merged is None
                    else replace(entry, segment=merged.name, first_row=entry.first_row + rows)
                )
            rows += one.rows
            size = self.segments.pop(name).size
            self.replaced[name] = ReplacedFile(
                name, one.flow, one.channel, one.partition, one.last, size, now_us
            )
        if merged is not None:
            self.segments[merged.name] = merged
        self._count(term, counters)

    def check_change(self, term: int, change: LedgerChange) -> None:
        """Raise `LedgerError` for an old term or a number that is taken or left out."""
        self.check(term)
        following: dict[tuple[str, int], int] = {}
        for entry in change.entries:
            place = (entry.flow, entry.partition)
            number = following.get(place, len(self.entries.get(place, ()))) + 1
            if entry.number != number:
                raise LedgerError(f"entry {entry.number} of {place} does not follow on {number - 1}")
            following[place] = number

    def totals(self, term: int) -> dict[str, int]:
        """The counters of the ingest with this term."""
        return self._counters.setdefault(min(self.taken[term], default=0), {})

    def _count(self, term: int, counters: Mapping[str, int]) -> None:
        self.totals(term).update(counters)
        for name in counters:
            self.counters[name] = sum(one.get(name, 0) for one in self._counters.values())

    def _apply(self, term: int, change: LedgerChange) -> None:
        for entry in change.entries:
            self.entries.setdefault((entry.flow, entry.partition), []).append(entry)
        self.cursors.update({(cursor.device, cursor.flow): cursor for cursor in change.cursors})
        for schema in change.schemas:
            self.schemas.setdefault((schema.flow, schema.channel, schema.schema_id), schema)
        self.quarantined += change.quarantined
        self.segments.update({segment.name: segment for segment in change.segments})
        self._count(term, change.counters)
        for one in change.digests:
            kept = self.digests.setdefault((one.device, one.flow, one.epoch), {})
            kept[one.seq] = one.digest
            for seq in [seq for seq in kept if seq <= one.seq - DIGESTS_KEPT]:
                del kept[seq]
        for closed in change.closed_epochs:
            key = (closed.device, closed.flow, closed.epoch)
            self.closed[key] = closed
            self.digests.pop(key, None)
