"""Bytes of a serial line as records: lines, or frames of fixed size with a beginning and a check.

Below `geartrain_devices.serial_lines`, without any port. Guarantees: what is buffered is bounded. A stream
that is entered anywhere is found again at the next ending, or the next frame whose check is right; what was
passed over comes out with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import xor
from typing import Protocol

from geartrain_devices.live import Framed

PASSED_BYTES_MAX = 1 << 20
"""Bytes of a line above its cap after which it comes out, though it has no end yet."""
GARBAGE_BYTES_MAX = 4_096
"""Bytes that are no frame which come out as one, at the most."""


class Framing(Protocol):
    """Where records begin and end."""

    def feed(self, data: bytes) -> list[Framed]:
        """What has become whole by `data`."""
        ...

    def end(self) -> list[Framed]:
        """What is left when the port is gone."""
        ...


class Lines:
    """Each record ends with the same bytes."""

    def __init__(self, ending: bytes, bytes_max: int, *, is_whole: bool) -> None:
        """is_whole: whether the first bytes begin a line; else they are kept as one that may lack some."""
        self._ending, self._cap = ending, bytes_max
        self._is_whole = is_whole
        self._buffer = bytearray()
        self._raw, self._size = bytearray(), 0  # of the line that has begun: its first bytes, and all of them

    def feed(self, data: bytes) -> list[Framed]:
        """What has become whole by `data`."""
        self._buffer += data
        found: list[Framed] = []
        while (end := self._buffer.find(self._ending)) >= 0:
            self._move(end)
            del self._buffer[: len(self._ending)]
            self._close(found, "")
        self._move(max(0, len(self._buffer) - len(self._ending) + 1))  # the ending may have begun
        if self._size >= self._cap + PASSED_BYTES_MAX:
            self._close(found, "")
        return found

    def end(self) -> list[Framed]:
        """What is left when the port is gone."""
        found: list[Framed] = []
        self._move(len(self._buffer))
        if self._raw.strip():
            self._close(found, "the port was lost within it")
        self._raw, self._size = bytearray(), 0
        return found

    def _move(self, count: int) -> None:
        self._raw += self._buffer[: min(count, self._cap - len(self._raw))]
        self._size += count
        del self._buffer[:count]

    def _close(self, found: list[Framed], problem: str) -> None:
        raw, size = bytes(self._raw), self._size
        self._raw, self._size = bytearray(), 0
        if not self._is_whole:
            problem = "the port was opened within it, so that its beginning may be missing"
        self._is_whole = True
        if size > self._cap:
            problem = f"it has {size} bytes, above line_bytes_max = {self._cap}: the first ones are kept"
        if raw.strip() or problem:
            found.append(Framed(raw, problem, size - len(raw)))


class Frames:
    """Each record has the same size, and begins with the same bytes, or ends with a check, or both."""

    def __init__(self, begin: bytes, size: int, check: Check | None) -> None:
        """size: bytes between the beginning and the check."""
        self._begin, self._check = begin, check
        self._payload = slice(len(begin), len(begin) + size)
        self._size = len(begin) + size + (0 if check is None else len(check(b"")))
        self._buffer = bytearray()
        self._garbage = bytearray()

    def feed(self, data: bytes) -> list[Framed]:
        """What has become whole by `data`."""
        self._buffer += data
        found: list[Framed] = []
        at = 0
        while len(self._buffer) - at >= self._size:
            frame = bytes(self._buffer[at : at + self._size])
            if self._is_good(frame):
                self._pass_over(found, at)
                self._tell(found)
                found.append(Framed(frame[self._payload]))
                del self._buffer[: self._size]
                at = 0
            else:
                next_at = self._buffer.find(self._begin, at + 1) if self._begin else at + 1
                at = next_at if next_at >= 0 else max(at + 1, len(self._buffer) - len(self._begin) + 1)
        self._pass_over(found, at)
        return found

    def end(self) -> list[Framed]:
        """What is left when the port is gone."""
        found: list[Framed] = []
        self._pass_over(found, len(self._buffer))
        self._tell(found)
        return found

    def _is_good(self, frame: bytes) -> bool:
        if not frame.startswith(self._begin):
            return False
        if self._check is None:
            return True
        end = self._payload.stop
        return self._check(frame[:end]) == frame[end:]

    def _pass_over(self, found: list[Framed], count: int) -> None:
        self._garbage += self._buffer[:count]
        del self._buffer[:count]
        while len(self._garbage) >= GARBAGE_BYTES_MAX:
            self._tell(found)

    def _tell(self, found: list[Framed]) -> None:
        if self._garbage:
            raw = bytes(self._garbage[:GARBAGE_BYTES_MAX])
            del self._garbage[: len(raw)]
            found.append(Framed(raw, f"{len(raw)} bytes are no frame"))


Check = Callable[[bytes], bytes]
"""The bytes that end a frame, of all those before."""


def _sum8(data: bytes) -> bytes:
    return bytes([sum(data) & 0xFF])


def _xor8(data: bytes) -> bytes:
    return bytes([reduce(xor, data, 0)])


def _crc16(data: bytes) -> bytes:
    """That of Modbus, low byte first."""
    table, crc = _crc16_table(), 0xFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc.to_bytes(2, "little")


@cache
def _crc16_table() -> list[int]:
    def of(crc: int) -> int:
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
        return crc

    return [of(byte) for byte in range(256)]


CHECKS: Mapping[str, Check] = {"sum8": _sum8, "xor8": _xor8, "crc16": _crc16}
