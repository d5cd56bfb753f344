"""Bearer tokens: who may ask what of REST, for all apps or for one, and until when.

Under REST, in the control store. Guarantees: only a digest of a token is kept. One that has expired or was
revoked is good for nothing from then on. What was changed is durable when a method returns.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec

from geartrain.fleet.labels import shown
from geartrain_cloud.control_store.database import ControlDatabase
from geartrain_cloud.control_store.errors import (
    ConflictError,
    ExpiredError,
    InvalidError,
    NotFoundError,
    StoreError,
    UnauthorizedError,
)
from geartrain_cloud.control_store.names import check_app

TOKEN_PREFIX = "gear_"  # noqa: S105 - what tokens begin with, so that scanners for secrets find them
TOKEN_BYTES = 32
"""Drawn at random: nobody guesses one, so that a plain digest protects it."""
TOKEN_CHARS_MAX = 512
BEARERS_MAX = 1_000
USE_NOTED_US = 60_000_000
"""Between two notes of a token's use, so that not each request is a write."""
LOCAL = "local"
"""Whom the token in the state folder stands for: the admin of the platform's own machine."""
_TOKEN = re.compile(TOKEN_PREFIX + "[A-Za-z0-9_-]{43}")  # as `token_urlsafe` writes `TOKEN_BYTES`
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_COLUMNS = "name, role, app, made_us, expires_us, made_by, used_us"


Role = Literal["viewer", "operator", "admin"]
"""What a token may do: a viewer reads, an operator also runs apps and devices, an admin may do all."""
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
"""Each may all that those before it may."""


class Bearer(msgspec.Struct, frozen=True):
    """A token without its secret. app: the only app that it is for, "" for the whole platform; made_us,
    expires_us: on the platform's wall clock, expires_us 0 for never; made_by: the name of the token that made
    it; used_us: when it was used last, to the minute, 0 for never; digest: of the token, empty for the one in
    the state folder.
    """

    name: str
    role: Role
    app: str = ""
    made_us: int = 0
    expires_us: int = 0
    made_by: str = ""
    used_us: int = 0
    digest: bytes = b""


