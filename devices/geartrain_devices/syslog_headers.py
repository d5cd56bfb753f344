"""The headers of syslog messages that are not in the form of RFC 5424: RFC 3164, and what senders make of it.

Below `geartrain_devices.syslog_messages`. A header is a time, a host, and a tag: an app and its process.
Guarantees: a part is taken only where its form leaves no doubt, and only behind the parts that come before
it. What is not taken stays in the message with all that follows. So no number, zone or first word of a text
becomes an app or a host. The time of RFC 3164 names no zone: only a time with year and offset has a value.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

import msgspec

from geartrain.records.event_time import parse_time

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<clock>\d?\d:\d\d:\d\d)(?P<fraction>[.,]\d{1,9})?"
_ZONES = (
    "UTC|GMT|WES?T|CES?T|EES?T|MSK|BST|IST|[ECMP][SD]T|AK[SD]T|HST|JST|KST|SGT|HKT|SAST|A[EC][SD]T|AWST|"
    "NZ[SD]T"
)
_OLD_TIME = re.compile(
    rf"(?:(?P<year_first>\d{{4}}) )?(?P<month>{'|'.join(_MONTHS)}) {{1,2}}(?P<day>\d?\d)"
    rf"(?: (?P<year>\d{{4}}))? {{1,2}}{_CLOCK}"
    rf"(?: (?P<year_last>\d{{4}})(?= ))?"
    rf"(?: ?(?P<zone>Z|[+-]\d\d:?\d\d)(?= )| (?P<word>{_ZONES})(?= ))?".encode()
)
_ISO_TIME = re.compile(rf"(?P<date>\d{{4}}-\d\d-\d\d)[T ]{_CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d)?".encode())
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
        sent_text: the time as it is written, None where there is none.
        time: microseconds since 1970 UTC, None where the time lacks its year or its offset.
        host: a name or an address.
        app: the name in the tag.
        process: what stands in brackets behind it.
    """

    end: int
    sent_text: str | None = None
    time: int | None = None
    host: str | None = None
    app: str | None = None
    process: str | None = None


def read_header(raw: bytes, at: int) -> Header:
    """The header of a message that begins at `at`, behind its priority."""
    begin = _behind_spaces(raw, at)
    found = _read_time(raw, begin)
    end, sent_text, time_us = found if found is not None else (at, None, None)
    host = None
    if found is not None:
        end = _behind_spaces(raw, end)
        host, end = _read_host(raw, end)
    tag = _TAG.match(raw, begin if found is None else end)
    if tag is None or _is_no_app(raw, tag.end()):
        return Header(end, sent_text, time_us, host)
    process = tag["process"].decode() if tag["process"] else None
    return Header(tag.end(), sent_text, time_us, host, tag["app"].decode(), process)


def _behind_spaces(raw: bytes, at: int) -> int:
    spaces = _SPACES.match(raw, at)
    return at if spaces is None else spaces.end()


def _read_time(raw: bytes, at: int) -> tuple[int, str, int | None] | None:
    """(its end, as it is written, its value) of a time that a space or the end follows."""
    found = _ISO_TIME.match(raw, at) or _OLD_TIME.match(raw, at)
    if found is None or raw[found.end() : found.end() + 1] not in (b" ", b""):
        return None
    parts = {name: part.decode() if part is not None else "" for name, part in found.groupdict().items()}
    date = parts.get("date") or _date_of(parts)
    clock = f"{parts['clock'].zfill(8)}{parts['fraction'].replace(',', '.')}"
    zone = parts["zone"] or ("Z" if parts.get("word") in ("UTC", "GMT") else "")
    if zone and ":" not in zone and zone != "Z":
        zone = f"{zone[:3]}:{zone[3:]}"
    try:  # without its year a time is checked in a leap year
        time_us = parse_time(f"{date or _date_of(parts, '2000')}T{clock}{zone}")
    except ValueError:
        return None
    return found.end(), found[0].decode(), time_us if date and zone else None


def _date_of(parts: dict[str, str], year: str = "") -> str:
    year = year or parts["year_first"] or parts["year"] or parts["year_last"]
    return year and f"{year}-{_MONTHS.index(parts['month']) + 1:02d}-{int(parts['day']):02d}"


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
    return _CODED_TEXT.match(raw, at) is not None or _OLD_TIME.match(raw, at) is not None
