"""Options of tasks and sources: annotated attributes with defaults, set by keyword, file or command line.

Runs before any record moves. Guarantees: a value is checked against its annotation; a wrong name or value
is a `ConfigError` that lists what exists.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Self, dataclass_transform

import msgspec

from geartrain.errors import ConfigError


@dataclass_transform(kw_only_default=True)
class Options:
    """Base that makes every subclass a keyword-only dataclass of its annotated attributes."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(kw_only=True, eq=False)(cls)

    def with_options(self, values: Mapping[str, Any], where: str) -> Self:
        """A copy with some options replaced; text is converted by the annotation (`"5"` to int, `"a,b"` to
        list).

        `where` begins the message of the `ConfigError` for an unknown name or a value that does not fit.
        """
        hints = typing.get_type_hints(type(self))
        known = [f.name for f in dataclasses.fields(typing.cast(Any, self)) if f.init]
        ready: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                listed = ", ".join(known) or "none"
                raise ConfigError(
                    f"{where}: there is no option {name!r}; options of {type(self).__name__}: {listed}"
                )
            ready[name] = _converted(value, hints[name], f"{where}.{name}")
        return typing.cast(Self, dataclasses.replace(typing.cast(Any, self), **ready))


def _converted(value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, str) and typing.get_origin(hint) in (list, tuple):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, hint, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} = {value!r}: {error}") from None
