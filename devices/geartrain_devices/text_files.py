"""Files of text, plain or packed by gzip: how they are opened, and their lines.

Under every source that reads whole files. `geartrain_devices.text_bytes` decides how bytes become text.
Guarantees: a file that cannot be read, or whose beginning shows that it is no text, is one `SourceError` that
names it and says what to do. Memory is bounded by one line, or by what is looked at ahead.
"""

from __future__ import annotations

import errno
import gzip
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from geartrain.errors import SourceError
from geartrain_devices.text_bytes import NotTextError, TextCoding, coding_of

_NO_TEXT: Final = (
    (b"\x1f\x8b", "is compressed by gzip: give it a name that ends in .gz"),
    (b"PK\x03\x04", "is a zip archive, such as a spreadsheet: write it as text"),
    (b"PAR1", "is a Parquet file: write it as text"),
)
_START_BYTES: Final = 4_096
_CHUNK_BYTES: Final = 1 << 17

_REASONS: Final = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of its path is not a directory",
    errno.EISDIR: "it is a directory: name a file",
    errno.EACCES: "this user may not read it: change its permissions",
    errno.EPERM: "this user may not read it: change its permissions",
    errno.ELOOP: "its symbolic links lead back to themselves",
    errno.ENAMETOOLONG: "its name is too long",
    errno.EIO: "the disk gives an error: copy the file from where it came",
    errno.ESTALE: "the folder was mounted anew: start again",
}


@contextmanager
def open_text(path: str, encoding: str = "", size_bytes: int | None = None) -> Iterator[TextLines]:
    """The lines of the file of text at `path`, unpacked where its name ends in `.gz`.

    Args:
        path: the file.
        encoding: how its text is written where no byte-order mark says so; empty for UTF-8.
        size_bytes: how much of the file is read, None for all. A packed one is read to its end.

    Yields:
        Its lines.

    Raises:
        SourceError: for a file that cannot be opened or, within the block, read; for a pipe or a device; and
            for one whose beginning shows that it is no text.
    """
    try:
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise SourceError(
                f"file {path} is a pipe or a device, and a file is read more than once: write what comes "
                "from there to a file first, and name that"
            )
        # A folder or a missing file fails here, with the name that the user gave.
        opened = gzip.open(path, "rb") if path.endswith(".gz") else Path(path).open("rb")  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise SourceError(f"file {path} cannot be read: {reason_of(error)}") from None
    try:
        with cast("BinaryIO", opened) as file:
            coding = _coding_at(path, cast(Any, file).peek(_START_BYTES), encoding)
            yield TextLines(file, coding, None if path.endswith(".gz") else size_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"file {path} cannot be read: {reason_of(error)}") from None


def _coding_at(path: str, start: bytes, encoding: str) -> TextCoding:
    """How a file is written, by its first bytes."""
    for mark, what in _NO_TEXT:
        if start.startswith(mark):
            raise SourceError(f"file {path} {what}")
    try:
        return coding_of(start, encoding)
    except NotTextError as error:
        raise SourceError(f"file {path} is no text that can be read: {error}") from None


def reason_of(error: Exception) -> str:
    """Why a file could not be opened or read: half a sentence of ours for each error that is known."""
    if isinstance(error, gzip.BadGzipFile):
        return "it is not compressed by gzip, as its name says: take .gz off its name"
    if isinstance(error, EOFError):
        return "what gzip packed ends too soon: copy the file again"
    if isinstance(error, zlib.error):
        return "what gzip packed is damaged: copy the file again"
    if isinstance(error, OSError) and error.errno is not None:
        name = errno.errorcode.get(error.errno, str(error.errno))
        return _REASONS.get(error.errno) or f"the system gives the error {name}"
    return "its name holds a NUL" if isinstance(error, ValueError) else "the system gives no reason"


