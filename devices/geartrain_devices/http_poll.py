"""Ask an HTTP address again and again, and make records of the JSON that it answers.

For devices and services that are asked rather than speak. A source without positions: what was not asked for
is not known. Guarantees: an answer equal to the one before gives nothing. One that fails is logged and asked
for again at the next turn. An answer that is no such record leaves as a dead letter with its bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from http.client import HTTPException
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec

from geartrain.declarations.options import Count, Positive
from geartrain.errors import SourceError
from geartrain.source import Source, Split
from geartrain_devices.json_fields import DOCUMENT_BYTES_MAX, JsonFields, now_us, parse_path
from geartrain_devices.live import LiveBufferSplit

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_TIMEOUT_S = 10.0


class HttpPoll(Source[T]):
    """Records of type `T` from the JSON that an address answers. A record before 1970 is a dead letter.

    Args:
        url: the address.
        every_s: how long to wait between two requests, seconds.
        items: the path of a list whose elements are the records, empty where an answer is one record.
        time: the path of the event time in a record, empty where the time of the answer is meant.
        time_unit: of a time that is a number: `s`, `ms` or `us` since 1970 UTC.
        fields: paths by field, for those that are not found by their own name.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = False
    since_1970 = True

    url: str = ""
    every_s: Positive = 10.0
    items: str = ""
    time: str = ""
    time_unit: str = "s"
    fields: dict[str, str] = field(default_factory=dict)
    out_of_orderness_ms: Count = 0

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        if not self.url.startswith(("http://", "https://")):
            raise SourceError(f'source {step}: url = {self.url!r} must begin with "http://" or "https://"')
        try:
            parts = urlsplit(self.url)
            is_whole = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_whole = False
        if not is_whole or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise SourceError(
                f"source {step}: url = {self.url!r} is no address, such as http://127.0.0.1:8080/readings"
            )
        if not self.every_s > 0:
            raise SourceError(f"source {step}: every_s = {self.every_s} must be above 0")
        try:
            items = parse_path(self.items) if self.items else ()
        except ValueError as error:
            raise SourceError(f"source {step}: items: {error}") from None
        fields = JsonFields(f"source {step}", out, self.time, self.time_unit, self.fields)
        bound_us = self.out_of_orderness_ms * 1_000
        drive = partial(_ask, self.url, self.every_s, items, fields)
        return [LiveBufferSplit(f"{device}/{step}", drive, out_of_orderness_us=bound_us)]


async def _ask(
    url: str, every_s: float, items: tuple[str | int, ...], fields: JsonFields, split: LiveBufferSplit
) -> None:
    """Push the records of every new answer until cancelled."""
    last = b""
    while True:
        try:
            answer = await asyncio.to_thread(_get, url)
        except (OSError, HTTPException, ValueError) as error:
            _LOG.warning("source %s: %s does not answer: %s", split.name, url, error)
        else:
            if answer != last:
                for raw in _records(answer, items):
                    split.push(raw, partial(_read, fields))
            last = answer
        await asyncio.sleep(every_s)


def _get(url: str) -> bytes:
    """The body of an answer; raises `OSError`, `HTTPException` or `ValueError`."""
    with urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - open() checked the scheme
        body = bytes(response.read(DOCUMENT_BYTES_MAX + 1))
    if len(body) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"its answer is longer than {DOCUMENT_BYTES_MAX} bytes")
    return body


def _records(answer: bytes, items: tuple[str | int, ...]) -> list[bytes]:
    """The documents of an answer; all of it where it has no such list."""
    if not items:
        return [answer]
    try:
        found: Any = msgspec.json.decode(answer)
        for step in items:
            found = found[step]
        if isinstance(found, list):
            return [msgspec.json.encode(one) for one in found]
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError):
        pass  # it becomes a dead letter with all its bytes
    return [answer]


def _read(fields: JsonFields, raw: bytes) -> tuple[int, Any]:
    time_us, record = fields.read(raw)
    return now_us() if time_us is None else time_us, record
