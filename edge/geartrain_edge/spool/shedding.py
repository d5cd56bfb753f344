"""Shedding: in a full spool, gaps replace the oldest unacked batches, so that newer rows have room.

`geartrain_edge.spool.admission` uses it for the policy `drop_oldest`. Guarantees: only batches of records are
given up, never schemas, a crossing or moved state, wherever they stand. A gap stands under their seqs, and
neighbours become one gap as long as it stays small.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from geartrain.graph.graph import CLAIMS, STATE
from geartrain.ports.spool import SpooledBatch, SpoolStore
from geartrain.wire.envelope import BatchKind
from geartrain_edge.spool.backlog import Backlog, Counters, Identity
from geartrain_edge.spool.gaps import by_channel, header_of, replacement

GAP_ROWS_MAX = 256
"""Counts in one gap: it is written anew whenever it grows."""
_READ_MAX = 8


class _Run(msgspec.Struct):
    """Neighbours that become one gap. `held_bytes`: what they take now."""

    first_seq: int
    last: SpooledBatch
    rows: list[tuple[int, str, int]] = msgspec.field(default_factory=list)
    held_bytes: int = 0
    grown: bool = False


class Shedder:
    """Makes gaps of the oldest batches of one spool. Used under the backlog's lock only."""

    def __init__(
        self,
        who: Identity,
        store: SpoolStore,
        backlog: Backlog,
        counters: Counters,
        acked_seq: Callable[[], int],
    ) -> None:
        """`acked_seq`: the last batch that was acked, trimmed or not."""
        self._who, self._store, self._backlog, self._counters = who, store, backlog, counters
        self._acked_seq = acked_seq
        self._epoch, self._resume = backlog.epoch, 0

    async def shed(self, need_bytes: int) -> tuple[list[SpooledBatch], int]:
        """Gaps for the next commit, and the bytes that they free: as many as are needed, or as there are."""
        if self._epoch != self._backlog.epoch:
            self._epoch, self._resume = self._backlog.epoch, 0
        after, freed = max(self._acked_seq(), self._resume), 0
        runs: list[_Run] = []
        while freed < need_bytes and (found := await self._store.read(after, _READ_MAX)):
            for batch in found:
                if freed >= need_bytes:
                    break
                after = batch.seq
                if not _is_kept(batch):
                    freed += self._take(runs, batch)
        gaps = [self._gap(run) for run in runs if run.grown]
        if runs:
            self._resume = runs[-1].first_seq - 1
        return gaps, sum(run.held_bytes for run in runs if run.grown) - sum(gap.size for gap in gaps)

    def _take(self, runs: list[_Run], batch: SpooledBatch) -> int:
        """Put a batch or a gap into a run; returns about how many bytes that frees."""
        first = batch.first_seq or batch.seq
        run = runs[-1] if runs else None
        fits = (
            run is not None and run.last.seq + 1 == first and len(run.rows) + len(batch.rows) <= GAP_ROWS_MAX
        )
        if run is None or not fits:
            runs.append(_Run(first, batch, list(batch.rows), batch.size, not batch.first_seq))
        else:
            run.last, run.grown = batch, True
            run.rows += batch.rows
            run.held_bytes += batch.size
        if batch.first_seq:
            return 0
        for channel, count in by_channel(batch.rows).items():
            self._counters.add(f"shed.{channel}", count)
        header_bytes = 0 if fits else len(batch.header)
        return batch.size - header_bytes - 24 * len(batch.rows)

    def _gap(self, run: _Run) -> SpooledBatch:
        who = replace(self._who, epoch=self._backlog.epoch)
        merged = replace(run.last, first_seq=run.first_seq, rows=tuple(run.rows))
        return replacement(who, merged)


def _is_kept(batch: SpooledBatch) -> bool:
    """Whether what a batch says is what those behind it rest on: schemas, a crossing, or moved state."""
    if batch.seq == 1:
        return True
    if batch.first_seq:
        return False
    if batch.rows:
        return all(channel in (STATE, CLAIMS) for _, channel, _ in batch.rows)
    if batch.count:
        return False
    header = header_of(batch)
    return header is not None and header.kind in (BatchKind.SCHEMA, BatchKind.CROSSING)
