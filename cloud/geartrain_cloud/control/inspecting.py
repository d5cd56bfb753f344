"""`/log`, `/quarantine` and `/deadletters`: what a person looks into, of a platform that runs.

Between REST and `geartrain_cloud.inspecting`. Guarantees: all of it is read from files beside those who write
them, and in threads, so that control goes on. The whole log is read by one short-lived process at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from geartrain.errors import LedgerError
from geartrain_cloud.control_store.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    TooManyError,
    UnavailableError,
)
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import AbsentError, StateError
from geartrain_cloud.inspecting import devices, entries, refused
from geartrain_cloud.inspecting.places import log_folder
from geartrain_cloud.log.retention import Retention, retain
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.access import caller_of
from geartrain_cloud.rest.requests import (
    EmptyBody,
    EntriesQuery,
    LettersQuery,
    PlacesQuery,
    TrimBody,
    body_of,
    key_of,
    query_of,
)
from geartrain_cloud.rest.routes import route
from geartrain_cloud.short_process import run_short

VERIFY_S = 300.0
VERIFIED_BYTES_MAX = 16 << 20

T = TypeVar("T")


class Inspection:
    """What one platform has to be looked into; `now_us` tells the wall clock, microseconds."""

    def __init__(self, config: PlatformConfig, store: ControlStore, now_us: Callable[[], int]) -> None:
        self._config, self._store, self._now_us = config, store, now_us
        self._is_verifying = False

    @route("GET", "/log", "viewer", answers.LogChannels, query=PlacesQuery)
    async def channels(self, request: web.Request) -> Answer:
        """The channels of the log: positions, rows, segments, and the clocks of their partitions."""
        return page_of(request, await self._read(lambda: entries.channels(self._folder())))

    @route("GET", "/log/{flow}/entries", "viewer", answers.LogEntries, query=EntriesQuery)
    async def entries(self, request: web.Request) -> Answer:
        """The entries of a flow in one partition in their order, or those of one channel."""
        page, flow = query_of(request, EntriesQuery), request.match_info["flow"]
        after = page.after if page.after >= 0 else None
        read = partial(entries.entries, partition=page.partition, after=after, limit=page.limit)
        found, following = await self._read(
            lambda: read(self._folder(), flow, page.channel, with_rows=page.rows == "yes")
        )
        return 200, {"items": found, "next": following}

    @route("GET", "/log/verify", "viewer", answers.Verified)
    async def verify(self, _: web.Request) -> Answer:
        """Whether the whole log is as it was written; it is read to its end, for which there are 300 s."""
        if self._is_verifying:
            raise TooManyError("the log is being read for somebody else: ask again later")
        self._is_verifying = True
        try:
            folder = await self._read(self._folder)
            question = msgspec.json.encode(str(folder))
            ended = await run_short("geartrain_cloud.inspecting.main", question, VERIFY_S, VERIFIED_BYTES_MAX)
        except TimeoutError:
            raise UnavailableError(
                f"the log was not read within {VERIFY_S:g} s: run gear log verify --state on its machine"
            ) from None
        except OSError as error:
            raise UnavailableError(f"no process can be started: {error.strerror or error}") from None
        finally:
            self._is_verifying = False
        if ended.code != 0 or not ended.answer:
            raise UnavailableError(f"what reads the log ended with {ended.code}{ended.last_line}")
        said = msgspec.json.decode(ended.answer)
        if "refused" in said:
            raise UnavailableError(said["refused"])
        return 200, said["answer"]

    @route("POST", "/log/trim", "admin", answers.Trimmed, body=TrimBody)
    async def trim(self, request: web.Request) -> Answer:
        """Remove old rows that every registered query is done with; positions and clocks stay."""
        body, asked = await body_of(request, TrimBody)
        limits = Retention(body.older_than_s, body.bytes_max)
        if not limits.is_limited:
            raise InvalidError("say what may go: older_than_s, bytes_max, or both")
        told = {"what": "trimmed", "older_than_s": body.older_than_s, "bytes_max": body.bytes_max}
        return await self._once(
            request, asked, told, lambda: asdict(retain(self._folder(), limits, self._now_us()))
        )

    @route("GET", "/log/queries", "viewer", answers.LogQueries, query=PlacesQuery)
    async def queries(self, request: web.Request) -> Answer:
        """The queries that read the log, and up to where each is done."""
        return page_of(request, await self._read(lambda: entries.queries(self._folder())))

    @route("POST", "/log/queries/{query}/forget", "admin", answers.Named, body=EmptyBody)
    async def forget(self, request: web.Request) -> Answer:
        """Keep nothing of the log for a query any more, because it has ended for good."""
        _, asked = await body_of(request, EmptyBody)
        name = request.match_info["query"]

        def work() -> dict[str, Any]:
            entries.forget(self._folder(), name)
            return {"name": name}

        return await self._once(request, asked, {"what": "forgot", "query": name}, work)

    @route("GET", "/log/devices", "viewer", answers.LogDevices, query=PlacesQuery)
    async def devices(self, request: web.Request) -> Answer:
        """Where each device stands in each flow, and which one holds the clock."""
        return page_of(request, await self._read(lambda: devices.describe_devices(self._config.state)))

    @route("GET", "/quarantine", "viewer", answers.Quarantine, query=PlacesQuery)
    async def quarantine(self, request: web.Request) -> Answer:
        """The batches that were kept out of the log, oldest first, with the reason of each."""
        return page_of(request, await self._read(lambda: refused.batches(self._folder())))

    @route("GET", "/quarantine/{number}", "viewer", answers.QuarantinedBatch)
    async def batch(self, request: web.Request) -> Answer:
        """One of them, its header and its bytes."""
        text = request.match_info["number"]
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise NotFoundError("the quarantine has numbers: see gear quarantine ls")
        return 200, await self._read(lambda: refused.batch(self._folder(), int(text)))

    @route("GET", "/deadletters", "viewer", answers.Letters, query=LettersQuery, for_app=True)
    async def letters(self, request: web.Request) -> Answer:
        """The newest records that could not be processed, of devices and of steps in the data centre. A page
        has the oldest of it first; to a token for one app, only those of that app are told.
        """
        page, app = query_of(request, LettersQuery), caller_of(request).app
        read = partial(refused.dead_letters, self._config.state, page.limit, page.after)
        found, count, following = await self._read(lambda: read(app or page.app))
        return 200, {"items": found, "count": count, "next": following}

    @route("GET", "/deadletters/{id}", "viewer", answers.Letter, for_app=True)
    async def letter(self, request: web.Request) -> Answer:
        """One of them, with its raw form."""
        name, app = request.match_info["id"], caller_of(request).app
        return 200, await self._read(lambda: refused.dead_letter(self._config.state, name, app))

    def _folder(self) -> Any:
        return log_folder(self._config.state)

    async def _once(
        self,
        request: web.Request,
        asked: str,
        told: Mapping[str, Any],
        work: Callable[[], dict[str, Any]],
    ) -> Answer:
        """Do in a thread what may be done again, tell of it, and keep its answer under its key."""
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        with self._store.announcements.announced("log", "", told) as tell:
            answer = 200, await self._read(work)

            def noted() -> Answer:
                tell()
                return answer

            return self._store.answers.once(key, asked, noted)

    async def _read(self, work: Callable[[], T]) -> T:
        """What `work` gives, in a thread; raises `ControlError`."""
        try:
            return await asyncio.to_thread(work)
        except AbsentError as error:
            raise NotFoundError(str(error)) from None
        except StateError:
            raise ConflictError("the platform has no log yet: ingest has not started") from None
        except LedgerError as error:
            raise UnavailableError(str(error)) from None


def page_of(request: web.Request, found: list[dict[str, Any]]) -> Answer:
    """The page of a list that a request with a `PlacesQuery` asks for."""
    page = query_of(request, PlacesQuery)
    end = page.after + page.limit
    return 200, {"items": found[page.after : end], "next": end if len(found) > end else None}
