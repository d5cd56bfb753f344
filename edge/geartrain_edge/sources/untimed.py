"""Records whose time is not known yet: what a device's own clock has stamped before somebody set that clock.

Between the reading of live sources and the fragment. Such reads are kept in the spool, on the clock of the
boot, and their times are set once when the wall clock is known. Guarantees: they keep their order, over
restarts and loss of power. Those of the boot at hand get their times exactly. Those of an earlier boot get
the latest that they can have: it ended before the next one began. Each carries a mark in its origin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from geartrain.declarations.source import Batch as Read
from geartrain.declarations.source import Reject
from geartrain.graph.conform import describe, raw_form
from geartrain.ports import Clock
from geartrain.ports.boot_clock import BootClock
from geartrain.records.codes import Code
from geartrain.schema.storable import as_numbers

T = TypeVar("T")
Split = tuple[str, str]

UNTIMED = "_untimed"
"""Under it a spool keeps these reads; no step's id begins with `_`."""
_OFFSETS = (UNTIMED, b"offsets")
MARK_EXACT, MARK_BOUND = b"\xff", b"\xfe"
"""Stand behind the epoch in an origin's path; no index of a child begins with them."""
HELD_BYTES_MAX = 16 << 20
SETTLING_US = 60_000_000
"""So long after the clock was set, a record may still carry a time from before."""


class HeldRead(msgspec.Struct, Generic[T], array_like=True):
    """One read. read_us, and those of `times` that are `stamped_before`: since its boot; other times: wall
    clock. All in microseconds.
    """

    boot: bytes
    read_us: int
    values: list[T]
    times: list[int]
    numbers: list[int]
    stamped_before: list[bool]
    rejects: list[Reject]
    ended: bool


class Timed(msgspec.Struct, frozen=True):
    """A read whose times are set. marks: by record number, of those that were set; now_us: when it was."""

    read: Read
    marks: dict[int, bytes]
    now_us: int


class Offset(msgspec.Struct, frozen=True, array_like=True):
    """The wall clock at the beginning of a boot, microseconds; is_bound: the latest that it can have been."""

    us: int
    is_bound: bool


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """A held read as the spool keeps it; boot, read_us, ended: of the read."""

    step: str
    split: str
    boot: bytes
    read_us: int
    ended: bool
    raw: bytes


_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_entry = msgspec.msgpack.Decoder(_Entry).decode
_offsets = msgspec.msgpack.Decoder(dict[bytes, Offset]).decode
_read = msgspec.msgpack.Decoder(HeldRead[Any]).decode
_encode = msgspec.msgpack.Encoder().encode


