"""Where the syslog messages of one connection begin and end: octet counts, or lines (RFC 6587, RFC 5425).

Below `geartrain_devices.syslog`, without any network; `geartrain_devices.syslog_messages` reads what is cut
here. Guarantees: a number is an octet count only where `<PRIORITY>` follows, where the count is within the
cap, and where a message begins behind the counted bytes. What is no message ends at its line, or where the
next counted message begins, so that no wrong number hides what follows. Each byte comes out: in a frame, as
a counted byte of a frame that is too long, or as a counted byte of the framing. What is buffered is bounded,
and each byte is looked at a bounded number of times.
"""

from __future__ import annotations

import re

import msgspec

from geartrain_devices.live import Framed

_COUNTED = re.compile(rb"([1-9]\d{0,8}) <\d{1,3}>")
_COUNTED_BYTES_MAX = 15
_COUNT_BEGUN = re.compile(rb"[1-9]\d{0,8}(?: (?:<\d{0,3})?)?")
"""What may become a count with `<PRIORITY>` behind it when more bytes come."""
_BEGINS = re.compile(rb"[\r\n\0]|<\d{1,3}(?:>|\Z)|<\Z|[1-9]\d{0,8}(?: <| ?\Z)|\Z")
"""What stands behind a counted message: the next one, as far as it is there, or the end of a line."""
_SURELY_BEGINS = re.compile(rb"<\d{1,3}>|[1-9]\d{0,8} <\d{1,3}>")
_LINE_END = re.compile(rb"[\n\0]")
_NEXT_LINE = re.compile(rb"\n(?:[1-9]\d{0,8} )?<\d{1,3}>")
_SEPARATORS = b"\r\n\0"
_PASSED_BYTES_MAX = 1 << 20
"""Bytes of a frame without an end after which it comes out, and another begins."""


class _Line(msgspec.Struct):
    """A frame that has begun and ends with its line.

    Args:
        problem: why it is no message, where that is known.
        is_message: whether it begins with a priority: then only the end of the line ends it.
        claimed: at how many of its bytes it would end by its own count, 0 where it has none.
        raw: its first bytes, up to the cap.
        size: its bytes so far.
        last: the last of them.
    """

    problem: str = ""
    is_message: bool = False
    claimed: int = 0
    raw: bytearray = msgspec.field(default_factory=bytearray)
    size: int = 0
    last: int = 0


