"""Syslog as bytes: where messages end in a stream (RFC 6587, 5425), and what one says (RFC 5424, 3164).

Below `geartrain_devices.syslog`, without any network. Guarantees: what is buffered is bounded by the cap of a
message; what is no message raises `ValueError` with a sentence, or comes with the reason and its bytes. Each
byte is looked at a bounded number of times.
"""

from __future__ import annotations

import re

import msgspec

from geartrain.records.event_time import parse_time
from geartrain_devices.text_bytes import not_utf8

PARAMETERS_MAX = 256
"""Elements and parameters of the structured data of one message, at the most."""

_HEADER = re.compile(
    rb"<(\d{1,3})>([1-9]\d{0,2}) ([!-~]{1,64}) ([!-~]{1,255}) ([!-~]{1,48}) ([!-~]{1,128}) ([!-~]{1,32}) "
)
_ELEMENT = re.compile(rb"\[([!#-<>-\\^-~]{1,32})")
_PARAMETER = re.compile(rb' ([!#-<>-\\^-~]{1,32})="((?:[^"\\\]]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_LEGACY = re.compile(
    rb"<(\d{1,3})>(?:(?:[A-Z][a-z]{2}) [ \d]\d \d\d:\d\d:\d\d ([!-~]{1,255}) )?"
    rb"(?:([!-9;-Z\\^-~]{1,48})(?:\[([!-Z\\^-~]{1,128})\])?: ?)?"
)
_PRIORITY_MAX = 191
_BOM = b"\xef\xbb\xbf"


class Message(msgspec.Struct, frozen=True):
    """What a message says; None for what it leaves out.

    Args:
        facility: 0 to 23.
        severity: 0, the most urgent, to 7.
        version: 1, or 0 for a message in the form of RFC 3164.
        time: as it says, microseconds since 1970 UTC. RFC 3164 names neither year nor zone: None.
        data: the parameters of the structured data, by element and name.
    """

    facility: int
    severity: int
    version: int
    time: int | None
    host: str | None
    app: str | None
    process: str | None
    message_id: str | None
    data: dict[str, dict[str, str]]
    message: str


def parse(raw: bytes) -> Message:
    """One message; raises `ValueError` with a sentence for what is none."""
    header = _HEADER.match(raw)
    if header is None:
        return _legacy(raw)
    facility, severity = _priority(header[1])
    version, said, *names = (part.decode() for part in header.groups()[1:])
    host, app, process, message_id = (None if name == "-" else name for name in names)
    time_us = None
    if said != "-":
        if _TIME.fullmatch(said) is None:
            raise ValueError(f"its time {said!r} is not one of RFC 5424")
        time_us = parse_time(said)
    data, at = _data(raw, header.end())
    if at < len(raw) and raw[at : at + 1] != b" ":
        raise ValueError(f"its structured data has no end at byte {at + 1}")
    text = _text(raw, at + 1)
    return Message(facility, severity, int(version), time_us, host, app, process, message_id, data, text)


def _legacy(raw: bytes) -> Message:
    """A message as RFC 3164 has seen them: of what the pattern does not find, the rest is the message."""
    header = _LEGACY.match(raw)
    if header is None:
        raise ValueError("it is no syslog message: it does not begin with <PRIORITY>")
    if re.match(rb"[1-9]\d{0,2} ([!-~]{1,64} ){2}", raw[len(header[1]) + 2 :]):
        raise ValueError("its header is not one of RFC 5424")
    facility, severity = _priority(header[1])
    host, app, process = (part.decode() if part is not None else None for part in header.groups()[1:])
    return Message(facility, severity, 0, None, host, app, process, None, {}, _text(raw, header.end()))


def _priority(raw: bytes) -> tuple[int, int]:
    if int(raw) > _PRIORITY_MAX:
        raise ValueError(f"its priority {raw.decode()} is above {_PRIORITY_MAX}")
    return divmod(int(raw), 8)


def _data(raw: bytes, at: int) -> tuple[dict[str, dict[str, str]], int]:
    """The structured data that begins at `at`, and where it ends."""
    if raw[at : at + 1] == b"-":
        return {}, at + 1
    data: dict[str, dict[str, str]] = {}
    count = 0
    while (element := _ELEMENT.match(raw, at)) is not None:
        parameters = data.setdefault(element[1].decode(), {})
        at = element.end()
        while (found := _PARAMETER.match(raw, at)) is not None:
            if (problem := not_utf8(found[2])) is not None:
                raise ValueError(f"parameter {found[1].decode()} of its structured data: {problem}")
            parameters[found[1].decode()] = _ESCAPED.sub(r"\1", found[2].decode())
            at, count = found.end(), count + 1
        count += 1
        if raw[at : at + 1] != b"]" or count > PARAMETERS_MAX:
            why = f"more than {PARAMETERS_MAX} parameters" if count > PARAMETERS_MAX else "no end"
            raise ValueError(f"its structured data has {why} at byte {at + 1}")
        at += 1
    if not data:
        raise ValueError(f"it has no structured data at byte {at + 1}, and no - in its place")
    return data, at


def _text(raw: bytes, at: int) -> str:
    text = raw[at:].removeprefix(_BOM)
    if (problem := not_utf8(text)) is not None:
        raise ValueError(f"its text: {problem}")
    return text.decode()
