"""Deliveries: the records for sinks on the device, kept by a commit and then handed over.

Behind the fragment, on a device. Guarantees: a record for a sink is in the spool before anything is done with
it. A file has each record once, because the spool knows how long the file was before. An actuator is called
for each record in order, at least once, and with the same identity every time. When it fails for good, the
commit that releases the record also makes it a dead letter. What waits is bounded: at the bound, nothing more
is taken from the outbox, and the device's sources wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from geartrain.declarations.device_sink import Actuator, Delivery, JsonLinesFile
from geartrain.declarations.sink import DeviceSink
from geartrain.errors import USER_ERRORS, ConfigError, GeartrainError
from geartrain.graph.conform import describe, raw_form
from geartrain.planning import Plan
from geartrain.ports import Clock
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.codes import Code, Refusal
from geartrain.records.event_time import format_time
from geartrain.schema import RowCodec
from geartrain.wire.limits import Limits
from geartrain_edge.errors import DeliveryError
from geartrain_edge.sinks.cells import Cell, CellCodec, with_identity
from geartrain_edge.spool.backlog import Counters

_LOG = logging.getLogger("geartrain.delivering")

STEP = "_deliver"
"""Under which the spool keeps the cells of this module; no step's id begins with `_`."""
CELLS_MAX = 64
"""Cells that wait, beyond which nothing more is taken from the outbox."""
CELL_ROWS_MAX = 64
"""Rows of one cell: so many are handed over again, at the most, after a kill."""
_DOUBLINGS_MAX = 5
_FILE, _LOCAL = b"file/", b"local"


class LineFiles(Protocol):
    """Files of lines, as the agent needs them; each call is durable when it returns."""

    async def size(self, path: str) -> int:
        """Bytes of the file, 0 where there is none; raises `SpoolError`."""
        ...

    async def append(self, path: str, at: int, data: bytes) -> None:
        """Have the file hold what it had up to byte `at`, then `data`, and no more.

        Raises `SpoolError`, also where the file is shorter than `at`.
        """
        ...


class _Way:
    """One sink and what waits for it, oldest first."""

    def __init__(self, step: str, sink: DeviceSink, codec: CellCodec) -> None:
        self.step, self.sink, self.codec = step, sink, codec
        self.cells: deque[Cell] = deque()
        self.ready = asyncio.Event()
        self.length = -1
        """Of a file: the bytes that hold all that the spool has let go of, -1 while it is not known."""


