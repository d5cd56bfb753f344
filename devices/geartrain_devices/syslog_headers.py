"""The headers of syslog messages that are not in the form of RFC 5424: RFC 3164, and what senders make of it.

Below `geartrain_devices.syslog_messages`. A header is a time, a host, and a tag: an app and its process.
Guarantees: a part is taken only where its form leaves no doubt, and only behind the parts that come before
it. What is not taken stays in the message with all that follows. So no number, zone or first word of a text
becomes an app or a host. `geartrain_devices.syslog_times` says what is a time, and what value it has.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

import msgspec

from geartrain_devices.syslog_times import SentTime, SentTimes, begins_old_time

_SPACES = re.compile(rb" +")
_WORD = re.compile(rb"[!-~]{1,255}(?= |\Z)")
_HOST = re.compile(
    r"(?=[^ ]*[A-Za-z_])[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?|\d{1,3}(?:\.\d{1,3}){3}"
)
_TAG = re.compile(
    rb"(?P<app>(?=[^ \[:]*[A-Za-z])[A-Za-z0-9_./(][A-Za-z0-9_./@+#()-]{0,47})"
    rb"(?:\[(?P<process>[!-Z\\^-~]{0,128})\]:(?: |(?=[!-~])|\Z)|:(?: +|\Z))"
)
_CODED_TEXT = re.compile(rb"%[A-Z0-9_]+-")
"""How texts of network devices begin, such as `%SEC_LOGIN-5-LOGIN_SUCCESS`: what is before them is no app."""
_REPEATED = re.compile(rb"last message repeated ")


class Header(msgspec.Struct, frozen=True):
    """What stands before the text of a message.

    Args:
        end: where the text begins, an index of the bytes.
        sent: the time, None where there is none.
        host: a name or an address.
        app: the name in the tag.
        process: what stands in brackets behind it.
    """

    end: int
    sent: SentTime | None = None
    host: str | None = None
    app: str | None = None
    process: str | None = None


def read_header(raw: bytes, at: int, times: SentTimes) -> Header:
    """The header of a message that begins at `at`, behind its priority."""
    begin = _behind_spaces(raw, at)
    found = times.find(raw, begin)
    end, sent, host = at, None, None
    if found is not None:
        end, sent = found
        host, end = _read_host(raw, _behind_spaces(raw, end))
    tag = _TAG.match(raw, begin if sent is None else end)
    if tag is None or _is_no_app(raw, tag.end()):
        return Header(end, sent, host)
    process = tag["process"].decode() if tag["process"] else None
    return Header(tag.end(), sent, host, tag["app"].decode(), process)


def _behind_spaces(raw: bytes, at: int) -> int:
    spaces = _SPACES.match(raw, at)
    return at if spaces is None else spaces.end()


def _read_host(raw: bytes, at: int) -> tuple[str | None, int]:
    """The host behind the time, and where the rest begins."""
    word = _WORD.match(raw, at)
    if word is None or word.end() == len(raw) or _REPEATED.match(raw, at):
        return None, at
    name, end = word[0].decode(), _behind_spaces(raw, word.end())
    if name == "-":
        return None, end
    return (name, end) if _HOST.fullmatch(name) or _is_ipv6(name) else (None, at)


def _is_ipv6(name: str) -> bool:
    try:
        IPv6Address(name)
    except ValueError:
        return False
    return True


def _is_no_app(raw: bytes, at: int) -> bool:
    """Whether what stands before is the host or the zone of a network device: a time or a code follows."""
    return _CODED_TEXT.match(raw, at) is not None or begins_old_time(raw, at)
