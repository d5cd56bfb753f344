"""The names that a person gives: apps, devices, labels; and instances, which are made from an app's name.

They become parts of topics, of file names and of answers. Guarantees: each is checked before anything is
stored. An instance's name tells the app's, since an app's name has no point.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from geartrain.errors import WireError
from geartrain.printable import printable
from geartrain.wire.topics import check_name
from geartrain_cloud.control.errors import InvalidError

APP_CHARS_MAX = 48
LABELS_MAX = 32
_APP = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,{APP_CHARS_MAX - 1}}}")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_SHOWN_CHARS_MAX = 80


def check_app(name: str) -> str:
    """Return `name`; raises `InvalidError` unless it can name an app."""
    if not _APP.fullmatch(name):
        raise InvalidError(
            f"app {shown(name)}: use a name of 1 to {APP_CHARS_MAX} letters, digits, '_' and '-' that begins "
            "with a letter"
        )
    return name


def check_device(name: str) -> str:
    """Return `name`; raises `InvalidError` unless it can name a device."""
    try:
        check_name("device", name)
    except WireError as error:
        raise InvalidError(str(error)) from None
    if not name.strip(".") or name == "all":
        raise InvalidError(f"a device cannot be called {name!r}: use a letter or a digit, and not all")
    return name


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return `labels`; raises `InvalidError` for a key or a value that a selector could not name."""
    if len(labels) > LABELS_MAX:
        raise InvalidError(f"a device has at most {LABELS_MAX} labels, not {len(labels)}")
    for key, value in labels.items():
        check_label_key(key)
        check_label_value(key, value)
    return dict(labels)


def check_label_key(key: str) -> str:
    """Return `key`; raises `InvalidError` unless it can name a label."""
    if not _KEY.fullmatch(key):
        raise InvalidError(
            f"label {shown(key)}: use a key of 1 to 63 letters, digits, '_', '.' and '-' that begins with a "
            "letter, such as kind=truck"
        )
    return key


def check_label_value(key: str, value: str) -> str:
    """Return `value`; raises `InvalidError` unless it can be the value of the label `key`."""
    if not _VALUE.fullmatch(value):
        raise InvalidError(
            f"label {key}={shown(value)}: use a value of 1 to 63 letters, digits, '_', '.' and '-'"
        )
    return value


def instance_name(app: str, number: int) -> str:
    """The name of the app's life of this number, such as `traffic.3`."""
    return f"{app}.{number}"


def shown(name: str) -> str:
    """A name as an error quotes it: short, and with nothing that a terminal would obey."""
    text = name if len(name) <= _SHOWN_CHARS_MAX else f"{name[:_SHOWN_CHARS_MAX]}..."
    return f"'{printable(text)}'"
