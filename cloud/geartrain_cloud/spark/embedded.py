"""A stage with state inside Spark's transformWithState: one call for each shard of a micro-batch.

It stands behind a shuffle. The same fragment runs here as on a device; Spark keeps its state in checkpoints.
Each call feeds the shard's rows of this micro-batch, then moves every stream to its clock at the end, which
is the least of those of the sources above it. Every micro-batch brings the clocks of all sources to every
shard of every stage. So timers fire, windows close and held records go
on even for keys that got no row, before 1970 too. No watermark or timer of Spark's is used.

Guarantees: the rows of one partition run in their order, each once, whatever streams they come by. Three
things make that so:

- Spark hands over all rows of a shard in one call, in any order, so they are sorted first.
- Spark writes the state of a micro-batch, of all stages and shards, wholly or not at all.
- For rows of the log, the shard keeps the position that it has reached. A row that would go back stops the
  query.

Rows of later stages need no position. A micro-batch that is run again reads the same rows of the log, because
its end positions are in the checkpoint, and starts from the same state. So every stage puts out the same rows
under the same sequence numbers, however far the last attempt got.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from pyspark.sql import Row

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.errors import LedgerError
from geartrain.graph.graph import CLAIMS, GIVEN, STATE
from geartrain.operators.process import Process
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.schema import RowCodec
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.spark.buckets import BUCKETS, BucketState, StateMap
from geartrain_cloud.spark.claims import OWNERS, Giving, remakers
from geartrain_cloud.spark.clocks import Clocks, decode_clocks, least_clock, sources_of
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.moved_state import MovedState
from geartrain_cloud.spark.rows import CLOCKS, Router, decoded
from geartrain_cloud.spark.tally import Tally

CALLS_MAX = 5_000
"""So many calls of a flow's code are allowed for when clocks move, however many rows a micro-batch brings.
With more, code that hangs would be found late.
"""


class EmbeddedFragment:
    """Stage `stage` of a query, one fragment a call, over packed rows grouped by shard."""

    def __init__(
        self,
        query: Query,
        stage: int,
        labels: Sequence[int],
        buckets: int = BUCKETS,
        on_work: Callable[[int], None] = lambda calls: None,
        tally: Tally | None = None,
        on_lost: Callable[[int, dict[str, int]], None] = lambda label, cells: None,
        forms: Mapping[str, str] | None = None,
    ) -> None:
        """labels: what each shard is called; buckets: of one shard; on_work: called before each piece of
        work, with about how often it calls the flow's code; tally: counts what goes to later stages by keys;
        on_lost: told for a shard how many keys' state went by step, since no form of now could be made of it;
        forms: by step, the form of cells that were kept before anybody noted that.
        """
        self._tally, self._on_lost, self._forms = tally, on_lost, forms or {}
        self._query, self._stage, self._labels = query, query.stages[stage], tuple(labels)
        self._buckets, self._on_work = buckets, on_work

    def run(self, state: StateMap, rows: Iterator[Row], drains: Collection[str] = ()) -> Iterator[Row]:
        """Run the rows of one micro-batch that this stage has for a shard, over its map of buckets: rows of
        `ROUTED_ROWS` for sinks and for later stages. drains: the steps that put out all that they hold after
        them, and are fed no more.

        Raises `LedgerError` where positions or clocks go back, or the clocks are missing.
        """
        label: int | None = None
        clocks: Clocks | None = None
        ours: list[Row] = []
        for row in rows:
            label = row.shard
            if row.stream == CLOCKS:
                clocks = decode_clocks(bytes(row.packed))
            else:
                ours.append(row)
        if label is not None:
            yield from self._run(state, label, clocks, ours, drains)

    def _run(
        self,
        state: StateMap,
        label: int,
        clocks: Clocks | None,
        rows: list[Row],
        drains: Collection[str],
    ) -> Iterator[Row]:
        saved = BucketState(state, len(self._labels), self._buckets)
        clocks = self._onward(label, saved.clocks, clocks)
        number, shard, sequence = self._stage.number, self._labels.index(label), 0
        time, chance = SystemClock(), SystemRandomness()  # for tasks that say they are not replayable
        graph, steps = self._stage.graph, self._stage.steps
        self._bring(saved, label)
        fragment = Fragment(graph, steps, saved, clock=time, randomness=chance)
        router = Router(self._query, number, len(self._labels), fragment.reject, shard, self._tally)
        moved = MovedState(self._stage, fragment, saved)
        giving = Giving(self._stage, fragment, saved, shard, len(self._labels))
        beside, rows = _apart(rows)
        for by_all in chain(
            self._steps(fragment, saved, moved, rows, clocks, drains),
            self._settled(fragment, saved, moved, giving, beside, clocks),
        ):
            for out in router.drain(fragment, by_all=by_all):
                sender = f"{number}/{shard}"
                place = {"shard": self._labels[out.shard], "stage": out.stage, "stream": out.stream}
                yield Row(**place, sender=sender, position=0, sequence=sequence, packed=out.packed)
                sequence += 1
        for packed in giving.rows():
            place = {"shard": label, "stage": 0, "stream": GIVEN, "sender": f"{number}/{shard}"}
            yield Row(**place, position=0, sequence=sequence, packed=packed)
            sequence += 1
        if self._tally is not None:
            self._tally.keeps(f"{number}/{shard}", saved.size, saved.kept)
        fragment.close()

    def _settled(
        self,
        fragment: Fragment,
        saved: BucketState,
        moved: MovedState,
        giving: Giving,
        beside: Mapping[str, list[bytes]],
        clocks: Clocks,
    ) -> Iterator[bool]:
        """Save what the rows have changed, then do as devices claim. Yields as `_steps` does."""
        saved.clocks = clocks
        saved.save({**fragment.changes(), **moved.changes(), **giving.note(beside[OWNERS])})
        if beside[CLAIMS]:
            for _ in giving.answer(beside[CLAIMS]):
                yield False
                saved.save(fragment.changes())

    def _bring(self, saved: BucketState, label: int) -> None:
        """Have what tasks have kept by their former code be what they keep now."""
        lost: dict[str, int] = {}
        for step in self._stage.graph.steps:
            task = step.operator
            if step.id not in self._stage.steps or not isinstance(task, Process):
                continue
            before = self._forms.get(step.id, task.due_form)
            ways = remakers(step.id, partial(task.migrated, step.id))
            if went := saved.bring(step.id, task.due_form, before, ways, self._on_work):
                lost[step.id] = went
        if lost:
            self._on_lost(label, lost)

    def _onward(self, label: int, before: Clocks, clocks: Clocks | None) -> Clocks:
        """The clocks that a micro-batch brings, where they have come and none goes back."""
        where = f"stage {self._stage.number}, shard {label}"
        if clocks is None:
            raise LedgerError(
                f"{where}: the micro-batch brings no clock: keep log and checkpoint and report this"
            )
        for source, clock in before.items():
            if (now := clocks.get(source, START_OF_TIME)) < clock:
                raise LedgerError(
                    f"{where}: its clock of {source!r} stands at {clock} and the micro-batch brings {now}: "
                    "keep log and checkpoint and report this"
                )
        return clocks

    def _steps(
        self,
        fragment: Fragment,
        saved: BucketState,
        moved: MovedState,
        rows: list[Row],
        clocks: Clocks,
        drains: Collection[str],
    ) -> Iterator[bool]:
        """Take in moved state, feed the rows, move to the clocks and drain steps. Yields whenever something
        may have left, and whether it is of a record that every shard is fed.
        """
        of_all = {boundary.entry for boundary in self._stage.inputs if boundary.dealing == "all"}
        streams = {boundary.entry: boundary.stream for boundary in self._stage.inputs}
        codecs = {entry: RowCodec(self._query.graph[stream].out) for entry, stream in streams.items()}
        before: tuple[Any, ...] = ()
        calls = 0
        placed = sorted(rows, key=_place)
        moved.take(bytes(row.packed) for row in placed if row.stream == STATE)
        yield False
        for row in placed:
            _check_place(saved, row, before)
            before = _place(row)
            if row.stream == STATE:
                continue
            packed = unpack(bytes(row.packed))
            self._on_work(len(packed))
            fragment.feed(
                row.stream, decoded(codecs[row.stream], packed, streams[row.stream], fragment.reject)
            )
            calls += len(packed)
            yield row.stream in of_all
        for row in rows:
            if row.position:
                positions = saved.positions(row.stream)
                positions[row.sender] = max(positions.get(row.sender, 0), row.position)
        sources = sources_of(self._query.graph, streams.values())
        # At the least clock: what is due there is read anyway. The saving is a part of this work.
        self._on_work(min(calls, CALLS_MAX) + saved.due_cells(min(clocks.values(), default=START_OF_TIME)))
        for entry, stream in streams.items():
            fragment.advance(entry, least_clock(clocks, sources[stream]))
        yield False
        for step in self._stage.graph.steps:  # what one puts out, the next one below may hold
            if step.id in drains and step.id in self._stage.steps:
                self._on_work(saved.due_cells(END_OF_TIME))
                fragment.drain(step.id)
                yield False


def _apart(rows: list[Row]) -> tuple[dict[str, list[bytes]], list[Row]]:
    """What is no record of a step, by stream in the order of the log, and the other rows."""
    beside: dict[str, list[bytes]] = {OWNERS: [], CLAIMS: []}
    for row in sorted((row for row in rows if row.stream in beside), key=_place):
        beside[row.stream].append(bytes(row.packed))
    return beside, [row for row in rows if row.stream not in beside]


def _place(row: Row) -> tuple[str, int, int, str]:
    return row.sender, row.position, row.sequence, row.stream


def _check_place(saved: BucketState, row: Row, before: tuple[Any, ...]) -> None:
    last = saved.positions(row.stream).get(row.sender, 0)
    if _place(row) == before or (row.position and row.position <= last):
        raise LedgerError(
            f"stream {row.stream!r}, shard {row.shard}: position {row.position} of {row.sender} came after "
            f"{last}, so records would be run twice or out of order: keep log and checkpoint and report this"
        )
