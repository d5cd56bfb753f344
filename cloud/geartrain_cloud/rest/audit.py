"""The audit log: who has asked for which change, from where, and what came of it.

Between the server and the handlers, in a file of its own. Guarantees: a request that is to change something
is durably noted before it changes anything, and is refused where that fails. What came of it is added behind;
where control ended in between, the entry says so. The newest `ENTRIES_MAX` are kept. Of a body only what
is known to be harmless is told: the names of options, and never their values. No token is told, wherever
somebody wrote one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from geartrain.adapters.layouts import SqliteLayout
from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain.printable import printable
from geartrain_cloud.control_store.bearers import Bearer, hidden
from geartrain_cloud.control_store.database import as_text
from geartrain_cloud.control_store.errors import StoreError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.access import caller_of
from geartrain_cloud.rest.answering import Handler
from geartrain_cloud.rest.requests import AuditQuery, asked_of, query_of
from geartrain_cloud.rest.routes import route, route_of

_LOG = logging.getLogger("geartrain.control")

ENTRIES_MAX = 100_000
PATH_CHARS_MAX = 300
TEXT_CHARS_MAX, LIST_MAX = 200, 20
"""Of what is told of a body: the characters of a text, and the items of a list."""
LAYOUT = SqliteLayout(b"GTau", 1, StoreError, "move it away to begin a new one")
_READS = ("GET", "HEAD", "OPTIONS")
_TOLD = frozenset(
    [
        "name",
        "flow",
        "cut",
        "capacity",
        "devices",
        "mode",
        "purge",
        "isolation",
        "device_cuts",
        "dry_run",
        "code",
        "drop_state",
        "only",
        "steps",
        "without",
        "from",
        "drain",
        "step",
        "to",
        "labels",
        "local",
        "program",
        "role",
        "app",
        "expires_s",
        "older_than_s",
        "bytes_max",
        "leave",
        "fleet",
        "days",
        "hosts",
        "flows",
    ]
)
"""Fields of bodies that hold no secret."""
_NAMES_TOLD = frozenset(("set", "device_set"))
"""Fields whose values may be secret, and whose names are not."""
_COLUMNS = "number, time_us, token, role, method, path, app, device, asked, status, result, address"
_CREATE = """
CREATE TABLE entries (number INTEGER PRIMARY KEY AUTOINCREMENT, time_us INTEGER NOT NULL, token TEXT NOT NULL,
    role TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL, app TEXT NOT NULL, device TEXT NOT NULL,
    asked TEXT NOT NULL, status INTEGER NOT NULL, result TEXT NOT NULL, address TEXT NOT NULL)
"""


class AuditLog:
    """The file at `path`, held by one process; `now_us` tells the wall clock, microseconds."""

    def __init__(self, path: Path, now_us: Callable[[], int]) -> None:
        """Open or make it; raises `StoreError`."""
        self._subject, self._now_us = f"the audit log {path}", now_us
        with translated(StoreError, self._subject):
            self._database = open_to_write(path, busy_s=10.0, one_thread=True)
            with transaction(self._database):
                LAYOUT.prepare(self._database, self._subject, lambda database: database.execute(_CREATE))

    def close(self) -> None:
        """Let the file go."""
        self._database.close()

    def begin(self, bearer: Bearer, method: str, path: str, names: tuple[str, str], address: str) -> int:
        """Note a request durably before it changes anything; its number. names: of the app and the device in
        its path, "" for none. Raises `StoreError`.
        """
        shown = printable(hidden(path), PATH_CHARS_MAX)
        app, device = (printable(hidden(name), TEXT_CHARS_MAX) for name in names)
        return self._add(bearer.name, bearer.role, method, shown, app, device, "{}", 0, "", address)

    def note(self, status: int, result: str, asked: dict[str, Any], address: str) -> None:
        """Note requests of nobody who is known, in one entry; raises `StoreError`."""
        self._add("", "", "", "", "", "", as_text(asked), status, result, address)

    def _add(self, *values: str | int) -> int:
        with translated(StoreError, self._subject), transaction(self._database):
            made = self._database.execute(
                f"INSERT INTO entries ({_COLUMNS}) VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                (self._now_us(), *values),
            ).lastrowid
            number = int(made or 0)
            self._database.execute("DELETE FROM entries WHERE number <= ?", (number - ENTRIES_MAX,))
        return number

    def end(self, number: int, status: int, result: str, asked: dict[str, Any]) -> None:
        """Add what came of a request, and what its body has asked for; raises `StoreError`."""
        with translated(StoreError, self._subject), transaction(self._database):
            self._database.execute(
                "UPDATE entries SET status = ?, result = ?, asked = ? WHERE number = ?",
                (status, result, as_text(asked), number),
            )

    def page(self, limit: int, before: int, since_us: int) -> tuple[list[dict[str, Any]], int | None]:
        """Entries that are not before `since_us`, the newest first, with numbers below `before`; and where to
        go on.
        """
        question = (
            f"SELECT {_COLUMNS} FROM entries WHERE number < ? AND time_us >= ? "  # noqa: S608
            "ORDER BY number DESC LIMIT ?"
        )
        with translated(StoreError, self._subject):
            rows = self._database.execute(question, (before, since_us, limit + 1)).fetchall()
        found = [dict(zip(_COLUMNS.split(", "), row, strict=True)) for row in rows]
        for one in found:
            one["asked"] = msgspec.json.decode(one["asked"])
        return found[:limit], found[limit - 1]["number"] if len(found) > limit else None


class Auditing:
    """The audit log as REST gives it."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    @route("GET", "/audit", "admin", answers.Audit, query=AuditQuery)
    async def entries(self, request: web.Request) -> Answer:
        """Who has asked for which change, and what came of it, the newest first."""
        page = query_of(request, AuditQuery)
        found, following = self._log.page(page.limit, page.after, page.since_us)
        return 200, {"items": found, "next": following}


def noted(log: AuditLog) -> Middleware:
    """A middleware that notes each request which is to change something, and what came of it. What is below
    it answers errors, and raises none.
    """

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method in _READS:
            return await handler(request)
        made = route_of(request)
        app = request.match_info.get("name", "") if made is not None and made.is_below_app else ""
        names = app, request.match_info.get("device", "")
        number = log.begin(caller_of(request), request.method, request.path, names, request.remote or "")
        answer = await handler(request)
        code = "ok" if answer.status < 400 else HTTPStatus(answer.status).name.lower()
        try:
            log.end(number, answer.status, code, told(asked_of(request)))
        except StoreError as error:
            _LOG.warning("entry %s of the audit log keeps no result: %s", number, error)
        return answer

    return note


def told(body: msgspec.Struct | None) -> dict[str, Any]:
    """What an entry tells of a body: the fields that hold no secret and say something, cut to a bound."""
    fields = {} if body is None else msgspec.to_builtins(body)
    found = {name: _short(value) for name, value in fields.items() if name in _TOLD and _says(value)}
    names = {
        name: _short(sorted(map(str, value)))
        for name, value in fields.items()
        if name in _NAMES_TOLD and isinstance(value, dict) and value
    }
    return found | names


def _says(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return printable(hidden(value), TEXT_CHARS_MAX)
    if isinstance(value, list):
        more = [f"and {len(value) - LIST_MAX} more"] if len(value) > LIST_MAX else []
        return [_short(one) for one in value[:LIST_MAX]] + more
    if isinstance(value, dict):
        return {_short(str(key)): _short(one) for key, one in list(value.items())[:LIST_MAX]}
    return value
