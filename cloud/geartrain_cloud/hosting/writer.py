"""The end of a group's micro-batch: its packed rows, by flow, each flow's to tables of its own.

It stands last on a record's path inside Spark, as the function of `foreachBatch`. Guarantees: those of
`FlowStore` for each flow. No flow's tables hold up those of another for longer than the deadline. A flow that
is out gets nothing of a micro-batch that is run again without it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql import DataFrame

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, STATE
from geartrain_cloud.hosting.answering import read_answers
from geartrain_cloud.hosting.flow_store import FlowStore, Portion
from geartrain_cloud.hosting.offsets import ANSWER, PLAN, TALLY, count_name, positions_by_name
from geartrain_cloud.hosting.questions import QuestionFolder, merged
from geartrain_cloud.hosting.sizes import SizesFile
from geartrain_cloud.hosting.skew import Skew
from geartrain_cloud.hosting.versions import Version
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.flow_log import FlowLog

_log = logging.getLogger("host")

_BESIDE = (DEAD_LETTERS, LATE, STATE, CLAIMS)
"""Channels whose rows are no records of a step."""
DEADLINE_S = 1.0
"""How long a micro-batch waits for all tables together; a locked file says so long before."""
DEADLINE_ROW_S = 20e-6
"""So much longer for each row of the log that the largest part of it was made of."""

PACE_MICRO_BATCHES = 8
"""By so many of the last micro-batches it is told how fast the log is read."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A micro-batch that was run: its number (-1 for none yet), its seconds, and its offsets."""

    batch_id: int
    seconds: float
    offsets: Mapping[str, int]


class Pace:
    """How fast micro-batches read the logs of flows, by the last ones; asked by other threads than told."""

    def __init__(self) -> None:
        self._ran: tuple[Ran, ...] = ()

    def add(self, ran: Ran) -> None:
        """Take a micro-batch that was run."""
        self._ran = (*self._ran[-PACE_MICRO_BATCHES:], ran)

    def of(self, positions: Collection[str]) -> float | None:
        """Entries a second of a flow with these positions in the offsets, while one of its micro-batches is
        under way; None where none of them has read any.
        """
        entries, seconds = 0, 0.0
        for before, ran in pairwise(self._ran):
            known = [at for at in positions if at in before.offsets and at in ran.offsets]
            read = sum(max(0, ran.offsets[at] - before.offsets[at]) for at in known)
            if read:
                entries, seconds = entries + read, seconds + ran.seconds
        return entries / seconds if seconds > 0 else None


class HostWriter:
    """Called by Spark for each micro-batch of one group, from a thread of its own."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        log: LogReader,
        version: Callable[[int], Version],
        store: Callable[[str], FlowStore | None],
        questions: QuestionFolder,
        sizes: SizesFile,
    ) -> None:
        """version: by its number; store: that of a generation, None for one that is out or gone; questions:
        where answers go; sizes: where the source reads how large results were.
        """
        self._sizes = sizes
        self._questions = questions
        self._checkpoint, self._log, self._version, self._store = checkpoint, log, version, store
        self.last = Ran(-1, 0.0, {})
        self.pace = Pace()
        """How fast the log of each flow is read."""
        self.skew = Skew()
        """How unevenly rows are dealt over slots and keys."""
        self.failure: Exception | None = None
        """What stopped the query here; Spark itself would only report a trace."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run and write micro-batch `batch_id`; raises `QueryError`, `LedgerError` or `OSError`."""
        try:
            self._write(frame, batch_id)
        except Exception as error:
            self.failure = error
            raise

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        start = time.monotonic()
        packed = frame.toArrow()
        rows: dict[str, dict[str, list[bytes]]] = {}
        columns = (packed.column(name).to_pylist() for name in ("flow", "sink", "packed"))
        for name, sink, raw in zip(*columns, strict=True):
            rows.setdefault(name, {}).setdefault(sink, []).append(raw)
        tallies = {name: of_flow.pop(TALLY) for name, of_flow in rows.items() if TALLY in of_flow}
        answers = [(name, of_flow.pop(ANSWER)) for name, of_flow in rows.items() if ANSWER in of_flow]
        offsets = self._checkpoint.positions(batch_id)
        former = self._checkpoint.positions(batch_id - 1)
        before = positions_by_name(former)
        version = self._version(offsets[PLAN])
        offered, sizes = [], dict[str, tuple[int, int]]()
        for name, positions in positions_by_name(offsets).items():
            hosted = version.flows[name]
            was = before.get(name) or {key: hosted.begin_at(key) for key in hosted.keys}
            store = self._store(name)
            count = offsets[count_name(name)]
            if count == former.get(count_name(name), hosted.begin_count) or store is None:
                continue
            read = _rows_read(FlowLog(self._log, hosted.flow, hosted.channels), was, positions)
            portion = Portion(
                count,
                hosted.resumes if hosted.past else positions,
                rows.get(name, {}),
                sum(read.values()),
                sum(count for channel, count in read.items() if channel not in _BESIDE),
                read[DEAD_LETTERS],
                positions if hosted.past else {},
            )
            sizes[name] = portion.log_rows, portion.size
            offered.append((store, portion, store.offer(portion)))
        largest = max((portion.log_rows for _, portion, _ in offered), default=0)
        wait([future for _, _, future in offered], DEADLINE_S + largest * DEADLINE_ROW_S)
        for store, portion, future in offered:
            store.settle(portion, future)
        self._answer(answers)
        self._sizes.write(sizes)
        self.skew.add(tallies, version.flows)
        self.last = Ran(batch_id, time.monotonic() - start, offsets)
        self.pace.add(self.last)

    def _answer(self, found: list[tuple[str, list[bytes]]]) -> None:
        """Give the answers of flows that are not out; what cannot be written expires with its question."""
        for name, packed in found:
            if self._store(name) is None:
                continue
            for one in merged(read_answers(packed)):
                try:
                    self._questions.answer(one)
                except OSError as error:
                    _log.warning("question %s stays without an answer: %s", one.id, error)


def _rows_read(log: FlowLog, was: Mapping[str, int], positions: Mapping[str, int]) -> Counter[str]:
    """Rows of the log between two positions, by channel."""
    read: Counter[str] = Counter()
    for key, position in positions.items():
        for entry in log.entries(key, was.get(key, 0), position):
            read[entry.channel] += entry.count
    return read
