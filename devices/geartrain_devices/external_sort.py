"""Sort more rows than fit into memory: sorted runs in a nameless temporary file, merged while they are read.

Under the file replays. Guarantees: memory is bounded by one chunk and by one block of each of at most
`FAN_IN_MAX` runs a level, whatever the number of rows. The temporary file is readable by this user only and
is gone with the process, however that ends.
"""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO, Any, NamedTuple

import msgspec

from geartrain.errors import SourceError

FAN_IN_MAX = 32
_BLOCK_ROWS = 64
_LENGTH_BYTES = 4


class Entry(NamedTuple):
    """One row to sort: (kind, event time in microseconds, line) is its unique key, `content` goes along."""

    kind: int
    time: int
    line: int
    content: Any


class _Run(NamedTuple):
    start: int
    end: int


class SortedRows:
    """Entries in the order of their keys, once `finish` was called."""

    def __init__(self, rows_max: int = 10_000, bytes_max: int = 2 << 20) -> None:
        """`rows_max`, `bytes_max`: size of the chunk that is sorted in memory."""
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._chunk: list[Entry] = []
        self._chunk_bytes = 0
        self._count = 0
        self._file: IO[bytes] | None = None
        self._levels: list[list[_Run]] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[Entry]).decode

    def __len__(self) -> int:
        return self._count

    @property
    def spilled(self) -> bool:
        """Whether a temporary file was needed."""
        return self._file is not None

    def add(self, entry: Entry, size_bytes: int) -> None:
        """Take an entry of about `size_bytes` in memory; raises `SourceError` when the disk is full."""
        self._chunk.append(entry)
        self._chunk_bytes += size_bytes
        self._count += 1
        if len(self._chunk) >= self._rows_max or self._chunk_bytes >= self._bytes_max:
            self._spill()

    def finish(self) -> None:
        """No more entries come: what is left in memory stays there only if nothing was spilled."""
        if self._file is not None and self._chunk:
            self._spill()
        self._chunk.sort()

    def read(self, start: int = 0) -> Iterator[Entry]:
        """The entries from rank `start` on. Several readers may be open."""
        runs = list(chain.from_iterable(self._levels))
        merged = heapq.merge(*map(self._entries, runs)) if runs else iter(self._chunk)
        return islice(merged, start, None)

    def close(self) -> None:
        """Give memory and disk back."""
        self._chunk, self._levels = [], []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        self._chunk.sort()
        self._add_run(0, self._write(self._chunk))
        self._chunk, self._chunk_bytes = [], 0

    def _add_run(self, level: int, run: _Run) -> None:
        """Runs of one level are merged into one of the next, so few are open whatever the file's size."""
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(run)
        if len(self._levels[level]) >= FAN_IN_MAX:
            merged = self._write(heapq.merge(*map(self._entries, self._levels[level])))
            self._levels[level] = []
            self._add_run(level + 1, merged)

    def _write(self, entries: Iterable[Entry]) -> _Run:
        try:
            file = self._open()
            start = file.seek(0, os.SEEK_END)
            waiting = iter(entries)
            while block := list(islice(waiting, _BLOCK_ROWS)):
                data = self._encode(block)
                file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
            file.flush()
            return _Run(start, file.tell())
        except OSError as error:
            folder = tempfile.tempdir or "a folder for temporary files"
            raise SourceError(
                f"sorting needs room in {folder} (set TMPDIR to another folder): "
                f"{os.strerror(error.errno or 0)}"
            ) from None

    def _open(self) -> IO[bytes]:
        if self._file is None:
            # Without a name from the start: no kill leaves it behind. Closed by `close`.
            self._file = tempfile.TemporaryFile(prefix="geartrain-sort-")  # noqa: SIM115
        return self._file

    def _entries(self, run: _Run) -> Iterator[Entry]:
        handle, at = self._open().fileno(), run.start
        while at < run.end:
            size = int.from_bytes(os.pread(handle, _LENGTH_BYTES, at), "big")
            yield from self._decode(os.pread(handle, size, at + _LENGTH_BYTES))
            at += _LENGTH_BYTES + size