class Deliveries:
    """All sinks of one device in one flow."""

    def __init__(
        self,
        plan: Plan,
        device: str,
        state: Mapping[tuple[str, bytes], bytes],
        limits: Limits,
        counters: Counters,
        clock: Clock,
        files: LineFiles | None,
    ) -> None:
        """`state`: what the spool holds; raises `ConfigError` for a file sink where there are no `files`."""
        self._device, self._counters, self._clock, self._files = device, counters, clock, files
        self._ways: dict[str, _Way] = {}
        for step in plan.graph.sinks():
            sink = getattr(step.operator, "table", None)
            if isinstance(sink, DeviceSink):
                rows = RowCodec(plan.graph[step.inputs[0].step].out)
                codec = CellCodec(step.id, rows, plan.graph.name, device, limits, self._refuse)
                self._ways[step.id] = _Way(step.id, sink, codec)
                if isinstance(sink, JsonLinesFile) and files is None:
                    raise ConfigError(f"sink {step.id}: there is no folder for its file here")
        self._fresh: list[tuple[str, Cell]] = []
        self._changes: dict[tuple[str, bytes], bytes | None] = {}
        self._next, self._local = 1, 0
        self._waiting = self._taken = 0
        self.reject: Callable[[DeadLetter], None] = _nobody
        """Takes the dead letters of actuators; set before `run`."""
        self.moved = asyncio.Event()
        """Set when a commit has something to note."""
        self._load(state)

    def _load(self, state: Mapping[tuple[str, bytes], bytes]) -> None:
        for (step, key), value in sorted(state.items()):
            if step != STEP:
                continue
            if key == _LOCAL:
                self._local = int.from_bytes(value, "big")
            elif key.startswith(_FILE):
                sink = key.removeprefix(_FILE).decode()
                if sink in self._ways:
                    self._ways[sink].length = int.from_bytes(value, "big")
            else:
                cell = Cell.read(key, value)
                self._next = cell.number + 1
                if cell.stored.sink in self._ways:  # else this is another flow, which the agent refuses
                    self._wait(cell.stored.sink, cell)

    def _wait(self, sink: str, cell: Cell) -> None:
        way = self._ways[sink]
        way.cells.append(cell)
        way.ready.set()
        self._waiting += 1

    @property
    def sinks(self) -> frozenset[str]:
        """The steps whose records end here."""
        return frozenset(self._ways)

    @property
    def has_room(self) -> bool:
        """Whether more may be taken from the outbox."""
        return self._waiting + len(self._fresh) < CELLS_MAX

    @property
    def idle(self) -> bool:
        """Whether all was handed over, and a commit holds that."""
        return not (self._waiting or self._fresh or self._changes)

    # Into the spool

    def add_local(self, sink: str, batches: Iterable[Batch], epoch: str) -> None:
        """Take records that never left the device."""
        self._local += 1
        self._changes[STEP, _LOCAL] = self._local.to_bytes(8, "big")
        self.add(sink, batches, epoch, self._local)

    def add(self, sink: str, batches: Iterable[Batch], epoch: str, seq: int) -> None:
        """Take records that reached `sink` because of batch `seq`."""
        way, index = self._ways[sink], 0
        for batch in batches:
            for part in batch.slices(CELL_ROWS_MAX):
                for stored in way.codec.to_stored(part, epoch, seq, index):
                    cell = Cell.numbered(self._next, stored)
                    self._next += 1
                    self._changes[STEP, cell.key] = cell.value
                    self._fresh.append((sink, cell))
                self._counters.add(f"deliveries.{sink}", len(part))
                index += len(part)

    def _refuse(self, step: str, batch: Batch, row: int, refusal: Refusal) -> None:
        self._counters.add("deliveries_refused")
        raw = raw_form(batch.values[row])
        self.reject(DeadLetter(step, batch.origin(row), batch.times[row], *refusal, raw))

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """What a commit has to write of what came and what was handed over since the last call."""
        changes, self._changes = self._changes, {}
        self._taken = len(self._fresh)
        return changes

    def committed(self) -> None:
        """A commit holds what `changes` gave: what came may be handed over."""
        fresh, self._fresh = self._fresh[: self._taken], self._fresh[self._taken :]
        self._taken = 0
        for sink, cell in fresh:
            self._wait(sink, cell)

    # Out of it

    async def prepare(self) -> None:
        """Look where the files stand, before the first record for them is committed."""
        for way in self._ways.values():
            if isinstance(way.sink, JsonLinesFile) and way.length < 0 and self._files is not None:
                way.length = await self._files.size(_path(way.sink))
                self._changes[STEP, _FILE + way.step.encode()] = way.length.to_bytes(8, "big")

    async def run(self) -> None:
        """Hand over what waits, each sink by itself, forever; raises `SpoolError` for a file."""
        async with asyncio.TaskGroup() as group:
            for way in self._ways.values():
                group.create_task(self._serve(way))

    async def _serve(self, way: _Way) -> None:
        actuator = way.sink if isinstance(way.sink, Actuator) else None
        if actuator is not None:
            await self._start(way, actuator)
        try:
            while True:
                await way.ready.wait()
                cell = way.cells[0]
                if actuator is not None:
                    await self._actuate(way, actuator, cell, way.codec.to_batch(cell.stored))
                else:
                    await self._write(way, cell)
                way.cells.popleft()
                if not way.cells:
                    way.ready.clear()
                self._waiting -= 1
                self._changes[STEP, cell.key] = None
                self.moved.set()
        finally:
            if actuator is not None:
                await actuator.stop()

    async def _start(self, way: _Way, actuator: Actuator[Any]) -> None:
        try:
            await actuator.start(self._device)
        except GeartrainError:
            raise
        except USER_ERRORS as error:
            raise DeliveryError(f"actuator {way.step} cannot start: {describe(error)}") from error

    async def _write(self, way: _Way, cell: Cell) -> None:
        if self._files is None or not isinstance(way.sink, JsonLinesFile):
            raise DeliveryError(f"sink {way.step}: the agent knows no {type(way.sink).__name__}")
        lines = b"".join(_line(row, at) for row, at in way.codec.to_plain(cell.stored))
        await self._files.append(_path(way.sink), way.length, lines)
        way.length += len(lines)
        self._changes[STEP, _FILE + way.step.encode()] = way.length.to_bytes(8, "big")

    async def _actuate(self, way: _Way, actuator: Actuator[Any], cell: Cell, batch: Batch) -> None:
        for row, (value, at) in enumerate(with_identity(cell.stored, batch)):
            for attempt in range(1, actuator.attempts + 1):
                try:
                    async with asyncio.timeout(actuator.timeout_ms / 1_000):
                        await actuator.act(value, at)
                    break
                except USER_ERRORS as error:  # the user's own class
                    self._counters.add("actuations_failed")
                    _LOG.warning("actuator %s, record %s: %s", way.step, at, describe(error))
                    if attempt == actuator.attempts:
                        times = "once" if attempt == 1 else f"{attempt} times"
                        reason = f"the actuator failed {times}: {describe(error)}"
                        self._refuse(way.step, batch, row, Refusal(Code.NOT_DELIVERED, reason))
                    else:
                        doubled = min(attempt - 1, _DOUBLINGS_MAX)
                        await self._clock.sleep(actuator.pause_ms * 2**doubled / 1_000)


def _nobody(letter: DeadLetter) -> None:
    raise RuntimeError(f"nobody takes dead letters yet: {letter.reason}")


def _path(sink: JsonLinesFile) -> str:
    return sink.path or f"{sink.name}.jsonl"


def _line(row: Mapping[str, Any], at: Delivery) -> bytes:
    """A record as a line of JSON: its fields, `_id` and `_time`."""
    return msgspec.json.encode({**row, "_id": str(at), "_time": format_time(at.time_us)}) + b"\n"
