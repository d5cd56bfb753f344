"""Options of tasks, sources and sinks: annotated attributes, set by keyword, configuration file or command
line.

Runs before any record moves. Guarantees: a value is checked against its annotation, wherever it comes from. A
wrong name or value is one error that says what is meant.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self, dataclass_transform

import msgspec

from geartrain.errors import ConfigError, FlowError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
"""A whole number, 0 or more."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
"""A number above 0."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
"""The number of a TCP port."""

FilePath = Annotated[str, msgspec.Meta(extra={"path": True})]
"""A file or a folder. In a configuration file it is relative to the folder of that file."""


SecretText = Annotated[str, msgspec.Meta(pattern="^(secret:.*)?$", extra={"secret": True})]
"""A password or the like: empty, or a reference `secret:NAME`, and never the value itself."""


SecretOrText = Annotated[str, msgspec.Meta(extra={"secret or text": True})]
"""Any text, or a reference `secret:NAME`, in whose place a sink in the data centre puts the value."""


class Revealed(str):
    """The value of a `SecretText`, in the one copy of a source that opens."""

    __slots__ = ()


class InFile(str):
    """The value of an option as a configuration file has it: a `FilePath` is relative to `folder`."""

    __slots__ = ("folder",)

    folder: Path


def in_file(options: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Options by step as a file in `folder` has them, ready for `with_options`."""
    return {
        step: {name: _placed(value, folder) for name, value in values.items()}
        for step, values in options.items()
    }


def _placed(value: Any, folder: Path) -> Any:
    if type(value) is not str:
        return value
    placed = InFile(value)
    placed.folder = folder
    return placed


class Text(str):
    """The value of an option as a person wrote it on a command line: it is converted by the annotation.

    An int, a number and true or false are read from it; a list is written `a,b` or as JSON, a table as JSON.
    A plain `str` is never converted: in a file or in Python, `"5"` is not an int and `"a"` is not a list.
    """

    __slots__ = ()


