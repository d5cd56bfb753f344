"""The state of steps that devices have left to the cloud: from rows of the log to the shards that keep it.

It stands beside the records, at the same two places. Where the log is read, each cell goes to the stage of
its step and the shard of its key. There it is taken in before the records of the micro-batch, for no record
of its key was run in the cloud before.

Guarantees: a cell is taken in once, with what else the micro-batch does to the shard's state. One in pieces
waits in that state until it is whole. One whose key is held already, and one that cannot be read, become dead
letters of their step. What a cell puts out below the clock leaves the flow as a dead letter too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from geartrain.errors import SchemaError
from geartrain.graph.conform import raw_form
from geartrain.graph.graph import STATE
from geartrain.operators.process import Process
from geartrain.records.batch import Batch, DeadLetter, Origin
from geartrain.records.codes import Code, Refusal
from geartrain.records.event_time import START_OF_TIME
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.moving import loaded
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.state.keyed import NEVER, due_of, saved_cell
from geartrain.state.moving import Cells, StateCell, said_of, taken_in
from geartrain_cloud.log.pack import pack, take, unpack
from geartrain_cloud.spark.buckets import BEGUN, BucketState
from geartrain_cloud.spark.clocks import Clocks, least_clock, sources_of
from geartrain_cloud.spark.rows import Routed
from geartrain_cloud.spark.shards import shard_of
from geartrain_cloud.spark.stages import Stage

ANOTHER = "a device or the data centre already"
"""Who holds a key that cannot be taken in."""
_OVERTAKEN = Refusal(
    Code.OVERTAKEN, "overtaken: the clock had passed it when the state came that it was made of"
)
_DUE_BYTES = 8
_Reject = Callable[[DeadLetter], None]


class _Begun(msgspec.Struct, array_like=True):
    """A cell of which pieces are there: how long it will be, and what has come."""

    size: int
    cell: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Begun).decode


def dealt_cells(
    stages: Sequence[Stage], rows: ColumnBatch, batch: Batch, shards: int, reject: _Reject
) -> Iterator[Routed]:
    """Cells on their way to the shards of their keys; those of steps that keep nothing here are rejected.
    rows, batch: the same, packed and as records.
    """
    of_step = {step: stage.number for stage in stages[1:] for step in stage.steps}
    dealt: dict[tuple[int, int], list[int]] = {}
    for row, cell in enumerate(batch.values):
        step, *_ = said_of(cell.step)
        stage = of_step.get(step)
        if stage is None:
            reason = f"step {step!r} keeps none in the data centre"
            reject(_letter(STATE, batch.origin(row), batch.times[row], reason, cell))
        else:
            dealt.setdefault((stage, shard_of(cell.key, shards)), []).append(row)
    for (stage, shard), chosen in sorted(dealt.items()):
        yield Routed(shard, stage, STATE, pack(take(rows, chosen)))


class MovedState:
    """What comes to one shard of a stage in one micro-batch."""

    def __init__(self, stage: Stage, fragment: Fragment, saved: BucketState) -> None:
        self._stage, self._fragment, self._saved = stage, fragment, saved
        self._clocks: Clocks = saved.clocks
        self._begun: dict[tuple[str, bytes], bytes | None] = {}
        self._places: dict[tuple[str, bytes], tuple[Origin, int]] = {}

    def take(self, packed: Iterable[bytes]) -> None:
        """Take in the cells of all rows of the micro-batch, in the order of the log."""
        whole: list[tuple[tuple[str, bytes], bytes, Origin, int]] = []
        for one in packed:
            codec, rows = RowCodec(StateCell), unpack(one)
            batch = Batch(codec.from_columns(rows.fields), rows.times, rows.names, rows.numbers, rows.paths)
            for row, record in enumerate(batch.values):
                cell = self._whole(record)
                if cell is not None:
                    place = batch.origin(row), batch.times[row]
                    step, form, revision = said_of(record.step)
                    at = step, record.key
                    try:
                        whole.append((at, self._of_now(step, form, revision, cell), *place))
                    except SchemaError as error:
                        self._refuse(at, cell, place, str(error))
        cells = Cells()
        for at, cell, origin, time in whole:
            if at in cells:  # another of the same key came with it
                self._refuse(at, cell, (origin, time), f"the key is held for {ANOTHER}")
            else:
                cells[at], self._places[at] = cell, (origin, time)
        if cells:
            self._take_in(cells)

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """What the shard keeps of cells in pieces, as `BucketState.save` takes it."""
        return dict(self._begun)

    def _whole(self, record: StateCell) -> bytes | None:
        """A cell that is there with this piece; None where more have to come, or it belongs to none."""
        if record.offset == 0 and len(record.cell) == record.size:
            return record.cell
        # Under the key itself, by which state is dealt to other slots.
        at = f"{BEGUN}{record.step}", record.key
        held = self._begun[at] if at in self._begun else self._saved.load(*at)
        begun = _Begun(record.size, b"") if held is None or record.offset == 0 else _decode(held[_DUE_BYTES:])
        if len(begun.cell) != record.offset or begun.size != record.size:
            return None  # a piece before it was lost, which the log says
        begun.cell += record.cell
        is_whole = len(begun.cell) == begun.size
        self._begun[at] = None if is_whole else saved_cell(NEVER, _encode(begun))
        return begun.cell if is_whole else None

    def _of_now(self, step: str, form: str, revision: int, cell: bytes) -> bytes:
        """A cell as its task keeps it now, which a device has kept by the code of another revision; raises
        `SchemaError`.
        """
        began = self._saved.began(step)
        if 0 < revision < began:
            raise SchemaError(
                f"step {step!r} has begun empty with revision {began}, and revision {revision} has kept this"
            )
        task = self._stage.graph[step].operator
        if not form or not isinstance(task, Process):
            return cell
        return task.migrated(step, form, cell)

    def _take_in(self, cells: Cells) -> None:
        check, saved = self._fragment.state.check, self._saved

        def holder(step: str, key: bytes) -> str | None:
            return None if saved.load(step, key) is None else ANOTHER

        arrived = taken_in(cells, holder, check, {}, len(cells))
        for one in arrived.refused:
            at = one.step, one.key
            self._refuse(at, one.cell, self._places[at], one.reason)
        inputs = {
            i.step for step in self._stage.graph.steps if step.id in self._stage.steps for i in step.inputs
        }
        sources = sources_of(self._stage.graph, inputs)

        def clock_of(stream: str) -> int:
            return least_clock(self._clocks, sources[stream])

        behind = min(map(clock_of, inputs), default=START_OF_TIME)
        due = {at: cell for at, cell in arrived.cells.items() if due_of(cell) <= behind}
        self._fragment.take_in({at: cell for at, cell in arrived.cells.items() if at not in due})
        if due:
            left, overtaken = loaded(self._stage.graph, due, clock_of, {})
            self._fragment.take_in(left.cells)
            self._overtake(overtaken)
            self._fragment.hand_on(left.output)

    def _overtake(self, overtaken: Output) -> None:
        for stream, batches in overtaken.batches.items():
            for batch in batches:
                for row, value in enumerate(batch.values):
                    place = batch.origin(row), batch.times[row]
                    self._fragment.reject(DeadLetter(stream, *place, *_OVERTAKEN, raw_form(value)))

    def _refuse(self, at: tuple[str, bytes], cell: bytes, place: tuple[Origin, int], reason: str) -> None:
        record = StateCell(*at, 0, len(cell), cell)
        self._fragment.reject(_letter(at[0], *place, reason, record))


def _letter(step: str, origin: Origin, time: int, reason: str, cell: StateCell) -> DeadLetter:
    """A cell that is set aside, whole, so that nothing of it is lost."""
    why = f"state was not taken in: {reason}"[:300]
    return DeadLetter(step, origin, time, Code.STATE_NOT_TAKEN, why, raw_form(cell))
