"""The tokens by which devices join: one for each device, good once, and for some hours.

Under `Enrolment`. Guarantees: only a digest of a token is kept. What was noted is durable when a method
returns. A token that was used is good for the same key again, so that a device that was cut off asks anew.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from geartrain.adapters.layouts import SqliteLayout
from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain_cloud.control_store.errors import RefusedError, StoreError

LAYOUT = SqliteLayout(b"GTjt", 1, StoreError, "move it away, and make new tokens")
TOKEN_BYTES = 24
"""Drawn at random: nobody guesses one, so that a plain digest protects it."""
_CREATE = """
CREATE TABLE tokens (device TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE,
    expires_us INTEGER NOT NULL, key TEXT NOT NULL) WITHOUT ROWID
"""


class Invitation(msgspec.Struct, frozen=True):
    """What is known of a token. expires_us: on the platform's wall clock; key: the digest of the key that it
    was used for, empty for none yet.
    """

    device: str
    expires_us: int
    key: str


class Tokens:
    """The file at `path`, held by one process; `now_us` tells the wall clock, microseconds."""

    def __init__(self, path: Path, now_us: Callable[[], int]) -> None:
        """Open or make it; raises `StoreError`."""
        self._subject, self._now_us = f"the file of join tokens {path}", now_us
        with translated(StoreError, self._subject):
            self._database = open_to_write(path, busy_s=10.0, one_thread=True)
            with transaction(self._database):
                LAYOUT.prepare(self._database, self._subject, lambda database: database.execute(_CREATE))

    def close(self) -> None:
        """Let the file go."""
        self._database.close()

    def make(self, device: str, life_s: float) -> tuple[str, int]:
        """A new token of the device, which takes the place of any before; and when it ends, microseconds."""
        token, expires_us = secrets.token_hex(TOKEN_BYTES), self._now_us() + round(life_s * 1e6)
        with translated(StoreError, self._subject), transaction(self._database):
            self._database.execute(
                "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, '')", (device, _digest(token), expires_us)
            )
        return token, expires_us

    def look(self, token: str, key: str) -> Invitation:
        """What a token that is good for this key stands for; raises `RefusedError` for any other."""
        found = self._one("digest", _digest(token))
        if found is None:
            raise RefusedError(
                "the platform does not know this token: it was mistyped, or a newer one took its place"
            )
        again = f"ask for another one with gear device token {found.device}"
        if found.key not in ("", key):
            raise RefusedError(f"this token was used already, and each is good for one device: {again}")
        if self._now_us() >= found.expires_us:
            raise RefusedError(f"this token has expired: {again}")
        return found

    def use(self, device: str, key: str) -> None:
        """Note that the device's token is used, for this key and no other one."""
        with translated(StoreError, self._subject), transaction(self._database):
            self._database.execute("UPDATE tokens SET key = ? WHERE device = ?", (key, device))

    def of(self, device: str) -> Invitation | None:
        """The token of a device that waits to be used, or was."""
        return self._one("device", device)

    def drop(self, device: str) -> None:
        """Have the device's token be good for nothing."""
        with translated(StoreError, self._subject), transaction(self._database):
            self._database.execute("DELETE FROM tokens WHERE device = ?", (device,))

    def _one(self, column: str, value: str | bytes) -> Invitation | None:
        question = f"SELECT device, expires_us, key FROM tokens WHERE {column} = ?"  # noqa: S608
        with translated(StoreError, self._subject):
            row = self._database.execute(question, (value,)).fetchone()
        return None if row is None else Invitation(*row)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