@dataclass_transform(kw_only_default=True)
class Options:
    """Base that makes every subclass a keyword-only dataclass of its annotated attributes.

    The values are checked when the flow is built.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(kw_only=True, eq=False)(cls)

    def with_options(self, values: Mapping[str, Any], where: str) -> Self:
        """A copy with some options replaced.

        Args:
            values: option to value. a `Text`, which a person wrote on a command line, is converted by the
                option's annotation.
            where: how the sentence of an error begins.

        Returns:
            The copy.

        Raises:
            ConfigError: for an option that does not exist, or a value that does not fit.
        """
        known = [f.name for f in dataclasses.fields(typing.cast(Any, self)) if f.init]
        ready = converted(type(self), values, known, where)
        return typing.cast(Self, dataclasses.replace(typing.cast(Any, self), **ready))


def converted(owner: type, values: Mapping[str, Any], known: Iterable[str], where: str) -> dict[str, Any]:
    """The values of options of the class `owner`, each as its annotation has it.

    known: the names of the options that may be set. Raises `ConfigError`, which begins with `where`.
    """
    listed = list(known)
    try:
        hints = _hints(owner)
    except Exception as error:  # noqa: BLE001 - annotations are a user's own
        raise ConfigError(
            f"{where}: the annotations of {owner.__name__} cannot be read ({error}): "
            "declare the types of its options where its module begins"
        ) from None
    ready: dict[str, Any] = {}
    for name, value in values.items():
        if name not in listed:
            names = ", ".join(listed) or "none"
            raise ConfigError(f"{where}: there is no option {name!r}; options of {owner.__name__}: {names}")
        try:
            ready[name] = _converted(value, hints[name])
        except (ValueError, msgspec.ValidationError) as error:
            value = str(value) if isinstance(value, InFile) else value
            shown = _shown(value, hints[name])
            raise ConfigError(f"{where}.{name} = {shown}: {_reason(value, hints[name], error)}") from None
        except TypeError:
            raise ConfigError(
                f"{where}: option {name!r} can be set only where the flow is written: "
                f"a {_name(hints[name])} has no text"
            ) from None
    return ready


def path_options(owner: type) -> frozenset[str]:
    """The names of the options of a class that are paths; none where its annotations cannot be read."""
    return _marked(owner, "path")


def secret_options(owner: type) -> frozenset[str]:
    """The same of those that are a `SecretText`."""
    return _marked(owner, "secret")


def may_be_secret(owner: type) -> frozenset[str]:
    """The same of those that are a `SecretOrText`."""
    return _marked(owner, "secret or text")


def _marked(owner: type, mark: str) -> frozenset[str]:
    try:
        return frozenset(name for name, hint in _hints(owner).items() if _is_marked(hint, mark))
    except Exception:  # noqa: BLE001 - annotations are a user's own
        return frozenset()


def check_options(owner: Any) -> None:
    """Raise `FlowError` unless every option of a task, a source or a sink fits its annotation.

    A value that is the option's default is not looked at.
    """
    kind: Any = type(owner)
    try:
        hints = _hints(kind)
    except Exception:  # noqa: BLE001 - of types that only their function knows; `converted` says so
        return
    for option in dataclasses.fields(owner):
        value = getattr(owner, option.name, option.default)
        if value is option.default or isinstance(value, Revealed):
            continue
        try:
            msgspec.convert(value, hints[option.name])
        except msgspec.ValidationError as error:
            reason = _reason(value, hints[option.name], error)
            raise FlowError(
                f"{kind.__name__}: {option.name} = {_shown(value, hints[option.name])}: {reason}"
            ) from None
        except TypeError:
            continue  # a type of the user's own, which nothing can be compared with


@lru_cache(maxsize=1_024)
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner, include_extras=True)


def _converted(value: Any, hint: Any) -> Any:
    if isinstance(value, InFile):
        value = str(value.folder / value) if value and _is_path(hint) else str(value)
    if not isinstance(value, Text):
        return msgspec.convert(value, hint)
    text, kinds = str(value), _kinds(hint)
    if str not in kinds and dict in kinds and text.lstrip().startswith("{"):
        return msgspec.convert(_json(text), hint)
    if str not in kinds and (list in kinds or tuple in kinds):
        listed = text.lstrip().startswith("[")
        parts = _json(text) if listed else [part.strip() for part in text.split(",") if part.strip()]
        return msgspec.convert(parts, hint, strict=listed)
    return msgspec.convert(text, hint, strict=False)


def _is_path(hint: Any) -> bool:
    return _is_marked(hint, "path")


def _is_marked(hint: Any, mark: str) -> bool:
    marks = [one.extra or {} for one in getattr(hint, "__metadata__", ()) if isinstance(one, msgspec.Meta)]
    return any(one.get(mark) for one in marks)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ValueError("it is not JSON") from None


def _kinds(hint: Any) -> set[Any]:
    """The plain types that a value of the type `hint` may have: `list[str] | None` gives list and None's."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return {typing.get_origin(part) or part for part in parts}


def _reason(value: Any, hint: Any, error: Exception) -> str:
    """What is wrong with a value, and what to write."""
    if _is_marked(hint, "secret"):
        return "write secret:NAME, and give the value with gear secret set"
    kinds = _kinds(hint)
    if isinstance(value, str) and not isinstance(value, Text) and (list in kinds or tuple in kinds):
        listed = f'["{value[:60]}"]'
        written = listed if list in kinds else f"({value!r},), or {listed} in a file"
        return f"a list is meant: write {written}"
    said = str(error).replace("`", "").replace(" - at $", ", at ")
    said = said.replace("Expected array", "expected list").replace("Expected object", "expected table")
    form = _form(hint)
    return f"{said[:1].lower()}{said[1:]}{f': write {form}' if form else ''}"


_FORMS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: 'a list, such as ["a", "b"]',
    tuple: 'a list, such as ["a", "b"]',
    dict: 'a table, such as {NAME = "VALUE"}',
}


def _form(hint: Any) -> str:
    """What to write for a value of the type `hint`; "" for a type of the user's own."""
    marks = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, msgspec.Meta)]
    hint = typing.get_args(hint)[0] if marks else hint
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(repr, typing.get_args(hint)))}"
    forms = [_FORMS[kind] for kind in _FORMS if kind in _kinds(hint)]
    bounds = [
        f"{word} {bound:,}"
        for one in marks
        for word, bound in (("from", one.ge), ("above", one.gt), ("to", one.le), ("below", one.lt))
        if bound is not None
    ]
    return " ".join([" or ".join(dict.fromkeys(forms)), *bounds]) if forms else ""


def _shown(value: Any, hint: Any) -> str:
    if _is_marked(hint, "secret"):
        return "(not shown)"
    try:
        text = repr(str(value) if isinstance(value, Text) else value)
    except Exception:  # noqa: BLE001 - of a user's own class
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _name(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint))
