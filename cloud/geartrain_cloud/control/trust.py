"""What authors have signed, as control uses it: taken by REST, served to devices, unpacked for the cloud.

Between the repository of bundles and the rest of control. Guarantees: a bundle that an app runs, or ran
before its last update, stays; so does a program that a device is to run, runs, or was to run before. Snapshot
and timestamp are signed anew in time, without anybody asking. A platform that no author has come to holds no
key and loads no library for one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from aiohttp import web

from geartrain.bundle import Archive, ProgramArchive, ProgramManifest
from geartrain.bundle.archive import ARCHIVE_BYTES_MAX, ManifestArchive
from geartrain.bundle.program import PROGRAM_BOUNDS
from geartrain.errors import BundleError
from geartrain.printable import printable
from geartrain_cloud.bundles.files import BundleFiles
from geartrain_cloud.control_store.errors import InvalidError, NotFoundError, StoreError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import TrustError
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.answering import Handler
from geartrain_cloud.rest.requests import MetadataBody, body_of, key_of
from geartrain_cloud.rest.routes import Bytes, route

if TYPE_CHECKING:
    from geartrain_cloud.bundles.repository import Repository

_LOG = logging.getLogger("geartrain.control")

REFRESH_S = 60.0
"""Between two looks whether metadata are to be signed anew."""
BUNDLES_TOLD_MAX = 20
SAID_CHARS_MAX = 100
_CHUNK = 1 << 16


class Trust:
    """The bundles of one platform, for one event loop."""

    def __init__(self, folder: Path, store: ControlStore) -> None:
        """`folder`: the platform's own for bundles; it need not be there."""
        self._files, self._store = BundleFiles(folder), store
        self._opened: Repository | None = None
        self._next_s, self._has_looked = 0.0, False

    def _repository(self) -> Repository:
        """The repository, made where there is none; raises `TrustError`."""
        if self._opened is None:
            from geartrain_cloud.bundles.repository import (
                Repository,
            )  # only who has authors needs its libraries

            self._opened = Repository(self._files.folder, lambda: datetime.now(UTC))
        return self._opened

    @property
    def _is_used(self) -> bool:
        return self._opened is not None or self._files.metadata.is_dir()

    def round(self) -> None:
        """Do what is due; called every so often. What cannot be done is said, and tried again."""
        if not self._is_used or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + REFRESH_S
        try:
            self._tell_left()
            if self._repository().refresh():
                _LOG.info("the bundles' snapshot and timestamp are signed anew")
            for code in self._store.apps.codes(living=True):
                self._repository().unpacked(code)
        except TrustError as error:
            _LOG.error("bundles: %s", error)

    def folder_of(self, code: str) -> str:
        """The folder of an unpacked bundle; "" where no author has signed one of this code.

        Raises `TrustError`.
        """
        found = self._repository().unpacked(code) if code and self._is_used else None
        return "" if found is None else str(found.absolute())

    def program(self, code: str) -> ProgramManifest | None:
        """What is in the program of this hash; None where no author has signed one. Raises `TrustError`."""
        archive = self._repository().archive(code) if self._is_used else None
        if archive is None:
            return None
        try:
            with archive.open("rb") as file:
                return ProgramArchive(file).manifest
        except BundleError:
            return None  # a flow's
        except OSError as error:
            raise TrustError(f"program {code[:12]} cannot be read: {error.strerror or error}") from None

    def _used(self) -> set[str]:
        """The code of all apps that there are, of their former revisions, and before their last updates;
        programs of devices.
        """
        return self._store.apps.codes(living=False) | self._store.programs.used()

    # What people ask for

    @route("GET", "/trust", "viewer", answers.Trusted, for_app=True)
    async def show(self, request: web.Request) -> Answer:
        """The signed metadata of which the next version is made, as they were signed."""
        repository = self._repository()
        root, targets = repository.root, repository.targets
        return 200, {
            "keys": {role: key.keyval["public"] for role, key in repository.keys.items()},
            "root": root.to_bytes().decode() if root else "",
            "targets": targets.to_bytes().decode() if targets else "",
            "used": sorted(self._used()),
        }

    @route("POST", "/trust/root", "admin", answers.Done, statuses=(201,), body=MetadataBody)
    async def put_root(self, request: web.Request) -> Answer:
        """Bring the next version of the root metadata."""
        body, asked = await body_of(request, MetadataBody)

        def work() -> Answer:
            self._repository().put_root(body.metadata.encode())
            return 201, {}

        return self._changed(key_of(request), asked, "key", work)

    @route(
        "POST", "/trust/targets", "operator", answers.Done, statuses=(201,), body=MetadataBody, for_app=True
    )
    async def put_targets(self, request: web.Request) -> Answer:
        """Bring the next version of the targets, whose archives are there."""
        body, asked = await body_of(request, MetadataBody)

        def work() -> Answer:
            self._repository().put_targets(body.metadata.encode(), self._used())
            return 201, {}

        return self._changed(key_of(request), asked, "bundle", work)

    @route(
        *("PUT", "/bundles/{name}", "operator", answers.Done),
        statuses=(201,),
        body=Bytes,
        kept=False,
        for_app=True,
    )
    async def put_bundle(self, request: web.Request) -> Answer:
        """Bring the archive of a bundle, named SHA256.CODE.zip, before the metadata that name it."""
        return await self._put(request, Archive, ARCHIVE_BYTES_MAX)

    @route("PUT", "/programs/{name}", "admin", answers.Done, statuses=(201,), body=Bytes, kept=False)
    async def put_program(self, request: web.Request) -> Answer:
        """Bring the archive of an agent's program, named SHA256.CODE.zip."""
        return await self._put(request, ProgramArchive, PROGRAM_BOUNDS.archive_bytes)

    def _changed(self, key: str, asked: str, kind: str, work: Callable[[], Answer]) -> Answer:
        """Do what changes metadata, and tell what that changes; a kill between the two has it told later."""
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        before = dict(self._now(kind))
        tell = partial(self._tell, kind, before)
        with self._store.announcements.announced(kind, "", before, tell) as told:

            def done() -> Answer:
                answer = work()
                told()
                return answer

            return self._store.answers.once(key, asked, done)

    def _now(self, kind: str) -> Mapping[str, Any]:
        """What metadata name: the keys of authors, or bundles and programs."""
        if kind == "key":
            return self._repository().authors
        told = ("app", "program")
        return {code: {one: said.get(one) for one in told} for code, said in self._repository().codes.items()}

    def _tell(self, kind: str, before: Mapping[str, Any]) -> None:
        (self._tell_keys if kind == "key" else self._tell_bundles)(before, self._now(kind))

    def _tell_left(self) -> None:
        """Tell what changed and was not told, since control ended then; raises `TrustError`, `StoreError`."""
        if self._has_looked:
            return
        self._has_looked = True
        for one in self._store.announcements.left("key", "bundle"):
            with self._store.database.change():
                self._tell(one.kind, one.said)
                self._store.announcements.settle(one)

    def _tell_keys(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Tell which keys of authors are trusted since, and which no more."""
        for one in sorted(before.keys() ^ now.keys()):
            said = {"id": one, "author": _short({**before, **now}[one]), "trusted": one in now}
            self._store.events.note("key", "", "", said)

    def _tell_bundles(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Tell which bundles and programs may be run since, and which no more; the first of them."""
        for one in sorted(before.keys() ^ now.keys())[:BUNDLES_TOLD_MAX]:
            about = {**before, **now}[one]
            said = {"code": one, "program": _short(about.get("program")), "removed": one not in now}
            self._store.events.note("bundle", _short(about.get("app")), "", said)

    async def _put(
        self, request: web.Request, kind: Callable[[BinaryIO], ManifestArchive[Any]], most: int
    ) -> Answer:
        repository = self._repository()
        draft = repository.files.stored / f".{os.urandom(8).hex()}"
        try:
            with draft.open("xb") as file:
                count = 0
                async for part in request.content.iter_chunked(_CHUNK):
                    count += len(part)
                    if count > most:
                        raise InvalidError(f"the archive has at most {most:,} bytes")
                    file.write(part)
            await asyncio.to_thread(repository.put_archive, request.match_info["name"], draft, kind)
        except OSError as error:
            raise StoreError(f"the bundle cannot be kept: {error.strerror or error}") from None
        finally:
            with suppress(OSError):
                draft.unlink()
        return 201, {}

    # What devices ask for

    def served(self) -> Iterable[tuple[str, Handler]]:
        """Below the root of the device listener: the paths that are read, and what answers."""
        return (("/trust/{name}", self.serve_metadata), ("/bundles/{name}", self.serve_bundle))

    async def serve_metadata(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/trust/{name}`, such as `1.root.json`."""
        return _file(self._files.served_metadata(request.match_info["name"]), "application/json")

    async def serve_bundle(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/bundles/{name}`, such as `SHA256.CODE.zip`."""
        return _file(self._files.served_bundle(request.match_info["name"]), "application/zip")


def _short(said: object) -> str:
    """What an author has written of himself or of a bundle, as an event tells it."""
    return printable(said, SAID_CHARS_MAX) if isinstance(said, str) else ""


def _file(path: Path | None, kind: str) -> web.StreamResponse:
    if path is None or not path.is_file():
        raise NotFoundError("there are no such metadata, and no such bundle")
    return web.FileResponse(path, headers={"Content-Type": kind})
