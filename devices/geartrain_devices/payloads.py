"""Payloads of MQTT as records: JSON, text, a number or bytes, with the levels of the topic beside them.

Below `geartrain_devices.mqtt_topic`, without any connection. Guarantees: a payload that is no such record
raises `ValueError` with a sentence that says which option reads it, if one does. A number is read exactly as
it is written.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from geartrain.errors import SourceError
from geartrain.schema.derive import field_names, is_record_type
from geartrain_devices.json_fields import JsonFields
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.no_record import NAN, NOT_JSON, NoRecordError, code_of
from geartrain_devices.text_bytes import as_utf8, check_encoding, decode_text

PayloadKind = Literal["json", "text", "number", "bytes"]
VALUE, TOPIC = "$value", "$topic"
NUMBER_CHARS_MAX = 1_000

NOT_A_NUMBER: Final = "not_a_number"

_NUMBER = re.compile(rb"([+-]?)(\d*)(?:\.(\d*))?([eE][+-]?\d+)?")

_NAN = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


class Payloads:
    """How the payloads of one source become records."""

    def __init__(
        self,
        where: str,
        kind: Any,
        payload: PayloadKind,
        time: str,
        options: ValueOptions,
        paths: Mapping[str, str],
        encoding: str = "",
    ) -> None:
        """where: how sentences begin; kind: the type of the records; the others are options of the source.
        Raises `SourceError`.
        """
        check_encoding(where, encoding)
        self._payload, self._encoding, self._takes_nan = payload, encoding, options.nan
        names = field_names(kind) if is_record_type(kind) else ("value",)
        hints = typing.get_type_hints(kind, include_extras=True) if is_record_type(kind) else {"value": kind}
        paths = dict(paths)
        if payload != "json":
            if "value" in names:
                paths.setdefault("value", VALUE)
            _check_parts(where, payload, time, paths)
        for name, path in paths.items():
            if path == TOPIC:
                raise SourceError(
                    f'{where}: fields.{name} = "{TOPIC}" is the list of all levels: name one of them, as in '
                    f'"{TOPIC}[1]"'
                )
        self._fields = JsonFields(where, kind, time, options, paths)
        whole = [hints[name] for name in names if paths.get(name) == VALUE]
        self._is_text = bool(whole) and all(map(_is_text, whole))
        if payload == "number" and whole and self._is_text:
            raise SourceError(
                f'{where}: payload = "number" gives a number, and the field at {VALUE} is a text: set '
                'payload = "text", or have the field be a float, an int or a Decimal'
            )

    def read(self, topic: str, raw: bytes) -> tuple[int | None, Any]:
        """(event time in microseconds or None where a payload has none, the record); raises `ValueError`."""
        if self._payload == "json":
            return self._read_json(topic, raw)
        if self._payload == "number":
            return self._fields.read(_number(as_utf8(raw, self._encoding), self._takes_nan), topic)
        return self._pick(topic, raw if self._payload == "bytes" else decode_text(raw, self._encoding))

    def _pick(self, topic: str, value: str | bytes) -> tuple[int | None, Any]:
        return self._fields.pick({VALUE: value, TOPIC: topic.split("/")})

    def _read_json(self, topic: str, raw: bytes) -> tuple[int | None, Any]:
        raw = as_utf8(raw, self._encoding)
        try:
            return self._fields.read(raw, topic)
        except ValueError as error:
            text = decode_text(raw)  # else its sentence, which names the byte and the option
            form, found = _form(raw)
            if self._is_text and form in ("no JSON", "a number", "true or false"):
                return self._pick(topic, text)
            if form == "no JSON":
                raise NoRecordError(
                    f'it is not JSON: it is {found}; set payload = "text" for texts as they stand', NOT_JSON
                ) from None
            if form in ("a number", "a text", "true or false"):
                raise NoRecordError(
                    f"the whole payload is {form}, {found}, which fits no record: {error}; set fields so "
                    f'that a field of that type is at "{VALUE}", or payload = "text"',
                    code_of(error),
                ) from None
            raise


def _check_parts(where: str, payload: str, time: str, paths: Mapping[str, str]) -> None:
    """Raise `SourceError` for what a payload without parts cannot have."""
    if time and not time.startswith(f"{TOPIC}["):
        raise SourceError(
            f'{where}: time = "{time}" cannot be read where payload = "{payload}": such a payload has no '
            "parts; leave time out for the time of arrival"
        )
    for name, path in paths.items():
        if path != VALUE and not path.startswith(TOPIC):
            raise SourceError(
                f'{where}: fields.{name} = "{path}" cannot be read where payload = "{payload}": such a '
                f'payload has no parts; write "{VALUE}" for all of it, or "{TOPIC}[1]" for a level of '
                "the topic"
            )
    if VALUE not in paths.values():
        raise SourceError(
            f'{where}: payload = "{payload}", but no field has the payload: set fields.NAME = "{VALUE}"'
        )


def _is_text(hint: Any) -> bool:
    """Whether a field takes texts and nothing else but None."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(hint) if one is not types.NoneType]
        return bool(kinds) and all(map(_is_text, kinds))
    return hint is str


def _form(raw: bytes) -> tuple[str, str]:
    """What a payload is, and its beginning, for a sentence."""
    shown = repr(raw[:40].decode(errors="replace")) + ("..." if len(raw) > 40 else "")
    if raw.lstrip()[:1] in (b"{", b"["):
        try:
            msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            return "broken JSON", shown
        return "an object or a list", shown
    try:
        found = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return "no JSON", shown
    if found is None:
        return "null", shown
    if isinstance(found, bool):
        return "true or false", shown
    return ("a text" if isinstance(found, str) else "a number"), shown


def _number(raw: bytes, takes_nan: bool) -> bytes:
    """A number as JSON writes it: `+07.50` is `7.50`; NaN and infinity as texts, which `nan` reads."""
    if takes_nan and _NAN.fullmatch(raw.strip()):
        return b'"%s"' % raw.strip()
    if _NAN.fullmatch(raw.strip()):
        raise NoRecordError(f"it is {raw.strip().decode()!r}: set nan = true to read it", NAN)
    found = _NUMBER.fullmatch(raw.strip())
    if found is None or not (found[2] or found[3]) or len(raw) > NUMBER_CHARS_MAX:
        shown = repr(raw[:40].decode(errors="replace"))
        raise NoRecordError(
            f'it is no number such as 21.5: it is {shown}; set payload = "text" for texts as they stand',
            NOT_A_NUMBER,
        )
    sign = b"-" if found[1] == b"-" else b""
    fraction = b"." + found[3] if found[3] else b""
    return sign + (found[2].lstrip(b"0") or b"0") + fraction + (found[4] or b"")
