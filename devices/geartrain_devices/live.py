"""A split that is fed from outside: what all sources that go on by themselves have in common.

Between a driver and the agent. A sensor has no position to read again from, so a record is accepted when the
agent commits it; what waits here is lost with the process. Guarantees: the buffer is bounded; what it cannot
hold is dropped with a dead letter that says how many and why; numbers go on behind the last committed one.
Where a driver names its senders, one that floods leaves room for the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from geartrain.concurrency.cancelling import end_task
from geartrain.errors import USER_ERRORS
from geartrain.source import Batch, Reject
from geartrain_devices.no_record import NOT_A_RECORD, refusal_of

BUFFER_MAX = 10_000
"""Records that wait to be read, at the most."""
BUFFER_BYTES_MAX = 8 << 20
SHARE = 4
"""A named sender holds no more than so many times what is free: alone four fifths of the buffer."""
REASONS_MAX = 64
"""Reasons that are told apart at one time: some name who has sent."""
_FULL = f"because {BUFFER_MAX} records or {BUFFER_BYTES_MAX} bytes waited"
_OTHERS = "because too many of one sender waited, of several senders"


class _Waiting(msgspec.Struct, frozen=True):
    time: int | None
    value: Any
    problem: str
    raw: bytes
    sender: str
    code: str = NOT_A_RECORD
    notes: Mapping[bytes, bytes | None] = {}
    is_row: bool = True
    """Whether it takes a number: notes alone do not."""


class Framed(msgspec.Struct, frozen=True):
    """The bytes of one record out of a stream, or bytes that are none, and why.

    Args:
        raw: the bytes, up to a cap.
        problem: half a sentence that says why these are no record; empty where they may be one.
        passed: how many bytes of it behind `raw` were passed over.
    """

    raw: bytes
    problem: str = ""
    passed: int = 0


class Reader(Protocol):
    """How raw bytes become a record."""

    def __call__(self, raw: bytes) -> tuple[int, Any]:
        """(event time in microseconds, record); raises `ValueError` with a sentence."""
        ...


class LiveBufferSplit:
    """Records as they come: `push` on one side, the agent's `read` on the other."""

    def __init__(
        self,
        device: str,
        step: str,
        drive: Callable[[LiveBufferSplit], Awaitable[None]],
        *,
        out_of_orderness_us: int = 0,
        live_clock: bool = True,
    ) -> None:
        """drive: a coroutine that pushes until it is cancelled; it starts with the first read."""
        self.name, self.label = device, f"{device}/{step}"
        self.out_of_orderness_us, self.live_clock = out_of_orderness_us, live_clock
        self._drive = drive
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._held = dict[str, tuple[int, int]]()
        self._lost = Counter[str]()
        self._counts = Counter[str]()
        self._drained = asyncio.Event()
        self.began_at = 0
        """Where its first read began: the number of the first record that comes."""

    def lost(self, count: int, why: str) -> None:
        """Note that `count` records were dropped before they were read; a dead letter says so, and why."""
        self._lost[why if why in self._lost or len(self._lost) < REASONS_MAX else _OTHERS] += count

    def count(self, name: str, amount: int = 1) -> None:
        """Raise a counter of the agent, such as `mqtt_retained_passed_over`, with the next read."""
        self._counts[name] += amount

    def note(self, notes: Mapping[bytes, bytes | None]) -> None:
        """Have notes made durable together with what was pushed last, as of `Batch.notes`."""
        if notes:
            self._waiting.append(_Waiting(None, None, "", b"", "", notes=notes, is_row=False))

    async def room(self, size: int, sender: str = "") -> None:
        """Wait until a raw record of so many bytes fits: for a driver that can make its sender wait."""
        while not self._fits(size, sender):
            self._drained.clear()
            await self._drained.wait()

    def _fits(self, size: int, sender: str) -> bool:
        left, left_bytes = BUFFER_MAX - len(self._waiting), BUFFER_BYTES_MAX - self._bytes
        if not sender:
            return left > 0 and size <= left_bytes
        count, held = self._held.get(sender, (0, 0))
        return count < SHARE * left and held + size <= SHARE * (left_bytes - size)

    def push(self, raw: bytes, read: Reader, sender: str = "") -> bool:
        """Take one raw record; whether there was room for it.

        Args:
            raw: its bytes.
            read: what makes a record of them. The `code` of its `ValueError`, where it has one, is the dead
                letter's.
            sender: who sent it, where that is known.
        """
        if not self._fits(len(raw), sender):
            self.lost(1, f"because too many of {sender} waited" if sender else _FULL)
            return False
        try:
            time_us, value = read(raw)
            self._waiting.append(_Waiting(time_us, value, "", raw, sender))
        except USER_ERRORS as error:  # the user's own constructor: the bytes are the dead letter
            code, problem = refusal_of(error)
            self._waiting.append(_Waiting(None, None, f"{self.label}: {problem}", raw, sender, code))
        self._hold(sender, 1, len(raw))
        return True

    def _hold(self, sender: str, count: int, size: int) -> None:
        self._bytes += size
        if sender:
            before = self._held.get(sender, (0, 0))
            self._held[sender] = (before[0] + count, before[1] + size)
            if not self._held[sender][0]:
                del self._held[sender]

    async def read(self, position: int, limit: int) -> Batch:
        """What has come since the last read, up to `limit`; raises what stopped the driver."""
        if self._task is None:
            self.began_at = position
            self._task = asyncio.ensure_future(self._drive(self))
        elif self._task.done():
            self._task.result()
        values: list[Any] = []
        times: list[int] = []
        numbers: list[int] = []
        rejects: list[Reject] = []
        notes: dict[bytes, bytes | None] = {}
        at = position
        while self._waiting and (at - position < limit or not self._waiting[0].is_row):
            one = self._waiting.popleft()
            notes.update(one.notes)
            if not one.is_row:
                continue
            self._hold(one.sender, -1, -len(one.raw))
            if one.problem or one.time is None:
                rejects.append(Reject(at, one.problem, one.raw, one.time, one.code))
            else:
                values.append(one.value)
                times.append(one.time)
                numbers.append(at)
            at += 1
        self._drained.set()
        while self._lost and at - position < limit:
            why, count = self._lost.popitem()
            rejects.append(Reject(at, f"{self.label}: {count} records were dropped here, {why}", b""))
            at += 1
        counts, self._counts = dict(self._counts), Counter()
        return Batch(values, times, numbers, at, rejects, counts=counts, notes=notes)

    async def close(self) -> None:
        """Stop the driver."""
        if self._task is not None:
            await end_task(self._task)
            self._task = None
