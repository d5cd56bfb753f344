"""`/backups`: copies of a platform that runs, made on its own disk because somebody asks by REST.

Between REST and the making of backups, which is a process of its own. Guarantees: a copy never leaves the
machine by REST, since it holds keys. One is made at a time, and so many are kept at the most. What is listed
as made is whole.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from geartrain.fleet.labels import shown
from geartrain.printable import printable
from geartrain_cloud.control.inspecting import page_of
from geartrain_cloud.control_store.errors import ConflictError, InvalidError, NotFoundError, StoreError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import read_report, write_report
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import BackupBody, EmptyBody, PlacesQuery, body_of, key_of
from geartrain_cloud.rest.routes import route

_LOG = logging.getLogger("geartrain.control")

BACKUPS_MAX = 100
BACKUP_S = 86_400.0
"""How long one may take."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_LINE_BYTES_MAX = 1 << 20
_RUNNING, _MADE, _FAILED = "running", "made", "failed"
_ENDED = "control has ended before it was made"


class _Made(msgspec.Struct):
    made_us: int
    files: int
    bytes: int
    elsewhere: list[str]


class _Line(msgspec.Struct):
    """What the process says: a step, or its end."""

    doing: str = ""
    refused: str = ""
    made: _Made | None = None


class Backups:
    """Those of one platform, in the folder that its configuration names; `now_us` tells the wall clock."""

    def __init__(self, config: PlatformConfig, store: ControlStore, now_us: Callable[[], int]) -> None:
        self._config, self._store, self._now_us = config, store, now_us
        self._folder = config.backups
        self._doing = ""
        self._work: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Tell of each backup that control did not live to see made; raises `StoreError`. Called once."""
        for name in sorted(self._names()):
            if (said := read_report(self._report(name))).get("state") == _RUNNING:
                self._keep(name, {**said, "state": _FAILED, "why": _ENDED})

    @route("GET", "/backups", "viewer", answers.Backups, query=PlacesQuery)
    async def every(self, request: web.Request) -> Answer:
        """The backups that were made by REST, or are being made, by name."""
        return page_of(request, await asyncio.to_thread(self._every))

    @route("GET", "/backups/{backup}", "viewer", answers.Backup)
    async def one(self, request: web.Request) -> Answer:
        """How far a backup is."""
        return 200, self._told(_checked(request.match_info["backup"]))

    @route("POST", "/backups", "admin", answers.Backup, statuses=(202,), body=BackupBody)
    async def make(self, request: web.Request) -> Answer:
        """Make a copy of the platform while it runs, as a file on its disk. It holds keys."""
        body, asked = await body_of(request, BackupBody)
        name, key = _checked(body.name), key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        if self._work is not None and not self._work.done():
            raise ConflictError("a backup is being made already: wait for it to end")
        if self._tar(name).exists():
            raise ConflictError(f"there is a backup {name} already: give another name, or remove it")
        if len(self._names() - {name}) >= BACKUPS_MAX:
            raise ConflictError(
                f"there are {BACKUPS_MAX} backups, which is all that are kept: remove some, or take them out "
                f"of {self._folder}"
            )
        self._keep(name, {"state": _RUNNING, "begun_us": self._now_us()})
        self._doing = "begins"
        self._work = asyncio.ensure_future(self._made(name))
        return self._store.answers.once(key, asked, lambda: (202, self._told(name)))

    @route("POST", "/backups/{backup}/remove", "admin", answers.Named, body=EmptyBody)
    async def remove(self, request: web.Request) -> Answer:
        """Remove a backup from the platform's disk."""
        _, asked = await body_of(request, EmptyBody)
        name, key = _checked(request.match_info["backup"]), key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        if self._told(name)["state"] == _RUNNING:
            raise ConflictError(f"backup {name} is being made: wait for it to end")

        def work() -> Answer:
            try:
                for path in (self._tar(name), self._draft(name), self._report(name)):
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{error.filename} cannot be removed: {error.strerror}") from None
            told()
            return 200, {"name": name}

        with self._announced(name, "removed") as told:
            return self._store.answers.once(key, asked, work)

    async def _made(self, name: str) -> None:
        """Have it made, and keep what came of it; ends the process that makes it when it is cancelled."""
        why, made = _ENDED, None
        try:
            async with asyncio.timeout(BACKUP_S):
                made, why = await self._run(name)
        except TimeoutError:
            why = f"it was not made within {BACKUP_S:g} s"
        except OSError as error:
            why = f"no process can be started: {error.strerror or error}"
        except ValueError as error:
            why = f"what makes backups says what it must not: {error}"
        finally:
            found = (
                {"state": _MADE, **msgspec.structs.asdict(made)} if made else {"state": _FAILED, "why": why}
            )
            begun_us = read_report(self._report(name)).get("begun_us", 0)
            with suppress(StoreError):  # nobody waits for it: what is left says that it runs, and is mended
                self._keep(name, {**found, "begun_us": begun_us})
            if not made:
                self._draft(name).unlink(missing_ok=True)
                _LOG.error("backup %s: %s", name, why)

    async def _run(self, name: str) -> tuple[_Made | None, str]:
        """What was made, or why nothing was."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "geartrain_cloud.backup.main"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )
        question = {"state": str(self._config.state), "output": str(self._tar(name))}
        try:
            if process.stdin is None or process.stdout is None:
                raise AssertionError("both are pipes")
            process.stdin.write(json.dumps(question).encode() + b"\n")
            while line := await process.stdout.readline():
                said = msgspec.json.decode(line, type=_Line)
                self._doing = printable(said.doing)
                if said.made is not None or said.refused:
                    return said.made, said.refused
            return None, f"what makes backups ended with {await process.wait()}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    # What is kept

    def _tar(self, name: str) -> Path:
        return self._folder / f"{name}.tar"

    def _draft(self, name: str) -> Path:
        return self._folder / f".{name}.tar.draft"

    def _report(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _names(self) -> set[str]:
        return {path.stem for path in self._folder.glob("*.json") if _NAME.fullmatch(path.stem)}

    def _every(self) -> list[dict[str, Any]]:
        return [self._told(name) for name in sorted(self._names()) if read_report(self._report(name))]

    def _keep(self, name: str, said: dict[str, Any]) -> None:
        """Keep what is said of a backup, and tell of it; raises `StoreError`."""
        try:
            with self._announced(name, said["state"]):
                write_report(self._report(name), {"why": "", **said})
        except OSError as error:
            raise StoreError(f"{self._report(name)} cannot be written: {error.strerror or error}") from None

    def _announced(self, name: str, state: str) -> AbstractContextManager[Callable[[], None]]:
        return self._store.announcements.announced("backup", "", {"name": name, "state": state})

    def _told(self, name: str) -> dict[str, Any]:
        said = read_report(self._report(name))
        if not said:
            raise NotFoundError(f"there is no backup {name}: see gear backup --help")
        is_running = said.get("state") == _RUNNING
        if is_running and (self._work is None or self._work.done()):
            said, is_running = {**said, "state": _FAILED, "why": _ENDED}, False  # it was killed with control
        return {
            "name": name,
            "state": said.get("state"),
            "doing": self._doing if is_running else "",
            "file": str(self._tar(name)),
            "begun_us": said.get("begun_us", 0),
            "made_us": said.get("made_us"),
            "files": said.get("files", 0),
            "bytes": said.get("bytes", 0),
            "elsewhere": said.get("elsewhere", []),
            "why": said.get("why", ""),
        }


def _checked(name: str) -> str:
    """`name`, where a backup can be called so; raises `InvalidError`."""
    if not _NAME.fullmatch(name):
        raise InvalidError(
            f"name: a backup cannot be called {shown(name)}: use 1 to 63 of a-z, 0-9, '.', '_' and '-', and "
            "begin with a letter or a digit"
        )
    return name