class Stream:
    """The messages of one connection."""

    def __init__(self, bytes_max: int) -> None:
        """bytes_max: the cap of a message; of a longer one so many bytes are kept."""
        self._cap = bytes_max
        self._buffer = bytearray()
        self._line: _Line | None = None
        self._is_counting = False
        self.framing_bytes = 0
        """Bytes of counts and of ends of lines so far: these are in no frame."""

    def feed(self, data: bytes) -> list[Framed]:
        """What has become whole by `data`."""
        self._buffer += data
        return self._cut(is_end=False)

    def end(self) -> list[Framed]:
        """What is left when the connection ends."""
        found = self._cut(is_end=True)
        if self._line is not None:
            self._close(found, self._line)
        return found

    def _cut(self, *, is_end: bool) -> list[Framed]:
        found: list[Framed] = []
        while self._buffer:
            if self._line is not None:
                has_moved = self._go_on(found, self._line, is_end)
            else:
                has_moved = self._begin(found, is_end)
            if not has_moved:
                break
        return found

    def _begin(self, found: list[Framed], is_end: bool) -> bool:
        """Begin a frame at the buffer's first byte; False where more bytes have to come first."""
        if self._buffer[0] in _SEPARATORS:
            self._frame(len(self._buffer) - len(self._buffer.lstrip(_SEPARATORS)))
            return True
        counted = _COUNTED.match(self._buffer)
        if counted is not None:
            return self._counted(found, int(counted[1]), counted.end(1) + 1, is_end)
        if not is_end and _COUNT_BEGUN.fullmatch(self._buffer):
            return False
        self._line = _Line(is_message=self._buffer[0] == ord("<"))
        return True

    def _counted(self, found: list[Framed], size: int, begin: int, is_end: bool) -> bool:
        """Take a frame that counts its bytes, or begin one that ends with its line where that cannot be."""
        end, has = begin + size, len(self._buffer) - begin
        if size > self._cap:
            problem = f"it counts {size} bytes, above message_bytes_max = {self._cap}"
        elif has >= size:
            if self._holds(end):
                self._is_counting = True
                self._frame(begin)
                found.append(Framed(bytes(self._buffer[:size])))
                del self._buffer[:size]
                return True
            problem = f"it counts {size} bytes, and these are not one message"
        elif not is_end:
            return False
        else:
            problem = f"the connection ended after {has} of its {size} bytes"
            if _NEXT_LINE.search(self._buffer) is None:
                self._line = _Line(problem, is_message=True)
                self._move(self._line, len(self._buffer))
                return True
        self._line = _Line(problem, claimed=end)
        self._move(self._line, begin)
        return True

    def _holds(self, end: int) -> bool:
        """Whether a count that ends here can be true: a message begins there. One that spans what look like
        further messages needs a counted message before it.
        """
        if _BEGINS.match(self._buffer, end) is None:
            return False
        return self._is_counting or _NEXT_LINE.search(self._buffer, 0, end) is None

    def _go_on(self, found: list[Framed], line: _Line, is_end: bool) -> bool:
        """Move on in a frame that ends with its line; False where more bytes have to come first."""
        line_end = _LINE_END.search(self._buffer)
        end = None if line_end is None else line_end.start()
        if not line.is_message and (begin := self._next_counted(line, end)) is not None:
            self._move(line, begin)
            self._close(found, line)
        elif end is not None:
            self._move(line, end)
            self._close(found, line)
            self._frame(1)
        else:
            kept = 0 if is_end or line.is_message else _COUNTED_BYTES_MAX
            count = len(self._buffer) - kept
            if count <= 0:
                return False
            self._move(line, count)
            if line.size >= self._cap + _PASSED_BYTES_MAX:
                self._close(found, line)
                self._line = _Line("it goes on with what came before it, and has no end yet")
        return True

    def _next_counted(self, line: _Line, end: int | None) -> int | None:
        """Where in the buffer the next counted message begins, before the line's end."""
        stop = len(self._buffer) if end is None else end
        counts = _COUNTED.finditer(self._buffer, 0, stop)
        found = next((one for one in counts if int(one[1]) <= self._cap), None)
        claimed = line.claimed - line.size
        is_first = found is None or claimed < found.end()
        if is_first and 0 < claimed < stop and _SURELY_BEGINS.match(self._buffer, claimed) is not None:
            return claimed
        return None if found is None else found.start()

    def _move(self, line: _Line, count: int) -> None:
        """Make the first bytes of the buffer the next ones of a frame."""
        if not count:
            return
        line.raw += self._buffer[: min(count, self._cap - len(line.raw))]
        line.size += count
        line.last = self._buffer[count - 1]
        del self._buffer[:count]

    def _frame(self, count: int) -> None:
        """Take bytes of the framing."""
        self.framing_bytes += count
        del self._buffer[:count]

    def _close(self, found: list[Framed], line: _Line) -> None:
        """The frame is whole."""
        self._line, self._is_counting = None, False
        has_cr = line.last == ord("\r")
        self.framing_bytes += has_cr
        size = line.size - has_cr
        raw, problem = bytes(line.raw[:size]), line.problem
        if size > self._cap:
            problem = (f"{problem}; " if problem else "") + too_long(size, self._cap)
        if size:
            found.append(Framed(raw, problem, size - len(raw)))


def too_long(size: int, bytes_max: int) -> str:
    """The reason of a frame of so many bytes, of which the first are kept."""
    return (
        f"it has {size} bytes, above message_bytes_max = {bytes_max}, and {size - bytes_max} were passed over"
    )
