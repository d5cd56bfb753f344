"""Records out of JSON documents: which part of a document is which field, and what is its event time.

Under every source that reads JSON. A path is names and indexes as in `state.readings[0].value`; a field
without one is found by its own name at the top. Guarantees: a document that is no such record raises
`ValueError` with one sentence that names the field, and a code. Numbers are read exactly as they are written.
Of a name that stands twice in an object, the last value counts.

Where each field is a plain value at the top, a decoder that is made for the document's keys reads it
(`TypedReader`). It gives to the last bit what the paths would have given. What it refuses is read again by
the paths, so that reasons come from one place.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any

import msgspec

from geartrain.errors import SourceError
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME
from geartrain.schema import Field, FieldType, RowCodec, Schema
from geartrain.schema.derive import field_names, is_record_type
from geartrain.schema.storable import INT64
from geartrain.source import Source
from geartrain_devices.json_faults import fault_of
from geartrain_devices.json_values import (
    ValueOptions,
    Values,
    defaults_of,
    shown_value,
)
from geartrain_devices.no_record import BAD_TIME, MISSING_VALUE, NAN, NoRecordError
from geartrain_devices.text_bytes import not_utf8
from geartrain_devices.written_times import NoTimeError, Times, now_us

__all__ = ["JsonFields", "now_us", "parse_path"]

DOCUMENT_BYTES_MAX = 1 << 20
_STEP = re.compile(r"(?:^|\.)([^.\[\]]+)|\[(\d+)\]")


def parse_path(text: str) -> Path:
    """The steps of a path; raises `ValueError` with a sentence.

    >>> parse_path("state.readings[0].value")
    ('state', 'readings', 0, 'value')
    """
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            break
        steps.append(found[1] if found[1] is not None else int(found[2]))
        at = found.end()
    if not steps or at < len(text):
        raise ValueError(f"{text!r} is not a path such as temperature or state.readings[0].value")
    return tuple(steps)


class JsonFields:
    """How documents become records of the type `kind`."""

    def __init__(
        self,
        where: str,
        kind: Any,
        time_path: str,
        options: ValueOptions,
        paths: Mapping[str, str],
        *,
        from_text: bool = False,
    ) -> None:
        """time_path: where the event time stands, empty where a document has none; options: how times and
        values are written, most often the source itself; paths: by field; from_text: values are texts, and
        converted: "20.5" fits a float. Raises `SourceError`, which begins with `where`.
        """
        by_clock = isinstance(options, Source) and not options.replayable
        self._times = Times(where, options, by_clock=by_clock)
        self.takes_nan = options.nan
        """Whether documents may have NaN and infinity."""
        self._kind, self._codec = kind, RowCodec(kind)
        names = field_names(kind) if is_record_type(kind) else ("value",)
        hints = typing.get_type_hints(kind, include_extras=True) if is_record_type(kind) else {"value": kind}
        unknown = sorted(set(paths) - set(names))
        if unknown:
            raise SourceError(f"{where}: there is no field {unknown[0]!r}; its fields: {', '.join(names)}")
        values = Values(self._times, options, from_text=from_text)
        try:
            self._time_path = parse_path(time_path) if time_path else ()
            self._fields = [
                (name, parse_path(paths.get(name, name)), values.reader(hints[name])) for name in names
            ]
        except ValueError as error:
            raise SourceError(f"{where}: {error}") from None
        self._is_record = is_record_type(kind)
        self._defaults = defaults_of(kind) if self._is_record else set()
        first = [path[0] for _, path, _ in self._fields]
        self._needs_object = not self._time_path and all(
            isinstance(step, str) and not step.startswith("$") for step in first
        )
        self._typed = self._typed_reader()

    def _typed_reader(self) -> TypedReader | None:
        """How most documents are read, None where paths have to be walked."""
        fields = plain_fields(self._kind, self._codec.schema, [path for _, path, _ in self._fields])
        key, *deeper = self._time_path or (None,)
        if fields is None or deeper or isinstance(key, int) or str(key).startswith("$"):
            return None
        # A time is read exactly as it is written, where a float field may hold another number.
        if any(field.key == key and field.hint not in (str, INT64) for field in fields):
            return None
        return TypedReader(self._kind, fields, key, self._time_of, self._times)

    def read(self, raw: bytes, topic: str | None = None) -> tuple[int | None, Any]:
        """(event time in microseconds or None where documents have none, the record).

        topic: where the document came from; its levels are then at `$topic`, and a document that is no object
        is at `$value`.
        """
        if len(raw) > DOCUMENT_BYTES_MAX:
            raise ValueError(f"it is longer than {DOCUMENT_BYTES_MAX} bytes")
        typed = self._typed
        if typed is not None and (found := typed.read(_with_signs(raw))) is not None:
            return found
        document = decode_document(raw, takes_nan=self.takes_nan)
        if typed is not None:
            typed.learn(document)
        if self._needs_object and not isinstance(
            document, dict
        ):  # else a record of None, where fields may be None
            name, path, _ = self._fields[0]
            raise self._missing(document, name, path)
        if topic is not None:
            levels = {"$topic": topic.split("/")}
            document = document | levels if isinstance(document, dict) else {"$value": document} | levels
        return self.pick(document)

    def read_all(self, raws: Sequence[bytes]) -> TimedRecords | None:
        """What `read` gives of each of these documents, None where one of them has to be read by itself."""
        typed = self._typed
        if typed is None or not raws or max(map(len, raws)) > DOCUMENT_BYTES_MAX:
            return None
        if _MINUS_ZERO.search(b"\n".join(raws)) is not None:
            raws = list(map(_with_signs, raws))
        return typed.read_all(raws)

    def pick(self, document: Any) -> tuple[int | None, Any]:
        """The same of a document that is decoded already."""
        time_us = self._time_of(_at(document, self._time_path)) if self._time_path else None
        values = {}
        for (name, path, reading), field in zip(self._fields, self._codec.schema.fields, strict=True):
            part = _at(document, path)
            if part is not None:
                at = _text(path)
                values[name] = reading(part, f"field {name}" if at == name else f"field {name}, at {at},")
            elif name not in self._defaults:
                if not field.optional:
                    raise self._missing(document, name, path)
                values[name] = None
        record = self._kind(**values) if self._is_record else values["value"]
        fitting, wrong = self._codec.conform([record])
        if wrong:
            raise ValueError(wrong[0][1])
        return time_us, fitting[0]

    @staticmethod
    def _missing(document: Any, name: str, path: Path) -> NoRecordError:
        """Why a field has no value that counts."""
        if _is_in(document, path):
            why = f"field {name} is null: give it a default, or a type with | None"
        elif isinstance(document, dict) or not isinstance(path[0], str):
            why = f"it has no {_text(path)}: say in fields where field {name} stands, or give it a default"
        else:
            why = f"it is {shown_value(document)}, and must be an object with {_text(path)}"
        return NoRecordError(why, MISSING_VALUE)

    def lacking(self, documents: Sequence[Any]) -> str:
        """The path that a record needs and none of the documents has, "" where each is in one of them.

        A record needs the time, and each field that has no default and takes no null.
        """
        needed = [self._time_path] if self._time_path else []
        needed += [
            path
            for field, (name, path, _) in zip(self._codec.schema.fields, self._fields, strict=True)
            if name not in self._defaults and not field.optional
        ]
        return next((_text(path) for path in needed if not any(_is_in(one, path) for one in documents)), "")

    def _time_of(self, found: Any) -> int:
        """The event time of what stands at its path; raises `ValueError` with a sentence."""
        if not isinstance(found, str | int | Decimal | float) or isinstance(found, bool):
            at = _text(self._time_path)
            raise NoRecordError(
                f"it has no time at {at}"
                + ("" if found is None else f", but {shown_value(found)}: a text or a number is meant"),
                BAD_TIME,
            )
        try:
            return self._times.event_time(found)
        except NoTimeError as error:
            raise NoRecordError(f"its time {error}", BAD_TIME) from None


_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_MINUS_ZERO = re.compile(rb"-0(?<![^\s:,\[]-0)(?![0-9.eE])")
"""As a number, which follows on a space or on one of these signs; a text may hold such, too."""
_TEXT_OR_MINUS_ZERO = re.compile(rb'"(?:[^"\\]|\\.)*"|-0(?![0-9.eE])', re.DOTALL)


def _with_signs(raw: bytes) -> bytes:
    """A document whose `-0`, as PostgreSQL and Go write the float -0.0, are numbers that keep their sign."""
    if _MINUS_ZERO.search(raw) is None:
        return raw
    return _TEXT_OR_MINUS_ZERO.sub(lambda found: b"-0e0" if found[0] == b"-0" else found[0], raw)


def decode_document(raw: bytes, *, takes_nan: bool = False) -> Any:
    """A document of JSON, its numbers with a point as `Decimal`.

    Args:
        raw: its bytes.
        takes_nan: whether NaN, Infinity and -Infinity are read, as floats.

    Returns:
        Objects as dictionaries, arrays as lists.

    Raises:
        ValueError: with a sentence and a code, for what is none.
    """
    try:
        return _decode(_with_signs(raw))
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError):
        if (problem := not_utf8(raw)) is not None:
            raise NoRecordError(problem, "not_utf8") from None
    fault = fault_of(raw)
    if fault.code == NAN and takes_nan:
        import json  # the one decoder that reads NaN; few devices need it

        try:
            return json.loads(_with_signs(raw), parse_float=Decimal, parse_constant=float)
        except (ValueError, ArithmeticError, RecursionError):
            fault = fault_of(re.sub(rb"-?\b(NaN|Infinity)\b", b"0", raw))
    raise NoRecordError(f"it is not JSON: it {fault.text}", fault.code)


def _at(document: Any, path: Path) -> Any:
    """The part of a document at `path`, None where it has none."""
    for step in path:
        if isinstance(step, int):
            document = document[step] if isinstance(document, list) and step < len(document) else None
        else:
            document = document.get(step) if isinstance(document, dict) else None
    return document


def _is_in(document: Any, path: Path) -> bool:
    """Whether a document has something at `path`, if only null."""
    *above, last = path
    found = _at(document, tuple(above))
    if isinstance(last, int):
        return isinstance(found, list) and last < len(found)
    return isinstance(found, dict) and last in found


def _text(path: Path) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path).removeprefix(".")


KEYS_MAX = 64
"""Keys of documents that belong to no field, at the most: a document with more of them is refused."""

_TYPED: Mapping[FieldType, tuple[type, Any]] = {
    FieldType.BOOL: (bool, bool),
    FieldType.INT64: (int, INT64),
    FieldType.FLOAT64: (float, float),
    FieldType.STR: (str, str),
}

Path = tuple[str | int, ...]
Reading = Callable[[bytes], tuple[int | None, Any] | None]
TimedRecords = tuple[list[int | None], list[Any]]
"""Event times in microseconds, None where documents have none, and the records."""


class PlainField(msgspec.Struct, frozen=True):
    """A field that the decoder reads: its key in the document, its type as msgspec takes it, and its default,
    `msgspec.NODEFAULT` where it must have one.
    """

    key: str
    hint: Any
    default: Any


def plain_fields(kind: Any, schema: Schema, paths: Sequence[Path]) -> list[PlainField] | None:
    """The fields of a record type, None where one has to be read by its path or a constructor may say no."""
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct) or hasattr(kind, "__post_init__"):
        return None
    parameters = inspect.signature(kind).parameters.values()
    fields: list[PlainField] = []
    for field, path, parameter in zip(schema.fields, paths, parameters, strict=True):
        if parameter.name != field.name or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            return None
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        plain = _plain_field(field, path, default)
        if plain is None or plain.key in [other.key for other in fields]:
            return None
        fields.append(plain)
    return fields


def _plain_field(field: Field, path: Path, default: Any) -> PlainField | None:
    key, *rest = path
    if rest or not isinstance(key, str) or key.startswith("$") or field.logical or field.type not in _TYPED:
        return None
    kind, hint = _TYPED[field.type]
    if field.optional and (default is None or default is msgspec.NODEFAULT):
        return PlainField(key, hint | None, None)
    # To the paths, the null of a field with a default is a missing one; here it is refused.
    fits = type(default) is kind and not RowCodec(kind).conform([default])[1]
    return PlainField(key, hint, default) if fits or default is msgspec.NODEFAULT else None


_TIME = attrgetter("time")


class TypedReader:
    """Documents as records, through a decoder that is made for their keys.

    msgspec does not check all of what it skips (text that is no UTF-8, numbers out of range), so nothing is
    skipped. Keys that belong to no field are learnt, and their values decoded for nothing.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        fields: list[PlainField],
        time_key: str | None,
        time_of: Callable[[Any], int],
        times: Times,
    ) -> None:
        """make: a record of its fields in this order, without a check of its own; time_key: where the event
        time stands, None where documents have none; time_of: reads it by `times`, or raises `ValueError`.
        """
        self._make, self._fields = make, fields
        self._time_key, self._time_of, self._times = time_key, time_of, times
        self._unit_us = times.whole_us
        self._others: list[str] = []
        self._prepare()

    def _prepare(self) -> None:
        names = ["time" if f.key == self._time_key else f"field_{n}" for n, f in enumerate(self._fields)]
        keys = {name: field.key for name, field in zip(names, self._fields, strict=True)}
        shape = [(name, f.hint, f.default) for name, f in zip(names, self._fields, strict=True)]
        if self._time_key is not None and "time" not in keys:
            keys["time"] = self._time_key
            shape.append(("time", Any, msgspec.NODEFAULT))
        for n, key in enumerate(self._others):
            keys[f"other_{n}"] = key
            shape.append((f"other_{n}", Any, None))
        kind = msgspec.defstruct(
            "Document", shape, rename=keys, kw_only=True, forbid_unknown_fields=True, gc=False
        )
        self._known = frozenset(keys.values())
        self._decode = msgspec.json.Decoder(kind, float_hook=Decimal).decode
        self._columns = [attrgetter(name) for name in names]
        self.read = self._reading(self._decode, attrgetter(*names))
        """(event time in microseconds or None where documents have none, the record); None: refused."""

    def _reading(self, decode: Callable[[bytes], Any], values: Callable[[Any], Any]) -> Reading:
        make, is_one, is_timed = self._make, len(self._fields) == 1, self._time_key is not None
        time_of, unit_us = self._time_of, self._unit_us or 1
        least, end = EARLIEST_TIME // unit_us, END_OF_TIME // unit_us
        if self._unit_us is None:
            least = end  # so that each is read by `time_of`

        def read(raw: bytes) -> tuple[int | None, Any] | None:
            try:
                document, time_us = decode(raw), None
                if is_timed:
                    time = document.time
                    time_us = time * unit_us if type(time) is int and least < time < end else time_of(time)
            except (ValueError, ArithmeticError, RecursionError):  # msgspec's errors are among them
                return None
            return time_us, make(values(document)) if is_one else make(*values(document))

        return read

    def read_all(self, raws: Sequence[bytes]) -> TimedRecords | None:
        """What `read` gives of each of these documents, None where one of them is refused."""
        try:
            documents = list(map(self._decode, raws))
            times = self._times_of(documents)
        except (ValueError, ArithmeticError, RecursionError):
            return None
        return times, list(map(self._make, *[map(column, documents) for column in self._columns]))

    def _times_of(self, documents: list[Any]) -> list[int | None]:
        if self._time_key is None:
            return [None] * len(documents)
        times = list(map(_TIME, documents))
        found = self._times.alike_times(times)
        return list(map(self._time_of, times)) if found is None else list(found)

    def learn(self, document: Any) -> None:
        """Take the keys of a document that was refused."""
        if not isinstance(document, dict):
            return
        new = [key for key in document if key not in self._known]
        if new and len(self._others) + len(new) <= KEYS_MAX:
            self._others += new
            self._prepare()
