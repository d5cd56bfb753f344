"""Records out of lines of text: the whole line, the groups of a pattern, or a JSON document.

Under every source that reads lines. Guarantees: a line that is no such record raises `ValueError` with one
sentence that says what was meant. Text is converted by the type of its field: `20.5` fits a float.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from geartrain.errors import SourceError
from geartrain.schema.derive import is_record_type
from geartrain_devices.json_fields import JsonFields, TimedRecords, now_us
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.text_bytes import UTF_8, TextCoding, check_encoding


class LineOptions(ValueOptions):
    """The options of every source that reads lines: how a line becomes a record.

    Args:
        pattern: a regular expression of a whole line; its named groups are fields. Without one a line is the
            field `line`.
        json: each line is a JSON document.
        time: the group, or the path, of the event time; empty where the time of reading is meant.
        fields: groups or paths by field, for those that are not found by their own name.
        encoding: how the text is written where no byte-order mark says so, such as `cp1252`; empty for UTF-8.
    """

    pattern: str = ""
    json: bool = False
    time: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    encoding: str = ""


class LineFields:
    """How lines become records of the type `kind`."""

    def __init__(self, where: str, kind: Any, options: LineOptions) -> None:
        """Raises `SourceError`, which begins with `where`, for options that do not fit each other."""
        check_encoding(where, options.encoding)
        pattern, json, time = options.pattern, options.json, options.time
        if json and pattern:
            raise SourceError(f"{where}: pattern is of lines of text: leave it out, or json = true")
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            at = "" if error.pos is None else f" at its character {error.pos + 1}"
            raise SourceError(
                f"{where}: pattern = {pattern!r} is no regular expression{at} ({error.msg}): correct it; a "
                "character that stands for itself has a \\ before it"
            ) from None
        self._groups = dict.fromkeys(self._pattern.groupindex if self._pattern is not None else ("line",))
        paths = dict(options.fields)
        if not json and not is_record_type(kind):
            paths.setdefault("value", next(iter(self._groups), "line"))
        for name in () if json else (time, *paths.values()):
            if name and name not in self._groups:
                found = ", ".join(self._groups) or "none"
                raise SourceError(f"{where}: there is no group {name!r} in its pattern; its groups: {found}")
        self._json = json
        self._fields = JsonFields(where, kind, time, options, paths, from_text=not json)

    def read(self, raw: bytes, coding: TextCoding = UTF_8) -> tuple[int, Any]:
        """(event time in microseconds, the record) of a line without its ending; raises `ValueError`."""
        if self._json:
            time_us, record = self._fields.read(coding.to_utf8(raw))
        else:
            time_us, record = self._fields.pick(self._document(coding.decode(raw)))
        return now_us() if time_us is None else time_us, record

    def read_all(self, raws: Sequence[bytes]) -> TimedRecords | None:
        """What `read` gives of each of these lines of UTF-8, None where one has to be read by itself."""
        found = self._fields.read_all(raws) if self._json else None
        if found is None:
            return None
        times, records = found
        return [now_us() if time_us is None else time_us for time_us in times], records

    def _document(self, text: str) -> dict[str, Any]:
        if self._pattern is None:
            return {"line": text}
        found = self._pattern.fullmatch(text)
        if found is None:
            raise ValueError("it does not fit the pattern")
        return dict(found.groupdict())
