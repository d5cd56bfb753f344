"""Bundles and programs, as a process gets them: the parent starts it, waits for its line, imports none of it.

Under `BundledApps`. Guarantees: one such process at a time. It has a deadline, and does not outlive the
parent's wait for it. What it says is taken from what it prints, which is bounded, and not from its exit code.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import msgspec

from geartrain.printable import printable
from geartrain_edge.bundles.errors import FetchError, RefusedError
from geartrain_edge.bundles.folder import BundleFolder
from geartrain_edge.bundles.request import Answer, Request
from geartrain_edge.identity import Identity
from geartrain_edge.parent.config import DeviceConfig

FETCH_S_MAX = 3_600.0
"""So long may all of it take, on a slow link, too."""
_MODULE = "geartrain_edge.bundles.fetch"
_SAID_BYTES_MAX = 1 << 16


class FetchProcesses:
    """`Bundles` of one device, or with `programs` its `Shelf`."""

    def __init__(self, config: DeviceConfig, turn: asyncio.Lock, *, programs: bool = False) -> None:
        """turn: held while such a process runs, so that there is one at a time."""
        self._root, self._url, self._turn = config.bundles, config.platform, turn
        self._programs = str(config.programs) if programs else ""
        self._folder = BundleFolder(config.programs if programs else config.bundles)
        self._identity, self._floor_bytes = Identity(config.state), config.free_floor_bytes
        self._patience_s = config.patience_s

    def has(self, code: str) -> bool:
        """Whether the bundle of a code is there."""
        return self._folder.has(code)

    async def fetch(self, code: str, keep: Collection[str]) -> None:
        """As `Bundles.fetch`; raises `RefusedError`, too."""
        async with self._turn:
            await self._fetch(code, keep)

    async def _fetch(self, code: str, keep: Collection[str]) -> None:
        ca, identity = str(self._identity.authority), str(self._identity.file)
        kept = tuple(sorted(keep))
        where = (str(self._root), self._url, ca, identity)
        request = Request(*where, code, kept, self._programs, self._floor_bytes, self._patience_s)
        popen = _start()
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                said = await _exchange(popen, msgspec.json.encode(request))
        except TimeoutError:
            raise FetchError(f"fetching has taken longer than {FETCH_S_MAX / 60:.0f} minutes") from None
        finally:
            _end(popen)
        _judge(said)


def _start() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],  # no module of the working folder: it has the device's key
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C is for the parent; in a session of its own it would pass for an app's
        )
    except OSError as error:
        raise FetchError(f"no process can be started to fetch bundles: {error.strerror or error}") from None


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


def _judge(said: bytes) -> None:
    lines = said.splitlines()
    try:
        answer = msgspec.json.decode(lines[-1], type=Answer)
    except (IndexError, msgspec.DecodeError):
        last = printable(lines[-1].decode(errors="backslashreplace")) if lines else "it said nothing"
        needs = "" if b"ModuleNotFoundError" not in said else ": install geartrain-edge[fleet] on this device"
        raise FetchError(f"the process that fetches bundles broke down ({last[:200]}){needs}") from None
    if answer.why:
        raise (RefusedError if answer.is_final else FetchError)(answer.why)
