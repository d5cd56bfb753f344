"""`GET /apps/{name}/tables/{table}/explain` and `/apps/{name}/records`: what only the log can answer.

Between REST and `geartrain_cloud.explaining`. Guarantees: control imports no user's code. An explanation
takes at most `EXPLAIN_S`. One short-lived process runs at a time, so that they take no more than one core.
At most `WAITING_MAX` requests wait for their turn.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
from aiohttp import web

from geartrain_cloud.control.hosting import cut_in_file
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.errors import (
    InvalidError,
    NotFoundError,
    TooManyError,
    UnavailableError,
)
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import Instance
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.explaining.question import ANSWER_BYTES_MAX, PAGE_BYTES_MAX, Question, RecordsQuestion
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.runs import tables_of_run
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import ExplainQuery, RecordsQuery, query_of
from geartrain_cloud.rest.routes import route
from geartrain_cloud.short_process import run_short
from geartrain_cloud.sinks.app_tables import AppTables

EXPLAIN_S = 300.0
PAGE_S = 120.0
WAITING_MAX = 8
_PLACE = re.compile(r"([0-9]{1,4}):([0-9]{1,18})")


class Explanations:
    """Those of one platform, for one event loop."""

    def __init__(self, store: ControlStore, config: PlatformConfig, trust: Trust) -> None:
        self._store, self._config, self._trust = store, config, trust
        self._turns, self._asked = asyncio.Semaphore(1), 0

    @route("GET", "/apps/{name}/tables/{table}/explain", "viewer", answers.Explanation, query=ExplainQuery)
    async def explain(self, request: web.Request) -> Answer:
        """Why the row of a table is so, by the records of the log behind it."""
        asked = query_of(request, ExplainQuery)
        instance = self._store.apps.newest(request.match_info["name"])
        question = self._question(instance, request.match_info["table"], asked.key, asked.limit)
        found = await self._ask(instance, question, EXPLAIN_S, ANSWER_BYTES_MAX)
        return 200, {"app": instance.name, **found}

    @route("GET", "/apps/{name}/records", "viewer", answers.Records, query=RecordsQuery)
    async def records(self, request: web.Request) -> Answer:
        """A page of the records of an app in the log."""
        asked = query_of(request, RecordsQuery)
        after, upto = _positions("after", asked.after), _positions("upto", asked.upto)
        instance = self._store.apps.newest(request.match_info["name"])
        log = str(self._config.places.log)
        question = RecordsQuestion(instance.instance, log, asked.from_us, asked.to_us, after, upto)
        found = await self._ask(instance, question, PAGE_S, PAGE_BYTES_MAX)
        return 200, {
            "app": instance.name,
            "instance": instance.instance,
            "flow": instance.flow,
            "cut": cut_in_file(instance.cut),
            "cuts": instance.outline.cuts,
            "options": instance.options,
            "revision": instance.outline.revision,
            "given_up": instance.outline.given_up,
            **found,
        }

    def _question(self, instance: Instance, table: str, key: str, limit: int) -> Question:
        places, outline = self._config.places, instance.outline
        tables = AppTables(places.tables(instance.instance), self._config.tables.store)
        run = tables.served
        path = tables_of_run(tables.first, run)
        if not path.is_file():
            if tables.place(run):
                raise InvalidError(
                    f"the tables of app {instance.name} are in PostgreSQL: only rows of SQLite tables can be "
                    "explained"
                )
            raise NotFoundError(f"app {instance.name} has no tables yet: see gear info {instance.name}")
        return Question(
            instance=instance.instance,
            log=str(places.log),
            tables=str(path),
            table=table,
            key=key,
            limit=limit,
            flow=instance.flow,
            cut=cut_in_file(instance.cut),
            options=instance.options,
            bundle=self._trust.folder_of(outline.code) if outline.bundled else "",
            revision=outline.revision,
            former=outline.former.revision if outline.former else "",
            cuts=outline.cuts,
            without=outline.without,
            given_up=outline.given_up,
        )

    async def _ask(
        self, instance: Instance, question: Question | RecordsQuestion, limit_s: float, bytes_max: int
    ) -> dict[str, Any]:
        content = msgspec.json.encode(question)
        if self._asked > WAITING_MAX:
            raise TooManyError(f"{WAITING_MAX} others wait for what only the log can answer: ask again later")
        self._asked += 1
        try:
            async with self._turns:
                ended = await run_short(
                    "geartrain_cloud.explaining.main", content, limit_s, bytes_max + (1 << 16)
                )
        except TimeoutError:
            raise UnavailableError(
                f"app {instance.name}: its log was not gone through within {limit_s:g} s: ask again when "
                "the platform has less to do"
            ) from None
        except OSError as error:
            raise UnavailableError(f"no process can be started: {error.strerror or error}") from None
        finally:
            self._asked -= 1
        if ended.is_too_long:
            raise InvalidError(
                f"app {instance.name}: what was found has more than {bytes_max:,} bytes: ask for less"
            )
        if ended.code != 0 or not ended.answer:
            raise UnavailableError(
                f"app {instance.name}: what reads its log ended with {ended.code}{ended.last_line}"
            )
        found: dict[str, Any] = json.loads(ended.answer)
        if "refused" in found:
            raise InvalidError(f"app {instance.name}: {found['refused']}")
        answer: dict[str, Any] = found["answer"]
        return answer


def _positions(name: str, text: str) -> dict[str, int]:
    """Positions among the parameters, such as `0:12,1:30`; raises `InvalidError`."""
    found = [_PLACE.fullmatch(part) for part in text.split(",")] if text else []
    if not all(found):
        raise InvalidError(f"{name}: give what the page before has as {name}, such as 0:12,1:30")
    return {one[1]: int(one[2]) for one in found if one}
