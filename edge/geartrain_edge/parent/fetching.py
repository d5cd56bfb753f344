"""Bundles and programs, as a process gets them: the parent starts it, waits for its line, imports none of it.

Under `BundledApps`. Guarantees: one such process at a time. It has a deadline, and does not outlive the
parent's wait for it. What it says is taken from what it prints, which is bounded, and not from its exit code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from importlib.util import find_spec

import msgspec

from geartrain.printable import printable
from geartrain_edge.bundles.errors import FetchError, RefusedError
from geartrain_edge.bundles.folder import BundleFolder
from geartrain_edge.bundles.request import Answer, Request
from geartrain_edge.identity import Identity
from geartrain_edge.parent.config import DeviceConfig
from geartrain_edge.parent.short_process import said_by

FETCH_S_MAX = 3_600.0
"""So long may all of it take, on a slow link, too."""
_MODULE = "geartrain_edge.bundles.fetch"


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
        try:
            said = await said_by(_MODULE, msgspec.json.encode(request), FETCH_S_MAX)
        except TimeoutError:
            raise FetchError(f"fetching has taken longer than {FETCH_S_MAX / 60:.0f} minutes") from None
        except OSError as error:
            raise FetchError(
                f"no process can be started to fetch bundles: {error.strerror or error}"
            ) from None
        _judge(said)


def _judge(said: bytes) -> None:
    lines = said.splitlines()
    try:
        answer = msgspec.json.decode(lines[-1], type=Answer)
    except (IndexError, msgspec.DecodeError):
        last = printable(lines[-1].decode(errors="backslashreplace")) if lines else "it said nothing"
        needs = "" if find_spec("tuf") is not None else ": install geartrain-edge[fleet] on this device"
        raise FetchError(f"the process that fetches bundles broke down ({last[:200]}){needs}") from None
    if answer.why:
        raise (RefusedError if answer.is_final else FetchError)(answer.why)
