"""What is wrong with bytes that are no JSON: the first fault, as a person would name it.

Beside the reading of JSON, where a decoder has refused a document. Guarantees: the same bytes give the same
sentence, whatever decoder refused them. Each byte is looked at a bounded number of times, and nothing
recurses.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from geartrain_devices.no_record import NAN, NOT_JSON

TRUNCATED: Final = "truncated"
"""The code of a reject that ends in the middle of a document."""

_ONE: Final = "write each document as a line of its own"
_DEPTH_MAX: Final = 500
_TOKEN = re.compile(
    rb'[{}\[\],:]|"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
    rb"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_.+-])"
    rb"|(?:true|false|null)(?![0-9A-Za-z_])"
)
_WORD = re.compile(rb"[+-]?[0-9A-Za-z_.][0-9A-Za-z_.+-]*")
_TEXT = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F])|.)", re.DOTALL
)
_NANS: Final = (b"NaN", b"Infinity", b"-Infinity")
_PYTHON: Final = (b"True", b"False", b"None")


class Fault(msgspec.Struct, frozen=True):
    """Why bytes are no JSON: half a sentence, of which they are the subject, and a code."""

    text: str
    code: str = NOT_JSON


def fault_of(raw: bytes) -> Fault:
    """The first fault of bytes that a decoder has refused.

    Args:
        raw: UTF-8 text.

    Returns:
        The fault. Where the grammar finds none, what else a decoder refuses.
    """
    open_at: list[bytes] = []
    at, wanted, before = _skip(raw, 0), "value", b""
    if at == len(raw):
        return Fault("is empty: it must be a JSON document", TRUNCATED)
    while at < len(raw):
        found = _TOKEN.match(raw, at)
        if found is None:
            return _unknown(raw, at, wanted)
        fault = _misplaced(found[0], at, wanted, before)
        if fault is not None:
            return fault
        wanted, before = _wanted_after(found[0], wanted, open_at), found[0]
        if len(open_at) > _DEPTH_MAX:
            return Fault(f"is nested deeper than {_DEPTH_MAX} levels, at byte {at + 1}")
        at = _skip(raw, found.end())
    if wanted != "end":
        return Fault(f"ends after {len(raw)} bytes in the middle of a document", TRUNCATED)
    if any(found["half"] for found in _ESCAPE.finditer(raw)):
        return Fault("holds half of a surrogate pair (\\ud800 to \\udfff), which is no character")
    return Fault("holds a number that is too long, or is nested too deep")


def _skip(raw: bytes, at: int) -> int:
    """Where the next byte stands that is no space."""
    while at < len(raw) and raw[at] in b" \t\r\n":
        at += 1
    return at


def _wanted_after(token: bytes, wanted: str, open_at: list[bytes]) -> str:
    """What may follow a token that stands where it may; open_at: the brackets that are open, which it
    changes.
    """
    if token == b"{":
        open_at.append(token)
        return "name or }"
    if token == b"[":
        open_at.append(token)
        return "value or ]"
    if token == b",":
        return "name" if open_at[-1] == b"{" else "value"
    if token == b":":
        return "value"
    if token in b"}]":
        open_at.pop()
    elif wanted.startswith("name"):
        return ":"
    if not open_at:
        return "end"
    return ", or }" if open_at[-1] == b"{" else ", or ]"


def _misplaced(token: bytes, at: int, wanted: str, before: bytes) -> Fault | None:
    """Why a token cannot stand where it does, None where it can."""
    if wanted == "end":
        return Fault(f"goes on behind the end of a document, at byte {at + 1}: {_ONE}")
    if token in b"}]" and before == b",":
        return Fault(f"has a comma before {token.decode()}, at byte {at + 1}: JSON takes none there")
    kind = token.decode() if token in b"{}[],:" else "name" if token[:1] == b'"' else "value"
    is_value = kind in ("name", "value", "{", "[")
    if wanted.startswith("name"):
        is_fitting = kind == "name" or (kind == "}" and wanted != "name")
    elif wanted.startswith("value"):
        is_fitting = is_value or (kind == "]" and wanted != "value")
    else:
        is_fitting = kind in wanted
    if is_fitting:
        return None
    shown = token[:20].decode(errors="replace")
    meant = f"{wanted} is meant".replace("name", "a name in double quotes").replace("value", "a value")
    return Fault(f"has {shown} at byte {at + 1}, where {meant}")


def _unknown(raw: bytes, at: int, wanted: str) -> Fault:
    """What stands at a byte that begins no token."""
    where = f"at byte {at + 1}"
    if raw[at : at + 1] == b'"':
        return _broken_text(raw, at)
    if raw[at : at + 1] == b"'":
        return Fault(
            f"has a text in single quotes {where}, as Python prints a dict: JSON has double quotes, as "
            "json.dumps writes"
        )
    if raw[at : at + 1] in b"/#":
        return Fault(f"has a comment {where}, which JSON has not")
    word = found[0] if (found := _WORD.match(raw, at)) is not None else b""
    shown = word[:20].decode(errors="replace")
    if word in _NANS:
        return Fault(f"holds {shown} {where}, which is no JSON: set nan = true to read it", NAN)
    if word in _PYTHON:
        return Fault(f"has {shown} {where}, as Python prints it: JSON has true, false and null")
    if wanted == "end":
        return Fault(f"goes on behind the end of a document, {where}: {_ONE}")
    if raw[at:] == b"-" or (found is not None and found.end() == len(raw) and _is_begun(word)):
        return Fault(f"ends after {len(raw)} bytes in the middle of a document", TRUNCATED)
    if word[:1] in b"+-.0123456789" and word:
        return Fault(f"has {shown} {where}, which is not how JSON writes a number")
    if word and wanted.startswith("name"):
        return Fault(f"has the name {shown} {where} without double quotes")
    shown = shown or f"the byte 0x{raw[at]:02x}"
    return Fault(f"has {shown} {where}, which JSON has not")


def _is_begun(word: bytes) -> bool:
    """Whether a word is the beginning of one that JSON has."""
    return any(whole.startswith(word) for whole in (b"true", b"false", b"null"))


def _broken_text(raw: bytes, at: int) -> Fault:
    found = _TEXT.match(raw, at)
    end = found.end() if found is not None else at
    if end == len(raw) or _HALF_ESCAPE.match(raw, end):
        return Fault(f"ends after {len(raw)} bytes in the middle of a text", TRUNCATED)
    if raw[end : end + 1] == b"\\":
        shown = raw[end : end + 2].decode(errors="replace")
        return Fault(f"has the escape {shown} at byte {end + 1}, which JSON has not")
    what = f"the control character 0x{raw[end]:02x} at byte {end + 1} within a text"
    return Fault(f"has {what}: write it as \\u00{raw[end]:02x}")
