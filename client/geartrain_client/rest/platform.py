"""The platform's REST as calls: each asks once, tries again where that is safe, and gives the answer as JSON.

Guarantees: a change carries an Idempotency-Key, which is the same for every attempt, so that the platform
makes it once. Attempts and pages are bounded. A refusal is the platform's own sentence, on one line.
"""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from geartrain.printable import printable
from geartrain_client.errors import FailedError, RefusedError, StoppedError, UnreachableError
from geartrain_client.rest.door import TOKEN, TOKEN_FILE, Door
from geartrain_client.rest.exchange import Answer, exchange, is_up, lines_of

ROOT = "/api/v1"
ATTEMPTS = 5
PAUSE_S, PAUSE_S_MAX = 0.1, 2.0
TIMEOUT_S = 15.0
SUBMIT_TIMEOUT_S = 120.0
"""A flow is loaded, planned and compiled before the answer."""
PAGE_ITEMS = 1_000
ITEMS_MAX = 100_000
"""Of a list, in all its pages."""
UNHEARD = "no answer came: the platform may have begun what was asked, and goes on then: see gear list"
NOT_FOUND = 404
_SENTENCE_CHARS_MAX = 2_000
_AGAIN = (502, 503, 504)


class _Error(msgspec.Struct):
    code: str = ""
    sentence: str = ""


class _Refusal(msgspec.Struct):
    error: _Error


class Platform:
    """The platform behind a door."""

    def __init__(
        self, door: Door, *, attempts: int = ATTEMPTS, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """attempts: for each request, the first included."""
        self.door = door
        self._attempts, self._sleep = attempts, sleep

    def get(self, path: str, /, *, timeout_s: float = TIMEOUT_S, **parameters: Any) -> Any:
        """What stands at `path`, such as `/apps`; parameters that are None are left out.

        Raises `UnreachableError`, `RefusedError` and `FailedError`, as all calls do.
        """
        return self._ask("GET", _with(path, parameters), None, timeout_s)

    def lines(
        self,
        path: str,
        headers: Mapping[str, str],
        bytes_max: int,
        silence_s: float,
        /,
        **parameters: Any,
    ) -> Iterator[bytes]:
        """The lines of an answer that does not end, over one connection. bytes_max: of a line; silence_s: for
        how long nothing may come.
        """
        told = {"Connection": "close", **headers, **self._authorization}
        for one in lines_of(self.door, ROOT + _with(path, parameters), told, bytes_max, silence_s):
            if isinstance(one, Answer):
                self._value(one)  # raises
            else:
                yield one

    def items(self, path: str, /, **parameters: Any) -> Iterator[Any]:
        """All items of a list, page by page."""
        after, count = None, 0
        while count < ITEMS_MAX:
            page = self.get(path, limit=PAGE_ITEMS, after=after, **parameters)
            found = items_of(page)
            yield from found
            count += len(found)
            after = page.get("next")
            if after is None or not found:
                return

    def change(self, method: str, path: str, body: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> Any:
        """Ask for a change, once however often it is sent; raises `StoppedError` at Ctrl-C."""
        try:
            return self._ask(method, path, json.dumps(body).encode(), timeout_s)
        except KeyboardInterrupt:
            if body.get("dry_run"):
                raise
            raise StoppedError(signal.SIGINT, UNHEARD) from None

    def send(self, path: str, content: bytes, timeout_s: float = SUBMIT_TIMEOUT_S) -> Any:
        """Put bytes there, such as a bundle; it may be done again."""
        return self._ask("PUT", path, content, timeout_s, "application/octet-stream")

    @property
    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.door.token}"} if self.door.token else {}

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        kind: str = "application/json",
    ) -> Any:
        headers = {"Accept": "application/json", "Connection": "close", **self._authorization}
        if body is not None:
            headers |= {"Content-Type": kind, "Idempotency-Key": secrets.token_hex(16)}
        for attempt in range(1, self._attempts + 1):
            last = attempt == self._attempts
            try:
                answer = exchange(self.door, method, ROOT + path, headers, body, timeout_s)
            except UnreachableError as error:
                if last or error.timed_out:
                    raise
            else:
                if last or answer.status not in _AGAIN:
                    return self._value(answer)
            self._sleep(min(PAUSE_S * 2 ** (attempt - 1), PAUSE_S_MAX))
        raise AssertionError("the last attempt has returned or raised")

    def _value(self, answer: Answer) -> Any:
        if 200 <= answer.status < 300:
            try:
                return json.loads(answer.body) if answer.body else None
            except ValueError:
                raise FailedError(
                    f"what answers at {self.door.url} is no platform: it sent no JSON"
                ) from None
        try:
            said = msgspec.json.decode(answer.body, type=_Refusal).error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = _Error(sentence=f"what answers at {self.door.url} is no platform: status {answer.status}")
        sentence = printable(" ".join(said.sentence.split()), _SENTENCE_CHARS_MAX)
        if answer.status == 401 and said.code in ("", "unauthorized"):
            sentence = self._unknown()
        kind = RefusedError if answer.status < 500 else FailedError
        raise kind(sentence or f"the platform answered with status {answer.status}", answer.status, said.code)

    def _unknown(self) -> str:
        """What a platform that does not know the token means, and what to do."""
        token = "does not take this token" if self.door.token else "asks for a token"
        todo = f"name the file of the right one with {TOKEN_FILE}, or give it in {TOKEN}"
        if self.door.folder and not is_up(self.door.folder):
            todo = f"it may be another one, for no gear up runs in {self.door.folder}: start that, or {todo}"
        return f"the platform at {self.door.url} {token}: {todo}"


def _with(path: str, parameters: Mapping[str, Any]) -> str:
    """The path with those parameters that are not None."""
    asked = urlencode({name: value for name, value in parameters.items() if value is not None})
    return f"{path}?{asked}" if asked else path


def items_of(page: Any) -> list[Any]:
    """The items of a page; raises `FailedError` for what is none."""
    found = page.get("items") if isinstance(page, dict) else None
    if not isinstance(found, list):
        raise FailedError("the platform sent no list: is it of another version than gear?")
    return found


def segment(name: str) -> str:
    """A name as one part of a path: no slash, and never `.` or `..`."""
    quoted = quote(name, safe="")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")
