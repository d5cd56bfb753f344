"""What a syslog message says: RFC 5424, and the older forms that `geartrain_devices.syslog_headers` reads.

Below `geartrain_devices.syslog`, without any network; `geartrain_devices.syslog_frames` says where messages
begin and end. Guarantees: what is no message raises `ValueError` with a sentence. What a message in an older
form says beyond its header is whole in its text.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from geartrain_devices.syslog_headers import Header, read_header
from geartrain_devices.syslog_times import SentTime, SentTimes
from geartrain_devices.text_bytes import NotTextError, decode_text
from geartrain_devices.written_times import TimeOptions

PLAIN: Final = SentTimes("", TimeOptions())
"""Times that say their year and their offset."""
PARAMETERS_MAX = 256
"""Elements and parameters of the structured data of one message, at the most."""

_HEADER = re.compile(
    rb"<(\d{1,3})>([1-9]\d{0,2}) ([!-~]{1,64}) ([!-~]{1,255}) ([!-~]{1,48}) ([!-~]{1,128}) ([!-~]{1,32}) "
)
_ELEMENT = re.compile(rb"\[([!#-<>-\\^-~]{1,32})")
_PARAMETER = re.compile(rb' ([!#-<>-\\^-~]{1,32})="((?:[^"\\\]]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_NEW_FORM = re.compile(rb"[1-9]\d{0,2} (?:-|\d{4}-\d\d-\d\dT[!-~]*) ")
_PRIORITY = re.compile(rb"<(\d{1,3})>")
_VERSION = re.compile(rb"1 ")
_PRIORITY_MAX = 191
_BOM = b"\xef\xbb\xbf"


class Message(msgspec.Struct, frozen=True):
    """What a message says; None for what it leaves out.

    Args:
        facility: 0 to 23.
        severity: 0, the most urgent, to 7.
        version: 1, or 0 for a message that is not in the form of RFC 5424.
        sent: its time.
        data: the parameters of the structured data, by element and name.
    """

    facility: int
    severity: int
    version: int
    sent: SentTime | None
    host: str | None
    app: str | None
    process: str | None
    message_id: str | None
    data: dict[str, dict[str, str]]
    message: str


def parse(raw: bytes, encoding: str = "", times: SentTimes = PLAIN) -> Message:
    """One message.

    Args:
        raw: its bytes.
        encoding: of its text, empty for UTF-8.
        times: how its time is read.

    Returns:
        What it says.

    Raises:
        ValueError: with a sentence, and a code where there is one, for what is no message.
    """
    raw = raw.removeprefix(_BOM)
    priority = _PRIORITY.match(raw)
    if priority is None:
        raise ValueError("it is no syslog message: it does not begin with <PRIORITY>, such as <13>")
    facility, severity = _priority(priority[1])
    header, is_new = _HEADER.match(raw), _NEW_FORM.match(raw, priority.end()) is not None
    older = read_header(raw, priority.end(), times)
    if header is not None and (is_new or raw[header.end() : header.end() + 1] in (b"-", b"[")):
        if not header[5].endswith(b":"):
            return _standard(raw, header, facility, severity, encoding, times)
        older = _behind_version(raw, header.start(3), times) or older
    elif is_new:
        raise ValueError("its header is not one of RFC 5424")
    elif (version := _VERSION.match(raw, priority.end())) and times.begins_own(raw, version.end()):
        older = _behind_version(raw, version.end(), times) or older
    names = (older.host, older.app, older.process)
    text = _text(raw, older.end, encoding)
    return Message(facility, severity, 0, older.sent, *names, None, {}, text)


def _behind_version(raw: bytes, at: int, times: SentTimes) -> Header | None:
    """A header in an older form behind a version, None where no time begins it."""
    found = read_header(raw, at, times)
    return found if found.sent is not None else None


def _standard(
    raw: bytes, header: re.Match[bytes], facility: int, severity: int, encoding: str, times: SentTimes
) -> Message:
    """A message in the form of RFC 5424."""
    version, said, *parts = (part.decode() for part in header.groups()[1:])
    host, app, process, message_id = (None if name == "-" else name for name in parts)
    sent = None if said == "-" else times.read_standard(said)
    data, at = _data(raw, header.end(), encoding)
    if at < len(raw) and raw[at : at + 1] != b" ":
        raise ValueError(f"its structured data has no end at byte {at + 1}")
    text = _text(raw, at + 1, encoding)
    return Message(facility, severity, int(version), sent, host, app, process, message_id, data, text)


def _priority(raw: bytes) -> tuple[int, int]:
    if int(raw) > _PRIORITY_MAX:
        raise ValueError(f"its priority {raw.decode()} is above {_PRIORITY_MAX}")
    return divmod(int(raw), 8)


def _data(raw: bytes, at: int, encoding: str) -> tuple[dict[str, dict[str, str]], int]:
    """The structured data that begins at `at`, and where it ends."""
    if raw[at : at + 1] == b"-":
        return {}, at + 1
    data: dict[str, dict[str, str]] = {}
    count = 0
    while (element := _ELEMENT.match(raw, at)) is not None:
        parameters = data.setdefault(element[1].decode(), {})
        at = element.end()
        while (found := _PARAMETER.match(raw, at)) is not None:
            name = found[1].decode()
            try:
                parameters[name] = _ESCAPED.sub(r"\1", decode_text(found[2], encoding))
            except NotTextError as error:
                raise NotTextError(f"parameter {name} of its structured data: {error}", error.code) from None
            at, count = found.end(), count + 1
        count += 1
        if raw[at : at + 1] != b"]" or count > PARAMETERS_MAX:
            why = f"more than {PARAMETERS_MAX} parameters" if count > PARAMETERS_MAX else "no end"
            raise ValueError(f"its structured data has {why} at byte {at + 1}")
        at += 1
    if not data:
        raise ValueError(f"it has no structured data at byte {at + 1}, and no - in its place")
    return data, at


def _text(raw: bytes, at: int, encoding: str) -> str:
    try:
        return decode_text(raw[at:], encoding)
    except NotTextError as error:
        raise NotTextError(f"its text: {error}", error.code) from None
