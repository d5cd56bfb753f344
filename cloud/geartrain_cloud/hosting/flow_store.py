"""One hosted flow's tables, behind a deadline: a micro-batch that they do not take in time is parked.

Last on a record's path inside a group. Each flow writes in a transaction of its own, in a thread of its own,
under its own count of micro-batches.

Guarantees: when a micro-batch is let go, it is in the tables or in a durable file. Parked ones reach the
tables in order, each once, before any later one. The flow is held meanwhile, so few are ever parked. What the
tables hold is not written again. A flow with too many dead letters is stopped after they are in its tables;
those that a person has asked for with an update do not count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from hashlib import blake2b
from pathlib import Path

import msgspec

from geartrain.adapters.files import fsync_path, make_private_folder, write_durable
from geartrain.errors import GeartrainError
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.printable import printable
from geartrain.records.codes import Code
from geartrain.schema import ColumnBatch
from geartrain_cloud.hosting.errors import HostError, NotYetError, ParkedError
from geartrain_cloud.hosting.steering import Stop
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.sinks.layout import Layout
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.spark.breaker import Breaker
from geartrain_cloud.spark.compile import HOSTED
from geartrain_cloud.spark.errors import BreakerError

BUSY_S = 0.1
"""How long a write waits for whoever else writes the flow's tables, before it is parked."""
_ENDS = "ends"
"""The file, beside what is parked."""
_DIGEST = 16
"""Bytes at the beginning of a parked file: the digest (BLAKE2b) of the others."""
RETRY_S = 0.5
"""Between two attempts to write what is parked."""


class Portion(msgspec.Struct, array_like=True, frozen=True):
    """A flow's part of a micro-batch.

    count: its own count; positions: where its tables stand with it; rows: packed, by sink; log_rows: of the
    log that it was made of. records and letters say how many of these were records and dead letters. ends:
    where it ends, if that is elsewhere.
    """

    count: int
    positions: dict[str, int]
    rows: dict[str, list[bytes]]
    log_rows: int
    records: int
    letters: int
    ends: dict[str, int] = {}

    @property
    def size(self) -> int:
        """The bytes of its packed rows."""
        return sum(len(raw) for several in self.rows.values() for raw in several)


