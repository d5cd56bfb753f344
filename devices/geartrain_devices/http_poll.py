"""Ask an HTTP address again and again, and make records of the JSON that it answers.

For devices and services that are asked rather than speak. A source without positions: what was not asked for
is not known. Guarantees: an answer equal to the one before gives nothing, and a server that knows whether it
has changed need not send it. With `keep`, that holds over a restart, and of an answer that was read in part
the rest comes. A request that fails is logged and made again at the next turn. An answer that is no such
record leaves as a dead letter with its bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from math import isfinite, isnan
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit
from urllib.request import OpenerDirector

import msgspec

from geartrain.concurrency.shield import shield
from geartrain.declarations.options import Count, FilePath, Positive
from geartrain.errors import SourceError
from geartrain.printable import is_word
from geartrain.source import Source, Split
from geartrain_devices.http_place import NOTHING, Answered, HttpPlace, answered
from geartrain_devices.http_requests import HttpAnswer, NoAnswerError, ask, opener_of
from geartrain_devices.json_fields import DOCUMENT_BYTES_MAX, JsonFields, decode_document, now_us, parse_path
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.live import LiveBufferSplit
from geartrain_devices.text_bytes import NotTextError, as_utf8, check_encoding, is_encoding

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

EMPTY = "http_empty_passed_over"
_ENCODE = msgspec.json.Encoder(decimal_format="number").encode
"""Numbers as they were written."""
_NAN, _INFINITY, _MINUS_INFINITY = (msgspec.Raw(name) for name in (b"NaN", b"Infinity", b"-Infinity"))


class HttpPoll(ValueOptions, Source[T]):
    """Records of type `T` from the JSON that an address answers. A record before 1970 is a dead letter.

    How its times and numbers are written, the options of `ValueOptions` say.

    Args:
        url: the address.
        every_s: how long to wait between two requests, seconds.
        keep: a folder of the source's own, where it notes its last answer, so that the same one gives nothing
            after a restart either; empty for none.
        items: the path of a list whose elements are the records, empty where an answer is one record.
        time: the path of the event time in a record, empty where the time of the answer is meant.
        fields: paths by field, for those that are not found by their own name.
        encoding: of an answer, empty for what its byte-order mark or its header Content-Type says, or UTF-8.
        proxy: the address of a proxy, such as `http://proxy.example:3128`; empty for what the environment
            names (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`), `none` for none.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = False
    since_1970 = True

    url: str = ""
    every_s: Positive = 10.0
    keep: FilePath = ""
    items: str = ""
    time: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    encoding: str = ""
    proxy: str = ""
    out_of_orderness_ms: Count = 0

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        if self.url and not self.url.startswith(("http://", "https://")):
            raise SourceError(f'source {step}: url = {self.url!r} must begin with "http://" or "https://"')
        try:
            parts = urlsplit(self.url)
            is_whole = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_whole = False
        if self.url and not (is_whole and is_word(self.url)):
            raise SourceError(
                f"source {step}: url = {self.url!r} is no address, such as http://127.0.0.1:8080/readings"
            )
        if not self.every_s > 0:
            raise SourceError(f"source {step}: every_s = {self.every_s} must be above 0")
        try:
            _ = parse_path(self.items) if self.items else ()
        except ValueError as error:
            raise SourceError(f"source {step}: items: {error}") from None
        check_encoding(f"source {step}", self.encoding)
        JsonFields(f"source {step}", out, self.time, self, self.fields)
        opener_of(f"source {step}", self.proxy)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        if not self.url:
            raise SourceError(f'source {step}: url = {self.url!r} must begin with "http://" or "https://"')
        self.check_settings(step, out)
        items = parse_path(self.items) if self.items else ()
        fields = JsonFields(f"source {step}", out, self.time, self, self.fields)
        bound_us = self.out_of_orderness_ms * 1_000
        keep = Path(self.keep) if self.keep else None
        opener = opener_of(f"source {step}", self.proxy)
        asking = _Asking(f"source {step}", self.url, self.every_s, items, fields, keep, self.encoding, opener)
        return [LiveBufferSplit(device, step, asking.run, out_of_orderness_us=bound_us)]


class _Asking:
    """The requests of one split."""

    def __init__(
        self,
        where: str,
        url: str,
        every_s: float,
        items: tuple[str | int, ...],
        fields: JsonFields,
        keep: Path | None,
        encoding: str,
        opener: OpenerDirector,
    ) -> None:
        self._where, self._url, self._every_s = where, url, every_s
        self._items, self._fields, self._keep = items, fields, keep
        self._encoding, self._opener = encoding, opener

    async def run(self, split: LiveBufferSplit) -> None:
        """Push the records of every new answer until cancelled; raises `SourceError`."""
        place = None
        if self._keep is not None:
            place = HttpPlace(self._where, split.label, self._url, self._keep)
        try:
            last = NOTHING if place is None else place.at(split.began_at)
            number = split.began_at
            while True:
                try:
                    request = (self._opener, self._url, last.conditions, DOCUMENT_BYTES_MAX)
                    answer = await asyncio.to_thread(ask, *request)
                except NoAnswerError as error:
                    _LOG.warning("source %s: %s does not answer: %s", split.label, self._url, error)
                else:
                    if answer is not None and not answer.body.strip():
                        split.count(EMPTY)
                    elif answer is not None:
                        last, raws, encoding = self._new(answer, last)
                        if place is not None:
                            await shield(asyncio.to_thread(place.keep, last, number + len(raws)))
                        for raw in raws:
                            await split.room(len(raw))
                            split.push(raw, partial(_read, self._fields, encoding))
                        number += len(raws)
                await asyncio.sleep(self._every_s)
        finally:
            if place is not None:
                place.close()

    def _new(self, answer: HttpAnswer, last: Answered) -> tuple[Answered, list[bytes], str]:
        """An answer as it is kept, those of its records that were not given, and how these are encoded."""
        encoding = self._encoding or (answer.charset if is_encoding(answer.charset) else "")
        try:
            raws = _records(as_utf8(answer.body, encoding), self._items, takes_nan=self._fields.takes_nan)
            encoding = ""
        except NotTextError:
            raws = [answer.body]  # whoever reads it says why
        now = answered(answer.body, answer.etag, answer.modified, answer.date, len(raws))
        return now, raws[last.records :] if now.digest == last.digest else raws, encoding


def _records(answer: bytes, items: tuple[str | int, ...], *, takes_nan: bool = False) -> list[bytes]:
    """The documents of an answer; all of it where it has no such list."""
    if not items:
        return [answer]
    try:
        found = decode_document(answer, takes_nan=takes_nan)
        for step in items:
            found = found[step]
        if isinstance(found, list):
            return [_ENCODE(_written(one) if takes_nan else one) for one in found]
    except (ValueError, LookupError, TypeError, RecursionError):
        pass  # it becomes a dead letter with all its bytes
    return [answer]


def _written(value: Any) -> Any:
    """A value whose NaN and infinities are written as they stood, which JSON does not have."""
    if isinstance(value, list):
        return [_written(one) for one in value]
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    if isinstance(value, float) and not isfinite(value):
        return _NAN if isnan(value) else _INFINITY if value > 0 else _MINUS_INFINITY
    return value


def _read(fields: JsonFields, encoding: str, raw: bytes) -> tuple[int, Any]:
    time_us, record = fields.read(as_utf8(raw, encoding))
    return now_us() if time_us is None else time_us, record