class TextLines:
    """The lines of an open file, with as many looked at ahead as the caller needs.

    Its window is `data`; the next line begins at index `at` there, and has the `number`, from 1.
    """

    def __init__(self, file: BinaryIO, coding: TextCoding, size_bytes: int | None = None) -> None:
        """file: at its first byte; coding: of all that it holds; size_bytes: how much of it is read, None for
        all.
        """
        self.coding = coding
        self.line_end = coding.line_feed
        """The bytes that end a line; a caller may set others before the first line is read."""
        self.data = b""
        self.at = 0
        self.number = 1
        self._file = file
        file.read(len(coding.mark))
        self._left = None if size_bytes is None else max(0, size_bytes - len(coding.mark))
        """Bytes that are still to be read, None for all that there are."""
        self._is_whole = False
        """Whether the window reaches the end of the file."""

    def find_end(self, start: int, bytes_max: int) -> int:
        """Where a line ends.

        Args:
            start: the index in `data` at which it begins; `at`, or where a line ahead ends.
            bytes_max: how many bytes it may have, its end included.

        Returns:
            The index behind its end; `start` where the file has ended; -1 where the line has more bytes.
        """
        looked = start
        while True:
            end = self.coding.find(self.line_end, self.data, looked)
            if end >= 0:
                end += len(self.line_end)
                return end if end - start <= bytes_max else -1
            if len(self.data) - start > bytes_max:
                return -1
            if self._is_whole:
                return len(self.data)
            looked = start + (len(self.data) - start) // len(self.line_end) * len(self.line_end)
            self._fill()

    def advance(self, end: int, lines: int) -> None:
        """Go on behind so many lines, of which the last ends at the index `end`."""
        self.at = end
        self.number += lines
        if end > _CHUNK_BYTES:
            self.data, self.at = self.data[end:], 0

    def pass_over(self, bytes_kept: int) -> tuple[bytes, int]:
        """Go on behind a line that is too long; its first bytes, and how many it has with its end."""
        kept, size = self.data[self.at : self.at + bytes_kept], 0
        while (end := self.coding.find(self.line_end, self.data, self.at)) < 0 and not self._is_whole:
            # A part of a character may stand at the end of the window.
            whole = (len(self.data) - self.at) // len(self.line_end) * len(self.line_end)
            size += whole
            self.data, self.at = self.data[self.at + whole :], 0
            self._fill()
        end = end + len(self.line_end) if end >= 0 else len(self.data)
        size += end - self.at
        self.advance(end, 1)
        return kept, size

    def lines(self, bytes_max: int) -> Iterator[tuple[int, bytes, int]]:
        """Each line: its number, its bytes, the first `bytes_max` of them at the most, and how many it has.

        The line feed at its end is among them.
        """
        while (end := self.find_end(self.at, bytes_max)) != self.at:
            number = self.number
            if end < 0:
                yield number, *self.pass_over(bytes_max)
            else:
                raw = self.data[self.at : end]
                self.advance(end, 1)
                yield number, raw, len(raw)

    def blocks(self, bytes_max: int) -> Iterator[tuple[int, list[bytes]]]:
        """The same by the block: the number of the first line, and lines that follow each other.

        The line feed at the end of a line may be missing.
        """
        while True:
            number, whole = self.number, self.whole_lines(bytes_max)
            block = whole.split(self.line_end) if whole else []
            if block and max(map(len, block)) < bytes_max:
                self.advance(self.at + len(whole) + 1, len(block))
            else:  # a long line, or characters of several bytes
                block, size_bytes = [], 0
                for _, raw, _ in self.lines(bytes_max):
                    block.append(raw)
                    size_bytes += len(raw)
                    if size_bytes >= _CHUNK_BYTES:
                        break
            if not block:
                return
            yield number, block

    def whole_lines(self, bytes_max: int) -> bytes:
        """All lines that are whole in the window, without the last line feed. Empty where the next line is
        longer than that, or the file ends without a line feed.
        """
        if len(self.line_end) > 1:
            return b""
        while (end := self.data.rfind(self.line_end, self.at)) < 0:
            if self._is_whole or len(self.data) - self.at > bytes_max:
                return b""
            self._fill()
        return self.data[self.at : end]

    def _fill(self) -> None:
        """Read on."""
        chunk = self._file.read(_CHUNK_BYTES if self._left is None else min(_CHUNK_BYTES, self._left))
        if self._left is not None:
            self._left -= len(chunk)
        self._is_whole = not chunk
        self.data += chunk
