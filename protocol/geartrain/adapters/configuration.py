"""Configuration files: TOML, checked against a type, with one sentence for whatever is wrong.

The first thing that a process reads. Guarantees: every mistake in a file is one `ConfigError` that names the
file and the key; a key that nobody knows is one, too, where the type forbids it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.errors import ConfigError
from geartrain.errors.conversion import ConversionCode, read_conversion

S = TypeVar("S", bound=msgspec.Struct)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of the file `path`; raises `ConfigError` naming it."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        at = f"its byte {error.start + 1} is not UTF-8"
        raise ConfigError(f"{path} is not a TOML file: {at}: save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: correct what stands there ({error})") from None


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
        sentence = _sentence(error, kind)
    raise ConfigError(f"{table}{'.' if sentence[:1].isalpha() else ''}{sentence}" if table else sentence)


def host_and_port(text: str) -> tuple[str, int]:
    """The two parts of `text`, as in `127.0.0.1:1883` or `[::1]:1883`; raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:1883")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _sentence(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """What is wrong, the key first: "commit.records_max: expected `int`, got `str`"."""
    key, reason = read_conversion(error)
    if reason.code == ConversionCode.UNKNOWN_FIELD:
        keys = "" if key else f"; its keys: {', '.join(kind.__struct_fields__)}"
        return f"{_join(key, reason['field'])} is not a key of this file{keys}"
    if reason.code == ConversionCode.MISSING_FIELD:
        return f"{_join(key, reason['field'])} is missing"
    return f"{key}: {reason['text']}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
