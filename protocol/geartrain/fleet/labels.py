"""The names and labels of devices, as a person gives them.

Below selectors, the control store and the file of an agent. Guarantees: what is returned can stand in a
topic, in a file name and in a selector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from geartrain.errors import SelectorError, WireError
from geartrain.printable import printable
from geartrain.wire.topics import check_name

LABELS_MAX = 32
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_SHOWN_CHARS_MAX = 80


def check_device(name: str) -> str:
    """Return `name`; raises `SelectorError` unless it can name a device."""
    try:
        check_name("device", name)
    except WireError as error:
        raise SelectorError(str(error)) from None
    if not name.strip(".") or name == "all":
        raise SelectorError(f"a device cannot be called {name!r}: use a letter or a digit, and not all")
    return name


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return `labels`; raises `SelectorError` for a key or a value that a selector could not name."""
    if len(labels) > LABELS_MAX:
        raise SelectorError(f"a device has at most {LABELS_MAX} labels, not {len(labels)}")
    for key, value in labels.items():
        check_label_key(key)
        check_label_value(key, value)
    return dict(labels)


def check_label_key(key: str) -> str:
    """Return `key`; raises `SelectorError` unless it can name a label."""
    if not _KEY.fullmatch(key):
        raise SelectorError(
            f"label {shown(key)}: use a key of 1 to 63 letters, digits, '_', '.' and '-' that begins with a "
            "letter, such as kind=truck"
        )
    return key


def check_label_value(key: str, value: str) -> str:
    """Return `value`; raises `SelectorError` unless it can be the value of the label `key`."""
    if not _VALUE.fullmatch(value):
        raise SelectorError(
            f"label {key}={shown(value)}: use a value of 1 to 63 letters, digits, '_', '.' and '-'"
        )
    return value


def shown(name: str) -> str:
    """A name as an error quotes it: short, and with nothing that a terminal would obey."""
    text = name if len(name) <= _SHOWN_CHARS_MAX else f"{name[:_SHOWN_CHARS_MAX]}..."
    return f"'{printable(text)}'"
