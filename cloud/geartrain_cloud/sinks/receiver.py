"""Who takes the requests of a webhook: its address, what protects the way to it, and the headers it asks for.

Read before a request is made, so a header file or a certificate that was renewed counts from the next one on.
Guarantees: no secret stands in an option, nor a value of a header or an address that is one in a sentence. A
header file that others may read is refused. With https, the receiver's certificate and name are
always checked.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from geartrain.adapters.tls import BrokerTable, check_private, context_of
from geartrain.declarations.cloud_sink import WebhookSink
from geartrain.declarations.sink import set_by
from geartrain.declarations.web_requests import address_fault, check_open_headers, checked_headers
from geartrain.errors import ConfigError
from geartrain_cloud.sinks.layout import AwayError, TableError
from geartrain_cloud.sinks.secrets import SinkSecrets, asked_in, without

_HIDDEN_CHARS_MIN = 4
"""A shorter value of a header is no secret that could be hidden: it is part of any text."""


@dataclass(frozen=True)
class Receiver:
    """name: its scheme and host, for sentences; the rest of an address may be a secret, or all of it."""

    url: str
    name: str
    tls: ssl.SSLContext | None
    headers: Mapping[str, str]
    secrets: tuple[str, ...]

    def hide(self, text: str) -> str:
        """A text without what the header file holds, nor an address that is a secret."""
        for secret in self.secrets:
            text = text.replace(secret, "…")
        return text


def receiver_of(sink_id: str, sink: WebhookSink, secrets: SinkSecrets | None) -> Receiver:
    """The receiver of a sink; raises `TableError` for options that cannot be. secrets: those that it asks
    for; None to leave these out.
    """
    where = f"sink {sink_id!r}"
    asked = asked_in(f"{where}: headers", sink.headers)
    held = {} if secrets is None else secrets.all(sink_id, asked)
    address = _address(sink_id, sink, secrets)
    try:
        tls = _context(sink_id, sink, is_secure=address.is_secure)
        given = dict(without(sink.headers, asked))
        check_open_headers(where, given.items())
        held = dict(checked_headers(where, "headers", held.items()))
        filed = dict(checked_headers(where, "headers_file", _in_file(where, sink.headers_file)))
    except ConfigError as error:
        raise TableError(str(error)) from None
    filed = held | filed
    words = {word for value in filed.values() for word in (value, *value.split())} | address.hidden
    hidden = sorted((word for word in words if len(word) >= _HIDDEN_CHARS_MIN), key=len, reverse=True)
    return Receiver(address.url, address.name, tls, given | filed, tuple(hidden))


@dataclass(frozen=True)
class _Address:
    """name: how sentences call it; hidden: what they do not say of it."""

    url: str
    name: str
    is_secure: bool
    hidden: frozenset[str] = frozenset()


def _address(sink_id: str, sink: WebhookSink, secrets: SinkSecrets | None) -> _Address:
    """Where the requests of a sink go; raises `TableError`, for a secret that is no address `AwayError`."""
    where = f"sink {sink_id!r}"
    name = asked_in(where, {"url": sink.url}).get("url", "")
    if not name:
        if why := address_fault(sink.url):
            raise TableError(f"{where}: its url {why}: {set_by(sink_id, 'url')}")
        parts = urlsplit(sink.url)
        return _Address(sink.url, f"{parts.scheme}://{parts.netloc}", parts.scheme == "https")
    if secrets is None:
        return _Address("", "", is_secure=True)
    url = secrets.value(sink_id, name)
    why = address_fault(url)
    parts = urlsplit("" if why else url)
    if parts.scheme == "http" and (sink.ca or sink.certificate or sink.private_key):
        why = "has no https://, for which ca, certificate and private_key are"
    if why:
        raise AwayError(f"{where} waits for secret {name}, whose value {why}: set it anew")
    words = (url, parts.netloc, parts.hostname or "", *re.split(r"[/?&=#:]+", url))
    return _Address(url, f"secret {name}", parts.scheme == "https", frozenset(words) - {"http", "https"})


def _context(sink_id: str, sink: WebhookSink, *, is_secure: bool) -> ssl.SSLContext | None:
    if not is_secure and (sink.ca or sink.certificate or sink.private_key):
        raise ConfigError(f"sink {sink_id!r}: ca, certificate and private_key are for a url with https://")
    table = BrokerTable("", is_secure, sink.ca, sink.certificate, sink.private_key)
    return context_of(table, Path(), f"steps.{sink_id}", "private_key")


def _in_file(where: str, name: str) -> Iterator[tuple[str, str]]:
    if not name:
        return
    check_private(f"{where}: headers_file", Path(name))
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"{where}: headers_file {name} cannot be read ({why}): correct its name, or who may read it"
        ) from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            header, colon, value = line.partition(":")
            if not colon:  # the line itself may be a secret
                raise ConfigError(f"{where}: headers_file {name}, line {number}: write NAME: VALUE")
            yield header.strip(), value.strip()
