"""How the record that an aggregate puts out is filled: results by name, the key, the window, the revision.

Checked when a flow is built, used for every result.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from typing import Any

from geartrain.declarations.windows import Global, Window
from geartrain.errors import FlowError
from geartrain.records.event_time import to_datetime
from geartrain.records.keys import decode_key
from geartrain.schema import derive

KeyFields = tuple[tuple[str, int | None], ...]
"""(field of the result, index in the key): the index is None for the whole key."""

_decoded = lru_cache(maxsize=65_536)(decode_key)
_WINDOW = ("window_start", "window_end", "revision")


class Filling:
    """Makes records of the type `out` from results, in the order of `names`."""

    def __init__(self, out: Any, names: Sequence[str], key_fields: KeyFields, window: Window | None) -> None:
        """window: that of the step, None where it has none. Raises `FlowError` for a field that nobody fills,
        or an aggregate without a field.
        """
        schema = derive(out)
        fields = [] if schema.scalar else [f.name for f in schema.fields]
        if not fields:
            raise FlowError("out=... must be a Record with a field for each aggregate")
        if not names:
            raise FlowError("name at least one aggregate, such as n=agg.count()")
        self._out = out
        self._names = list(names)
        self._keys = dict(key_fields)
        for name in [*names, *self._keys]:
            if name not in fields:
                raise FlowError(f"{out.__name__} has no field {name!r}; its fields: {', '.join(fields)}")
        self._fields = fields
        self._sources = [self._source(name, window) for name in fields]

    def record(self, results: Sequence[Any], key: bytes, start: int, end: int, revision: int) -> Any:
        """The record of the results of one window (microseconds) of one key."""
        whole = _decoded(key) if self._keys else None
        return self._out(*(source(results, whole, start, end, revision) for source in self._sources))

    def records(
        self, columns: Sequence[Sequence[Any]], keys: Sequence[bytes], start: int, end: int
    ) -> list[Any]:
        """The records of the first results of one window of many keys; `columns`: those of each aggregate."""
        whole = list(map(_decoded, keys)) if self._keys else []

        def column(field: str, source: Callable[..., Any]) -> Iterable[Any]:
            if field in self._names:
                return columns[self._names.index(field)]
            if field in self._keys:
                return [source((), key, start, end, 0) for key in whole]
            return repeat(source((), None, start, end, 0))

        return list(map(self._out, *map(column, self._fields, self._sources)))

    def _source(self, field: str, window: Window | None) -> Callable[..., Any]:
        if field in self._names:
            position = self._names.index(field)
            return lambda results, key, start, end, revision: results[position]
        if field in self._keys:
            index = self._keys[field]
            if index is None:
                return lambda results, key, start, end, revision: key
            return lambda results, key, start, end, revision: key[index]
        if window is None or field not in _WINDOW:
            more = f", {', '.join(_WINDOW)}" if window is not None else ""
            raise FlowError(
                f"nobody fills field {field!r} of {self._out.__name__}: give an aggregate of that name, or "
                f"call it as what is known: the field of key_by, key{more}"
            )
        if field == "revision":
            return lambda results, key, start, end, revision: revision
        if isinstance(window, Global):
            raise FlowError(f"a global window has no {field}: leave that field of {self._out.__name__} out")
        lift = _moment(self._out, field)
        if field == "window_start":
            return lambda results, key, start, end, revision: lift(start)
        return lambda results, key, start, end, revision: lift(end)


def key_fields(out: Any, key_field: str | None, names: Iterable[str]) -> KeyFields:
    """Which fields of `out` the key fills: that of key_by's field, and `key`, unless an aggregate does."""
    fields = [f.name for f in derive(out).fields]
    taken = set(names)
    wanted = ["key"] if key_field is None else [key_field, "key"]
    return tuple((name, None) for name in dict.fromkeys(wanted) if name in fields and name not in taken)


@lru_cache(maxsize=1024)  # a fragment is opened for each micro-batch
def _moment(out: Any, field: str) -> Callable[[int], Any]:
    hint = typing.get_type_hints(out)[field]
    kinds = {a for a in (typing.get_args(hint) or (hint,)) if a is not type(None)}
    if kinds == {datetime}:
        return to_datetime
    if kinds == {int}:
        return lambda time: time
    raise FlowError(f"field {field!r} of {out.__name__} must be a datetime, or an int of microseconds")
