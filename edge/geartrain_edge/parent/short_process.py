"""A short-lived process of the device's own: it gets a request on stdin, says something, and ends.

Under what fetches bundles and opens secrets, whose libraries stay out of the parent. Guarantees: such a
process has a deadline, and is over when this returns or raises. What it says is bounded.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

_SAID_BYTES_MAX = 1 << 16


async def said_by(module: str, request: bytes, seconds: float) -> bytes:
    """The end of what `python -m module` prints, stderr along, when it is given `request`.

    Raises `OSError` where no process can be started, and `TimeoutError` after so many seconds.
    """
    popen = started(module)
    try:
        async with asyncio.timeout(seconds):
            return await _exchange(popen, request)
    finally:
        _end(popen)


def started(module: str) -> subprocess.Popen[bytes]:
    """Such a process, which waits for its request; raises `OSError`."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],  # no module of the working folder: it has the device's key
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # Ctrl-C is for the parent; in a session of its own it would pass for an app's
    )


async def _exchange(popen: subprocess.Popen[bytes], request: bytes) -> bytes:
    """Give the process its request, which a pipe holds at once or in pieces; the end of what it prints."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_SAID_BYTES_MAX)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), popen.stdout)
    writing: Any
    writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, popen.stdin)
    try:
        writing.write(request)
        writing.write_eof()
        said = b""
        while part := await reader.read(_SAID_BYTES_MAX):
            said = (said + part)[-_SAID_BYTES_MAX:]
        return said
    finally:
        writing.close()
        transport.close()


def _end(popen: subprocess.Popen[bytes]) -> None:
    """It is over when this returns."""
    if popen.poll() is None:
        popen.send_signal(signal.SIGKILL)
    popen.wait()
