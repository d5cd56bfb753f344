"""What was set of an operator, as plain JSON values that are the same in every process.

Between the graph and the revision. Guarantees: no address in memory, no path and no order of a set comes in.
What is as its class has it by default is left out, so that an option that a release adds is no difference. A
function is its name: what it does is in the code's hash. Names in Geartrain itself are left out, since they
are not the user's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from math import isfinite
from operator import attrgetter, itemgetter, methodcaller
from pathlib import PurePath
from typing import Any, get_origin

import msgspec

from geartrain.declarations.options import path_options
from geartrain.schema.logical import type_text

TEXT_MAX = 200
"""Characters of a text that is shown; a longer one is its hash."""
_DEPTH_MAX = 12
_OURS = ("geartrain", "geartrain_devices")
_SCALARS = (type(None), int, float, str, bytes, bytearray, Enum, PurePath, date, timedelta, Decimal)


def plain(value: Any, depth: int = 0) -> Any:
    """A value as None, bool, int, float, str, list or dict of these."""
    if depth > _DEPTH_MAX:
        return _named(type(value))
    if isinstance(value, _SCALARS):
        return _scalar(value)
    below = depth + 1
    if isinstance(value, type) or get_origin(value) is not None:
        return type_text(value)
    if isinstance(value, Mapping):
        return _mapping(value, below)
    if isinstance(value, set | frozenset):
        return _listed(sorted((plain(one, below) for one in value), key=_text))
    if isinstance(value, list | tuple):
        return _listed([plain(one, below) for one in value])
    if callable(value) and not _has_parts(value):
        return _function(value, below)
    return _object(value, below)


def _scalar(value: Any) -> Any:
    if value is None or value is True or value is False or type(value) is int:
        return value
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    if isinstance(value, bytes | bytearray):
        return _digest(bytes(value))
    if isinstance(value, PurePath):
        return "a path"
    text = str(value)
    return text if len(text) <= TEXT_MAX else _digest(text.encode(errors="surrogatepass"))


def _mapping(value: Mapping[Any, Any], depth: int) -> Any:
    pairs = [[plain(key, depth), plain(one, depth)] for key, one in value.items()]
    if all(isinstance(key, str) for key, _ in pairs):
        whole = dict(sorted(pairs))
        return whole if len(whole) <= TEXT_MAX else _digest(_text(whole).encode())
    return _listed(sorted(pairs, key=_text))


def _listed(values: list[Any]) -> Any:
    return values if len(values) <= TEXT_MAX else _digest(_text(values).encode())


def _function(value: Any, depth: int) -> Any:
    """A function, a bound method or an object that is called."""
    if isinstance(value, partial):
        return [plain(value.func, depth), plain(value.args, depth), plain(value.keywords, depth)]
    if isinstance(value, attrgetter | itemgetter | methodcaller):
        return repr(value)
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return _named(value)
    return _named(type(value))


def _named(what: Any) -> str:
    """The name of a class or function: with its module, unless that is Geartrain's."""
    module, name = str(getattr(what, "__module__", "") or ""), str(getattr(what, "__qualname__", "?"))
    if module.partition(".")[0] in _OURS:
        return name if isinstance(what, type) else "geartrain"
    return f"{module}.{name}" if module != "builtins" else name


def _has_parts(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value)


def _object(value: Any, depth: int) -> Any:
    """An object: its class, and those of its parts that are not as by default."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        known = [(f.name, _default(f.default, f.default_factory)) for f in msgspec.structs.fields(kind)]
    elif dataclasses.is_dataclass(value):
        left_out = path_options(kind)
        known = [
            (f.name, _default(f.default, f.default_factory))
            for f in dataclasses.fields(value)
            if f.init and f.name not in left_out
        ]
    else:
        known = [
            (name, _NOTHING)
            for name, one in sorted(getattr(value, "__dict__", {}).items())
            if one is None or isinstance(one, bool | int | float | str | bytes | tuple | Enum)
        ]
    parts = {}
    for name, default in known:
        found = getattr(value, name, None)
        form = plain(found, depth)
        if default is _NOTHING or form != plain(default, depth):
            parts[name] = form
    return {"": _named(kind), **parts} if parts else _named(kind)


class _Nothing:
    """Stands where there is no default."""


_NOTHING = _Nothing()


def _default(default: Any, factory: Any) -> Any:
    if default is not msgspec.NODEFAULT and default is not dataclasses.MISSING:
        return default
    if factory is not msgspec.NODEFAULT and factory is not dataclasses.MISSING:
        return factory()
    return _NOTHING


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _text(value: Any) -> str:
    import json

    return json.dumps(value, sort_keys=True)
