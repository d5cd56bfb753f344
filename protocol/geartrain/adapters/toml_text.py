"""Plain data as TOML text: the configuration files that a supervisor writes for its processes.

The standard library reads TOML and does not write it. Guarantees: `tomllib` reads back what was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(content: Mapping[str, Any]) -> str:
    """TOML of nested mappings of str, bool, int, float and lists of them; raises `TypeError` for others."""
    return "\n".join(_table(content, ())).strip() + "\n"


def _table(content: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in content.items() if not isinstance(value, Mapping)}
    lines = [f"[{'.'.join(map(_key, path))}]"] if path and (plain or not content) else []
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    if lines:
        lines.append("")
    for key, value in content.items():
        if isinstance(value, Mapping):
            lines += _table(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # nan, inf and exponents are TOML's too
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"{type(value).__name__} has no TOML form")


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but TOML also wants DEL escaped.
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
