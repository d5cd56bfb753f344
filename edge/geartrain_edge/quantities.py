"""Quantities in the files of a device, as people write them: `"1s"`, `"200ms"`, `"50MB"`.

Read with an agent's configuration. Guarantees: what is no such quantity is one `ConfigError` that shows one.
"""

from __future__ import annotations

import re

from geartrain.errors import ConfigError

_MS = {"ms": 1, "s": 1_000, "min": 60_000}
_BYTES = {"B": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_FORM = re.compile(r"([0-9]{1,9}) ?([A-Za-z]+)")


def milliseconds(text: str) -> int:
    """`"1s"` as 1000; units are ms, s and min. Raises `ConfigError`."""
    return _quantity(text, _MS, "a time, such as 1s or 200ms")


def size_bytes(text: str) -> int:
    """`"50MB"` as 50,000,000; units are B, kB, MB and GB. Raises `ConfigError`."""
    return _quantity(text, _BYTES, "a size, such as 50MB")


def _quantity(text: str, units: dict[str, int], meant: str) -> int:
    found = re.fullmatch(_FORM, text)
    if found is None or found[2] not in units:
        raise ConfigError(f"{text!r} is not {meant}; its units are {', '.join(units)}")
    return int(found[1]) * units[found[2]]
