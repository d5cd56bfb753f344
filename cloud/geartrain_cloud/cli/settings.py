"""`--set step.option=value` as options by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from geartrain.declarations.options import Text
from geartrain.errors import ConfigError


def parse_set(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Options by step and name, values as `Text`; raises `ConfigError` for another form or a doubled option.

    >>> parse_set(["quotes.path=a=b.csv"])
    {'quotes': {'path': 'a=b.csv'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        target, equals, value = setting.partition("=")
        step, dot, option = target.partition(".")
        if not (equals and dot and step and option):
            raise ConfigError(f"--set {setting}: write STEP.OPTION=VALUE, such as drawdown.period=month")
        options = found.setdefault(step, {})
        if option in options:
            raise ConfigError(f"--set {setting}: {step}.{option} is set twice; leave one out")
        options[option] = Text(value)
    return found