class FlowStore:
    """The tables of one generation."""

    def __init__(
        self,
        name: str,
        tables: Tables,
        folder: Path,
        letters_percent: float,
        on_change: Callable[[], None],
        *,
        parked: Path,
        retry_s: float = RETRY_S,
    ) -> None:
        """folder: the generation's own, where it is noted that dead letters have stopped it; parked: the
        flow's, for what is parked; on_change: called in any thread when `held` may have changed.

        Raises `ParkedError` where what is parked is damaged, and `OSError`.
        """
        self._tables, self._folder = tables, parked
        self._on_change, self._retry_s = on_change, retry_s
        make_private_folder(self._folder)
        make_private_folder(folder)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"tables-{name}")
        self._waiting = ""
        self._tripped = ""
        self._planned: tuple[list[Layout], Future[object]] | None = None
        self._ended: dict[int, dict[str, int]] | None = None
        counts = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())
        self._parked = {count: self._read(count).positions for count in counts}
        """Where each micro-batch ends that is parked, by its count."""
        self.repeated = 0
        """Micro-batches that were run again and not written, because the tables held them."""
        try:
            self._breaker: Breaker | None = Breaker(name.partition("~")[0], folder, letters_percent)
        except BreakerError as error:
            self._breaker, self._tripped = None, str(error)
        if self._parked:
            self._waiting = "rows of an earlier run are parked"
            self._threads.submit(self._drain)

    @property
    def held(self) -> str:
        """Why the flow must not move, empty where it may."""
        return self._tripped or self._waiting

    @property
    def tripped(self) -> str:
        """Why its dead letters have stopped it, empty where they have not."""
        return self._tripped

    def count(self) -> int:
        """The newest of its own micro-batches that is in the tables or parked."""
        return self._newest()[0]

    def stand(self) -> dict[str, int]:
        """Where the newest of these micro-batches ends."""
        parked = self._newest()[1]
        return self._tables.positions(HOSTED) if parked is None else dict(parked)

    def _newest(self) -> tuple[int, dict[str, int] | None]:
        """That count, and where it ends, None where the tables say that.

        What is parked once more, after Spark's newest files were lost, is older than what the tables hold.
        """
        with self._lock:
            parked = max(self._parked, default=-1)
            ends = self._parked.get(parked)
        held = self._tables.progress(HOSTED)
        count = -1 if held is None else held.batch_id
        return (count, None) if count > parked else (parked, ends)

    def stops(self) -> tuple[Stop, ...]:
        """Where the newest micro-batch ends that is in the tables or parked. Then the end of the one after
        it, which other stores than the flow's own may hold already, or had begun to take.

        Raises `TableError`.
        """
        ends, (count, parked) = self._ends(), self._newest()
        stand = self._tables.positions(HOSTED) if parked is None else parked
        found = [Stop(count, ends.get(count) or dict(stand))] if count >= 0 else []
        ahead = {} if parked is not None else ends.get(count + 1) or dict(self._tables.ahead(HOSTED))
        return (*found, Stop(count + 1, ahead, undivided=True)) if ahead else tuple(found)

    def _ends(self) -> dict[int, dict[str, int]]:
        """Where the last micro-batches ended of which the tables do not say that, by count."""
        try:
            return msgspec.msgpack.decode((self._folder / _ENDS).read_bytes(), type=dict[int, dict[str, int]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise HostError(
                f"{self._folder / _ENDS} cannot be read ({error}): bring it back from a copy"
            ) from None

    def _note_end(self, portion: Portion) -> None:
        """Keep where a micro-batch ends before the first store has it, if not all of them can say that."""
        if not portion.ends and not self._tables.is_silent:
            return
        if self._ended is None:
            self._ended = self._ends()
        if portion.count < max(self._ended, default=-1):  # the stores have more, and this is made again
            return
        ended = {count: ends for count, ends in self._ended.items() if count == portion.count - 1}
        ended[portion.count] = portion.ends or portion.positions
        if ended != self._ended:
            write_durable(self._folder / _ENDS, msgspec.msgpack.encode(ended))
            self._ended = ended

    def offer(self, portion: Portion) -> Future[None]:
        """Begin to write a micro-batch; the future raises what kept it from the tables.

        Raises `OSError` and `HostError`.
        """
        self._note_end(portion)
        if self._parked:  # it comes after those
            behind: Future[None] = Future()
            behind.set_exception(GeartrainError(self._waiting or "earlier rows are parked"))
            return behind
        return self._threads.submit(self._write, portion)

    def settle(self, portion: Portion, future: Future[None]) -> None:
        """See that a micro-batch that was offered is durable, parked where it is not in the tables yet.

        Raises `OSError` where it can be neither.
        """
        if future.done():
            error = future.exception()
            if error is None:
                return
            why = printable(" ".join(str(error).split()))
            if not isinstance(error, GeartrainError):
                why = f"{type(error).__name__}: {why}"
        else:
            why = "its tables do not take rows in time"
        raw = msgspec.msgpack.encode(portion)
        write_durable(self._folder / str(portion.count), _digest(raw) + raw)
        with self._lock:
            self._parked[portion.count] = portion.positions
        self._waiting = why
        self._on_change()
        if not self._closing.is_set():
            self._threads.submit(self._drain)

    def _write(self, portion: Portion) -> None:
        rows = {sink: [unpack(raw) for raw in several] for sink, several in portion.rows.items()}
        written = self._tables.write(HOSTED, portion.count, portion.positions, rows, portion.log_rows)
        if not written:
            self.repeated += 1
            return
        letters = rows.get(DEAD_LETTERS, [])
        newest = next(
            (f"step {b.fields[0][-1]!r}: {b.fields[2][-1]}" for b in reversed(letters) if len(b)), ""
        )
        if self._breaker is None:
            return
        try:
            made = sum(map(len, letters)) - portion.letters - sum(map(_asked_for, letters))
            self._breaker.count(portion.records, made, newest)
        except BreakerError as error:
            self._tripped = str(error)
            self._on_change()

    def _drain(self) -> None:
        """Write what is parked, in order, as often as it takes."""
        while self._parked and not self._closing.is_set():
            count = min(self._parked)
            try:
                self._write(self._read(count))
            except (GeartrainError, OSError) as error:
                self._waiting = printable(" ".join(str(error).split()))
                self._on_change()
                self._closing.wait(self._retry_s)
                continue
            (self._folder / str(count)).unlink(missing_ok=True)
            fsync_path(self._folder)
            with self._lock:
                del self._parked[count]
        if not self._parked:
            self._waiting = ""
            self._on_change()

    def _read(self, count: int) -> Portion:
        """What is parked of a micro-batch; raises `ParkedError`."""
        path = self._folder / str(count)
        try:
            raw = path.read_bytes()
            if _digest(raw[_DIGEST:]) != raw[:_DIGEST]:
                raise ValueError("its content is not what was written")
            return msgspec.msgpack.decode(raw[_DIGEST:], type=Portion)
        except (OSError, ValueError) as error:
            raise ParkedError(
                f"rows are parked in {path}, which cannot be read ({error}): bring the file back from a copy "
                "and start the platform again, or have gear replay make all tables anew from the log"
            ) from None

    def check(self, layouts: Sequence[Layout]) -> None:
        """Raise a `GeartrainError` where the tables cannot become these, a `NotYetError` where that is not
        known: they take no rows just now, or have not answered. They are asked once, and a later call has
        the answer.
        """
        if self.held:  # its thread is busy with what is parked
            raise NotYetError(self.held)
        if self._planned is None or self._planned[0] != list(layouts):
            if self._planned is not None:
                self._planned[1].cancel()
            self._planned = list(layouts), self._threads.submit(self._tables.planned, layouts)
        answer = self._planned[1]
        if not wait([answer], BUSY_S).done:
            raise NotYetError("its tables have not said yet whether they can change")
        self._planned = None
        answer.result()

    def records(self) -> Mapping[str, int]:
        """Records written so far, by sink."""
        return self._tables.records()

    def positions(self) -> dict[str, int]:
        """Up to where the tables hold what the flow has made."""
        return self._tables.positions(HOSTED)

    def close(self) -> None:
        """Let go of the tables; what is parked stays for the next start."""
        self._closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._tables.close()


def _asked_for(letters: ColumnBatch) -> int:
    """How many are of records that an update has given up."""
    return letters.fields[1].count(Code.GIVEN_UP)


def _digest(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=_DIGEST).digest()