class Untimed:
    """The reads of one agent that wait for their times."""

    def __init__(self, kinds: Mapping[str, Any], clock: Clock, boots: BootClock | None) -> None:
        """kinds: by source step the type of its records; boots: None where the wall clock is always known."""
        self._clock, self._boots = clock, boots
        self._kinds = kinds
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._held: dict[Split, deque[tuple[bytes, _Entry]]] = {}
        self._offsets: dict[bytes, Offset] = {}
        self._changes: dict[tuple[str, bytes], bytes | None] = {}
        self._next = 0
        self._former_offset_us: int | None = None
        self._known_since_us = 0
        self.bytes = 0
        """Of what is held, about."""

    def restore(self, state: Mapping[tuple[str, bytes], bytes]) -> int:
        """Hold what a former life held, but for reads of sources that have gone; returns how many records
        these had.
        """
        dropped = 0
        for (step, key), value in sorted(state.items()):
            if (step, key) == _OFFSETS:
                self._offsets = _offsets(value)
            elif step == UNTIMED:
                self._next = int.from_bytes(key, "big") + 1
                entry = _entry(value)
                if entry.step in self._kinds:
                    self._put(key, entry)
                    continue
                self._changes[UNTIMED, key] = None
                read = _read(entry.raw)
                dropped += len(read.values) + len(read.rejects)
        return dropped

    @property
    def count(self) -> int:
        """Reads that wait."""
        return sum(map(len, self._held.values()))

    @property
    def is_known(self) -> bool:
        """Whether the wall clock shows the time."""
        return self._boots is None or self._boots.wall_is_known()

    @property
    def is_full(self) -> bool:
        """Whether no more is held."""
        return self.bytes >= HELD_BYTES_MAX

    def offset_us(self) -> int | None:
        """Asked before a read: the wall clock less that of the boot, where what is read has to be held; None
        where it has not.
        """
        if self._boots is None:
            return None
        offset_us = self._clock.now_us() - self._boots.since_boot_us()
        if not self._boots.wall_is_known():
            self._former_offset_us = offset_us
            return offset_us
        if self._former_offset_us is None:
            return None
        self._known_since_us = self._known_since_us or self._boots.since_boot_us()
        if self._boots.since_boot_us() >= self._known_since_us + SETTLING_US:
            self._former_offset_us = None
            return None
        return offset_us

    def holds(self, split: Split) -> bool:
        """Whether reads of the split wait."""
        return bool(self._held.get(split))

    def has_ended(self, split: Split) -> bool:
        """Whether the last read that is held was the split's last."""
        return bool(self._held.get(split)) and self._held[split][-1][1].ended

    def hold(self, split: Split, found: Read, offset_us: int) -> None:
        """Keep a read; offset_us: what `offset_us` said before it."""
        boots = self._boots
        if boots is None:
            return
        now_us = boots.since_boot_us()
        after_us, known = self._clock.now_us() - now_us, boots.wall_is_known()
        # The clock may be set while the source reads, or while a record waits within it.
        scales = [(offset_us, True), (after_us, not known)]
        if self._former_offset_us is not None:
            scales.append((self._former_offset_us, True))
        if known and offset_us != self._former_offset_us:
            scales[0] = (offset_us, False)
        held = HeldRead[Any](boots.boot(), now_us, [], [], [], [], list(found.rejects), found.ended)
        for value, time, number in zip(found.values, found.times, found.numbers, strict=True):
            one = as_numbers([time], int)
            if one is None:
                reason = "its event time is none, and the device's clock was not set yet: give an int"
                held.rejects.append(Reject(number, reason, raw_form(value), code=Code.MISTIMED))
                continue
            scale_us, before = min(scales, key=lambda scale: abs(one[0] - now_us - scale[0]))
            held.values.append(value)
            held.times.append(one[0] - scale_us if before else one[0])
            held.numbers.append(number)
            held.stamped_before.append(before)
        key = self._next.to_bytes(8, "big")
        entry = _Entry(*split, held.boot, now_us, found.ended, self._save(split[0], held))
        self._next += 1
        self._put(key, entry)
        self._changes[UNTIMED, key] = _encode(entry)

    def _save(self, step: str, held: HeldRead[Any]) -> bytes:
        """The read as bytes; what is not of the source's type is a reject in it."""
        try:
            return self._checked(step, held)
        except _REFUSALS:
            fitting = msgspec.structs.replace(held, values=[], times=[], numbers=[], stamped_before=[])
        for row in zip(held.values, held.times, held.numbers, held.stamped_before, strict=True):
            one = msgspec.structs.replace(
                held, values=[row[0]], times=[row[1]], numbers=[row[2]], stamped_before=[row[3]], rejects=[]
            )
            try:
                self._checked(step, one)
            except _REFUSALS as error:
                reason = f"it is not of the type of source {step}: {describe(error)}"
                fitting.rejects.append(Reject(row[2], reason, raw_form(row[0]), code=Code.WRONG_TYPE))
                continue
            fitting.values.append(row[0])
            fitting.times.append(row[1])
            fitting.numbers.append(row[2])
            fitting.stamped_before.append(row[3])
        return self._checked(step, fitting)

    def _checked(self, step: str, held: HeldRead[Any]) -> bytes:
        """A read as bytes that can be read again; raises one of `_REFUSALS`."""
        raw = _encode(held)
        self._decoder(step).decode(raw)
        return raw

    def _decoder(self, step: str) -> msgspec.msgpack.Decoder[Any]:
        if step not in self._decoders:
            held: Any = HeldRead
            self._decoders[step] = msgspec.msgpack.Decoder(held[self._kinds[step]])
        return self._decoders[step]

    def _put(self, key: bytes, entry: _Entry) -> None:
        self._held.setdefault((entry.step, entry.split), deque()).append((key, entry))
        self.bytes += len(entry.raw)

    def next(self, split: Split, position: int) -> Timed | None:
        """The split's oldest read, with its times; None where none is held, or its time is not known.

        position: where the split stands.
        """
        waiting = self._held.get(split)
        if not waiting:
            return None
        if waiting[0][1].boot not in self._offsets and not self._set_offsets():
            return None
        key, entry = waiting.popleft()
        self.bytes -= len(entry.raw)
        self._changes[UNTIMED, key] = None
        offset = self._offsets[entry.boot]
        if not self.count:
            self._offsets = {}
            self._changes[_OFFSETS] = None
        held: HeldRead[Any] = self._decoder(entry.step).decode(entry.raw)
        times = [t + offset.us if b else t for t, b in zip(held.times, held.stamped_before, strict=True)]
        mark = MARK_BOUND if offset.is_bound else MARK_EXACT
        marks = {n: mark for n, before in zip(held.numbers, held.stamped_before, strict=True) if before}
        read = Read(held.values, times, held.numbers, position, held.rejects, held.ended)
        return Timed(read, marks, held.read_us + offset.us)

    def _set_offsets(self) -> bool:
        """Once the wall clock is known, say when each boot began of which reads are held; whether it is."""
        if self._boots is None or not self._boots.wall_is_known():
            return False
        next_us = self._clock.now_us() - self._boots.since_boot_us()
        self._offsets.setdefault(self._boots.boot(), Offset(next_us, is_bound=False))
        entries = sorted((key, entry) for waiting in self._held.values() for key, entry in waiting)
        for _, entry in reversed(entries):
            # A boot's last read comes first here: it was before the next boot began.
            if entry.boot not in self._offsets:
                self._offsets[entry.boot] = Offset(next_us - entry.read_us, is_bound=True)
            next_us = self._offsets[entry.boot].us
        self._changes[_OFFSETS] = _encode(self._offsets)
        return True

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """What the next commit has to write of all this."""
        changes, self._changes = self._changes, {}
        return changes
