"""A short-lived process that runs a user's code: started, given its question, and ended.

It stands between control or the Spark host and what imports a flow. Guarantees: it takes at most so long and
answers at most so much. Whatever it has started itself is ended with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from dataclasses import dataclass

from geartrain.printable import printable

END_S = 5.0
"""How long a process that was killed may keep its pipes open, by one that it has started elsewhere."""
_SAID_CHARS_MAX = 300
_SAID_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of it: its exit code, what it answered, and the last of what it has printed; is_too_long:
    it answered more than it may, and nothing of that is here.
    """

    code: int
    answer: bytes
    said: bytes
    is_too_long: bool = False

    @property
    def last_line(self) -> str:
        """What it said last, as the end of a sentence; "" for nothing."""
        lines = [line for line in self.said.decode(errors="backslashreplace").splitlines() if line.strip()]
        return f": {printable(lines[-1].strip()[:_SAID_CHARS_MAX])}" if lines else ""


async def run_short(module: str, question: bytes, limit_s: float, answer_bytes_max: int) -> Ended:
    """Run `python -m module` with `question` on stdin; raises `OSError` where it cannot be started, and
    `TimeoutError` after `limit_s` seconds.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module), stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    try:
        async with asyncio.timeout(limit_s):
            out, said, _ = await asyncio.gather(
                _head(process.stdout, answer_bytes_max), _tail(process.stderr), _give(process.stdin, question)
            )
            return Ended(await process.wait(), out or b"", said, is_too_long=out is None)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what a user's module may have started
        # Its end is only noticed once its pipes are read to theirs, which are full where it talks a lot.
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await asyncio.gather(_tail(process.stdout), _tail(process.stderr), process.wait())


async def _give(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    if stream is not None:
        with suppress(ConnectionError):
            stream.write(content)
            await stream.drain()
        stream.close()


async def _head(stream: asyncio.StreamReader | None, bytes_max: int) -> bytes | None:
    """All that comes; None where that is more than an answer may have. It is read to its end, since the
    process waits for that.
    """
    found, count = bytearray(), 0
    while stream is not None and (part := await stream.read(1 << 16)):
        count += len(part)
        if count <= bytes_max:
            found += part
    return bytes(found) if count <= bytes_max else None


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    """The last of what comes."""
    found = b""
    while stream is not None and (part := await stream.read(1 << 16)):
        found = (found + part)[-_SAID_BYTES_MAX:]
    return found
