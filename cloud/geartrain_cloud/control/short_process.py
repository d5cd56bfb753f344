"""A short-lived process that runs a user's code for control: started, given its question, and ended.

It stands between REST and what imports a flow. Guarantees: it takes at most so long and answers at most so
much. Whatever it has started itself is ended with it.
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
    """What became of it: its exit code, what it answered (nothing where that was too much), and the last of
    what it has printed.
    """

    code: int
    answer: bytes
    said: bytes

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
            return Ended(await process.wait(), out, said)
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


async def _head(stream: asyncio.StreamReader | None, bytes_max: int) -> bytes:
    """All that comes, up to what an answer may have; nothing where it is more."""
    found = bytearray()
    while stream is not None and (part := await stream.read(1 << 16)):
        found += part
        if len(found) > bytes_max:
            return b""
    return bytes(found)


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    """The last of what comes."""
    found = b""
    while stream is not None and (part := await stream.read(1 << 16)):
        found = (found + part)[-_SAID_BYTES_MAX:]
    return found
