"""What is put right in the log of a platform that runs: resubmitted or erased.

Between REST and the programs that work on a stopped log. Guarantees: nothing is touched while ingest runs,
nor while Spark does where it reads what goes. Both come back afterwards, also where it has failed. One such
work is done at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from geartrain.errors import LedgerError
from geartrain_cloud.control.pausing import INGEST, SPARK, Pauses
from geartrain_cloud.control_store.errors import ConflictError, NotFoundError, TooManyError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import AbsentError, StateError
from geartrain_cloud.ingest.erasure import erasable, erase_device
from geartrain_cloud.ingest.resubmit import resubmit_batch, resubmit_letter
from geartrain_cloud.inspecting.places import log_folder
from geartrain_cloud.inspecting.refused import check_is_of_source
from geartrain_cloud.log.tables import LEDGER_FILE
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.held_files import erasable_files
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import EmptyBody, EraseBody, body_of, key_of
from geartrain_cloud.rest.routes import route
from geartrain_cloud.spark.lock import LOCK_FILE, no_reader

OWNER = "repair"

Work = Callable[[], Mapping[str, Any]]


class Repairs:
    """Those of one platform."""

    def __init__(self, config: PlatformConfig, store: ControlStore, pauses: Pauses) -> None:
        self._config, self._store, self._pauses = config, store, pauses
        self._is_at_work = False

    @route("POST", "/quarantine/{number}/resubmit", "admin", answers.Resubmitted, body=EmptyBody)
    async def resubmit(self, request: web.Request) -> Answer:
        """Put the rows of a quarantined batch into the log, once. Ingest pauses for it."""
        _, asked = await body_of(request, EmptyBody)
        text = request.match_info["number"]
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise NotFoundError("the quarantine has numbers: see gear quarantine ls")
        told = {"what": "resubmitted", "batch": int(text)}
        return await self._once(
            request, asked, told, lambda: asdict(resubmit_batch(self._folder(), int(text)))
        )

    @route("POST", "/deadletters/{id}/resubmit", "admin", answers.Resubmitted, body=EmptyBody)
    async def resubmit_letter(self, request: web.Request) -> Answer:
        """Put the record of a dead letter into the log, once; a source must have refused it. Ingest pauses
        for it.
        """
        _, asked = await body_of(request, EmptyBody)
        name = request.match_info["id"]

        def work() -> Mapping[str, Any]:
            check_is_of_source(self._config.state, name)
            return asdict(resubmit_letter(self._folder(), name))

        return await self._once(request, asked, {"what": "resubmitted", "letter": name[:200]}, work)

    @route("POST", "/log/devices/{device}/erase", "admin", answers.ErasedRows, body=EraseBody)
    async def erase(self, request: web.Request) -> Answer:
        """Take what a device has sent out of the log alone. Ingest and Spark pause for it, and tables keep
        what they have; `/devices/{device}/purge` does all of it. With `dry_run`, only say what there is.
        """
        body, asked = await body_of(request, EraseBody)
        device = request.match_info["device"]
        if body.dry_run:
            found = await self._worked(lambda: asdict(erasable(self._folder(), device)))
            return 200, {"changed": False, **found}

        def work() -> Mapping[str, Any]:
            places = self._config.places
            with no_reader([places.spark / LOCK_FILE]), erasable_files(places.folder):
                return {"changed": True, **asdict(erase_device(self._folder(), device))}

        told = {"what": "erased", "device": device[:200]}
        return await self._once(request, asked, told, work, (INGEST, SPARK))

    def _folder(self) -> Path:
        return log_folder(self._config.state)

    async def _once(
        self,
        request: web.Request,
        asked: str,
        told: Mapping[str, Any],
        work: Work,
        names: tuple[str, ...] = (INGEST,),
    ) -> Answer:
        """Do `work` while processes stand still, tell of it, and keep its answer under its key."""
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        await self._worked(self._folder)
        async with self._alone(names):
            with self._announced(told) as tell:
                found = await self._worked(work)
                return self._kept(key, asked, tell, found)

    def _announced(self, told: Mapping[str, Any]) -> AbstractContextManager[Callable[[], None]]:
        return self._store.announcements.announced("log", str(told.get("device", "")), told)

    def _kept(self, key: str, asked: str, tell: Callable[[], None], found: Mapping[str, Any]) -> Answer:
        def noted() -> Answer:
            tell()
            return 200, dict(found)

        return self._store.answers.once(key, asked, noted)

    @asynccontextmanager
    async def _alone(self, names: tuple[str, ...]) -> AsyncIterator[None]:
        if self._is_at_work:
            raise TooManyError("the log is being worked on for somebody else: ask again later")
        if (purge := self._store.purges.under_way()) is not None and purge.step == "stopping":
            raise ConflictError(f"what device {purge.device} sent is being erased: wait for it to end")
        self._is_at_work = True
        try:
            async with self._pauses.paused(OWNER, names):
                yield
        finally:
            self._is_at_work = False

    async def _worked(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, in a thread; raises `ControlError`."""
        try:
            return await asyncio.to_thread(work)
        except AbsentError as error:
            raise NotFoundError(str(error)) from None
        except StateError as error:
            is_there = (self._config.places.log / LEDGER_FILE).is_file()
            raise ConflictError(
                str(error) if is_there else "the platform has no log yet: ingest has not started"
            ) from None
        except LedgerError as error:
            raise ConflictError(str(error)) from None
