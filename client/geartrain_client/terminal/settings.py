"""Options of the command line with values of a form of their own: `--set step.option=value`, `--for 30s`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from geartrain.declarations.options import Text
from geartrain.errors import ConfigError


def parse_set(settings: Iterable[str], where: str = "--set ") -> dict[str, dict[str, Any]]:
    """Options by step and name, values as `Text`; raises `ConfigError` for another form or a doubled option.

    where: stands before a setting in the sentence of an error.

    >>> parse_set(["quotes.path=a=b.csv"])
    {'quotes': {'path': 'a=b.csv'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        target, equals, value = setting.partition("=")
        step, dot, option = target.partition(".")
        if not (equals and dot and step and option):
            raise ConfigError(f"{where}{setting}: write STEP.OPTION=VALUE, such as drawdown.period=month")
        options = found.setdefault(step, {})
        if option in options:
            raise ConfigError(f"{where}{setting}: {step}.{option} is set twice; leave one out")
        options[option] = Text(value)
    return found


def parse_device_set(given: Iterable[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """What `--device-set` says: options by device, step and name; raises `ConfigError` for another form.

    >>> parse_device_set(["d1:quotes.path=a.csv"])
    {'d1': {'quotes': {'path': 'a.csv'}}}
    """
    by_device: dict[str, list[str]] = {}
    for text in given:
        device, colon, setting = text.partition(":")
        if not (colon and device and setting):
            raise ConfigError(f"--device-set {text}: write DEVICE:STEP.OPTION=VALUE")
        by_device.setdefault(device, []).append(setting)
    return {device: parse_set(settings) for device, settings in by_device.items()}


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_seconds(option: str, text: str) -> float:
    """A length of time in seconds; raises `ConfigError` for another form.

    >>> parse_seconds("--for", "1.5m")
    90.0
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not seconds > 0:
        raise ConfigError(f"{option} {text}: write a number above 0 with its unit, such as 30s, 5m or 2h")
    return seconds


_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_age(option: str, text: str) -> float:
    """As `parse_seconds`; 0 for `all`.

    >>> parse_age("--retain", "1d"), parse_age("--retain", "all")
    (86400.0, 0.0)
    """
    return 0.0 if text == "all" else parse_seconds(option, text)


def parse_size(option: str, text: str) -> int:
    """An amount of bytes, 0 for `all`; raises `ConfigError` for another form.

    >>> parse_size("--retain-bytes", "2GB"), parse_size("--retain-bytes", "all")
    (2000000000, 0)
    """
    if text == "all":
        return 0
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(B|kB|MB|GB|TB)", text)
    size = round(float(found[1]) * _BYTES[found[2]]) if found else 0
    if size < 1:
        raise ConfigError(f"{option} {text}: write a number above 0 with its unit, such as 500MB or 2GB")
    return size