class Bearers:
    """Those of a platform; `now_us` tells the wall clock, microseconds."""

    def __init__(self, database: ControlDatabase, now_us: Callable[[], int]) -> None:
        self._database, self._now_us = database, now_us

    def add(self, wanted: Bearer, life_s: float, request: str = "") -> tuple[Bearer, str]:
        """Make a token as `wanted`, for `life_s` seconds; what is kept of it, and the token itself.

        request: the idempotency key, "" for none: who asks again by it gets another token in the place of
        that one. Raises `InvalidError`, and `ConflictError` where the name is taken.
        """
        if not _NAME.fullmatch(wanted.name) or wanted.name == LOCAL:
            raise InvalidError(
                f"token {shown(wanted.name)}: use a name of 1 to 64 letters, digits, '_', '.', '@' and '-', "
                f"other than {LOCAL}"
            )
        _check_is_name(wanted.name)
        if wanted.app:
            check_app(wanted.app)
            if wanted.role == "admin":
                raise InvalidError("role: an admin is one of the whole platform: leave the app out")
        token, now_us = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES), self._now_us()
        asked = hashlib.sha256(request.encode()).hexdigest() if request else ""
        with self._database.change() as database:
            database.execute("DELETE FROM bearers WHERE expires_us <= ?", (now_us,))
            known = self._database.rows("SELECT request FROM bearers WHERE name = ?", (wanted.name,))
            if known and known[0][0] != (asked or None):
                raise ConflictError(
                    f"there is a token {wanted.name} already: take another name, or revoke it first with "
                    f"gear token revoke {wanted.name}"
                )
            if not known and self._database.rows("SELECT count(*) FROM bearers")[0][0] >= BEARERS_MAX:
                raise ConflictError(f"there are {BEARERS_MAX:,} tokens, which is all that there may be")
            made = msgspec.structs.replace(
                wanted, made_us=now_us, expires_us=now_us + round(life_s * 1e6), digest=_digest(token)
            )
            database.execute(
                f"INSERT OR REPLACE INTO bearers ({_COLUMNS}, digest, request) "  # noqa: S608
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*_row(made), made.digest, asked),
            )
        return made, token

    def revoke(self, name: str) -> None:
        """Have a token be good for nothing; raises `NotFoundError`, and `InvalidError` for a token itself."""
        _check_is_name(name)
        with self._database.change() as database:
            if not database.execute("DELETE FROM bearers WHERE name = ?", (name,)).rowcount:
                raise NotFoundError(f"there is no token {shown(name)}: see gear token ls")

    def page(self, limit: int, after: str) -> tuple[list[Bearer], str | None]:
        """Tokens by name, from behind `after`, without their digests; and where to go on."""
        question = f"SELECT {_COLUMNS} FROM bearers WHERE name > ? ORDER BY name LIMIT ?"  # noqa: S608
        found = [_bearer(row) for row in self._database.rows(question, (after, limit + 1))]
        return found[:limit], found[limit - 1].name if len(found) > limit else None

    def look(self, token: str, own: str) -> Bearer:
        """Whom a token stands for; raises `UnauthorizedError`. own: the one in the state folder."""
        if hmac.compare_digest(_bytes(token), own.encode()):
            return Bearer(LOCAL, "admin")
        question = f"SELECT {_COLUMNS}, digest FROM bearers WHERE digest = ?"  # noqa: S608
        is_one = 0 < len(token) <= TOKEN_CHARS_MAX
        found = [_bearer(row) for row in self._database.rows(question, (_digest(token),))] if is_one else []
        if not found:
            raise UnauthorizedError(
                "send a token that is good in the header Authorization: Bearer TOKEN; gear token add makes "
                "one, and control.token in the state folder holds that of the machine's own admin"
            )
        self._check_time(found[0])
        self._note_use(found[0])
        return found[0]

    def _note_use(self, bearer: Bearer) -> None:
        now_us = self._now_us()
        if abs(now_us - bearer.used_us) < USE_NOTED_US:
            return
        with (
            suppress(StoreError),
            self._database.change() as database,
        ):  # what reads alone needs no room on disk
            database.execute("UPDATE bearers SET used_us = ? WHERE name = ?", (now_us, bearer.name))

    def check(self, bearer: Bearer) -> None:
        """Raises `ExpiredError` where a token that was good is no longer so."""
        if bearer.digest:
            if not self._database.rows("SELECT 1 FROM bearers WHERE digest = ?", (bearer.digest,)):
                raise ExpiredError(f"token {bearer.name} was revoked: ask an admin for another one")
            self._check_time(bearer)

    def _check_time(self, bearer: Bearer) -> None:
        if bearer.expires_us and self._now_us() >= bearer.expires_us:
            raise ExpiredError(f"token {bearer.name} has expired: ask an admin for another one")


def hidden(text: str) -> str:
    """A text without the tokens that somebody wrote into it.

    >>> hidden("/api/v1/tokens/gear_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/revoke")
    '/api/v1/tokens/gear_…/revoke'
    """
    return _TOKEN.sub(f"{TOKEN_PREFIX}…", text)


def _check_is_name(name: str) -> None:
    """Raises `InvalidError` for a token in the place of a name; the sentence does not hold it."""
    if _TOKEN.search(name):
        raise InvalidError(
            "that is a token and not a token's name: gear token ls shows the names; others may have seen it "
            "by now, so revoke it by its name"
        )


def _row(bearer: Bearer) -> tuple[str, str, str, int, int, str, int]:
    made = (bearer.made_us, bearer.expires_us, bearer.made_by, bearer.used_us)
    return (bearer.name, bearer.role, bearer.app, *made)


def _bearer(row: tuple[object, ...]) -> Bearer:
    fields = [*_COLUMNS.split(", "), "digest"]
    return msgspec.convert(dict(zip(fields, row, strict=False)), Bearer)


def _digest(token: str) -> bytes:
    return hashlib.sha256(_bytes(token)).digest()


def _bytes(token: str) -> bytes:
    return token.encode(errors="surrogateescape")
