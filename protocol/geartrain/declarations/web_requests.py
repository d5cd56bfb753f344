"""What the requests of a `WebhookSink` may have: an address, headers, and files for TLS.

Asked when a flow is planned or submitted, and again before each request. Guarantees: no secret stands in
an option, and none in a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from geartrain.errors import ConfigError
from geartrain.printable import is_word

OURS = frozenset(("content-length", "content-type", "host", "idempotency-key", "transfer-encoding"))
"""The headers that the sink says itself."""
_ADDRESS = re.compile(
    r"https?://(?:(?P<user>[^/?#]*)@)?(?:[^/?#@:\[\]]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{0,5}))?(?:[/?#].*)?",
    re.ASCII | re.IGNORECASE,
)
_SECRET = re.compile(r"authorization|cookie|token|secret|password|api-?key", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)


def address_fault(url: str) -> str:
    """Why a text is no address to which a request can go.

    Args:
        url: the address as it was written.

    Returns:
        Half a sentence, empty for an address.

    >>> address_fault("https://hooks.example/alerts")
    ''
    >>> address_fault("hooks.example")
    'is no address, such as https://hooks.example/alerts'
    """
    found = _ADDRESS.fullmatch(url) if is_word(url) else None
    if found is None or not 0 < int(found["port"] or 80) <= 65_535:
        return "is no address, such as https://hooks.example/alerts"
    if found["user"] is not None:
        return "holds a name or a password, which belong into headers or a headers_file"
    return ""


def checked_headers(where: str, option: str, headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The headers as they are.

    Args:
        where: how the sentence of an error begins, such as `sink 'out'`.
        option: where they stand: `headers` or `headers_file`.
        headers: names and values.

    Yields:
        Each name with its value.

    Raises:
        ConfigError: a name or a value that no header can have, or a header that is not for a user.
    """
    for number, (name, value) in enumerate(headers, 1):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: {option}: header {number} has a name that cannot be one")
        if name.lower() in OURS:
            raise ConfigError(f"{where}: {option}: {name} is for the sink to say: leave it out")
        if not value.isascii() or not value.isprintable():
            raise ConfigError(f"{where}: {option}: the value of {name} has characters that no header takes")
        yield name, value


def check_open_headers(where: str, headers: Iterable[tuple[str, str]]) -> None:
    """Refuse headers that stand in a flow and must not: those of `checked_headers`, and secrets.

    Args:
        where: how the sentence of an error begins, such as `sink 'out'`.
        headers: names and values, without those whose value is `secret:NAME`.

    Raises:
        ConfigError: one sentence that says what to do.
    """
    for name, _ in checked_headers(where, "headers", headers):
        if _SECRET.search(name):
            raise ConfigError(
                f"{where}: headers hold {name}: write secret:NAME in its place, or set headers_file"
            )
