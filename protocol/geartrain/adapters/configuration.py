"""Configuration files: TOML, checked against a type, with one sentence for whatever is wrong.

The first thing that a process reads. Guarantees: every mistake in a file is one `ConfigError` that names the
file and the key; a key that nobody knows is one, too, where the type forbids it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)

_PLACE = r" - at `(?:key in )?\$\.?(.*)`$"
_UNKNOWN = r"Object contains unknown field `(.*)`"
_MISSING = r"Object missing required field `(.*)`"


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of the file `path`; raises `ConfigError` naming it."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None


def read_as(path: str | Path, kind: type[S]) -> S:
    """The content of the file `path` as a `kind`; raises `ConfigError` naming the file and the key."""
    raw = read_toml(path)
    try:
        return convert_as(raw, kind)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def convert_as(raw: Any, kind: type[S], table: str = "") -> S:
    """What a file holds as a `kind`; `table`: the key that it stands under. Raises `ConfigError`."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        sentence = _sentence(str(error), kind)
    raise ConfigError(f"{table}{'.' if sentence[:1].isalpha() else ''}{sentence}" if table else sentence)


def host_and_port(text: str) -> tuple[str, int]:
    """The two parts of `text`, as in `127.0.0.1:1883` or `[::1]:1883`; raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:1883")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _sentence(said: str, kind: type[msgspec.Struct]) -> str:
    """msgspec's words with the key first: "commit.records_max: expected `int`, got `str`"."""
    place = re.search(_PLACE, said)
    key = place[1] if place else ""
    said = re.sub(_PLACE, "", said)
    if unknown := re.fullmatch(_UNKNOWN, said):
        keys = "" if key else f"; its keys: {', '.join(kind.__struct_fields__)}"
        return f"{_join(key, unknown[1])} is not a key of this file{keys}"
    if missing := re.fullmatch(_MISSING, said):
        return f"{_join(key, missing[1])} is missing"
    return f"{key}: {said[:1].lower()}{said[1:]}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
