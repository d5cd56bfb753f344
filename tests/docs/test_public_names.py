"""The public names: one list of fewer than 30, all of them documented, parameter by parameter."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import geartrain
import geartrain.sinks
import geartrain_devices
from geartrain import Context
from geartrain.source import Source
from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[2]
MODULES = ("geartrain", "geartrain.agg", "geartrain.source", "geartrain.sinks", "geartrain.processor")
TABLE = re.compile(r"^`from (geartrain[\w.]*) import`\n\n(.*?)\n\n", re.DOTALL | re.MULTILINE)
PARAMETER = re.compile(r"^    (\w+): \S", re.MULTILINE)


def test_geartrain_has_few_names_and_each_is_what_the_stub_says() -> None:
    assert len(geartrain.__all__) == len(set(geartrain.__all__)) < 30
    for name in geartrain.__all__:
        found = getattr(geartrain, name)
        assert not inspect.isclass(found) or found.__name__ == name
    assert set(geartrain.__all__) <= set(dir(geartrain))
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'; it has .*Flow"):
        geartrain.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_page_lists_the_names_of_each_module() -> None:
    listed = {
        module: re.findall(r"^\| `(\w+)` \| \S", table, re.MULTILINE)
        for module, table in TABLE.findall((ROOT / "docs" / "operators.md").read_text(encoding="utf-8"))
    }
    for module in (*MODULES, "geartrain.testing"):
        assert listed[module] == sorted(importlib.import_module(module).__all__)


def test_importing_geartrain_imports_nothing_else_of_it() -> None:
    code = "import sys, geartrain; print([m for m in sys.modules if m.startswith(('geartrain', 'msgspec'))])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout == "['geartrain']\n"


@pytest.mark.parametrize("module", [*MODULES, "geartrain.testing"])
def test_each_public_docstring_names_its_parameters_and_what_comes_out(module: str) -> None:
    wrong = [
        f"{name}: {problem}"
        for name, found, is_property in _callables(module)
        for problem in _problems(found, is_property=is_property)
    ]
    assert wrong == []


def test_each_source_that_comes_with_it_says_what_its_options_are() -> None:
    sources = _sources()
    assert len(sources) >= 9
    wrong = [
        f"{kind.__name__}: {problem}" for kind in sources for problem in _problems(kind, is_property=False)
    ]
    assert wrong == []


BASES = {"FileReplay", "WatchedDirectory", "History"}
"""Sources that no flow names: bases of others, and the one that the platform puts before a flow's own."""


def test_the_reference_has_each_source_and_each_option_of_it() -> None:
    sections = _sections("sources")
    shared = "".join(text for title, text in sections.items() if title.startswith("Options of "))
    sources = {kind for kind in _sources() if kind.__name__ not in BASES and kind.__name__[0] != "_"}
    assert {title for title in sections if not title.startswith("Options of ")} == {
        kind.__name__ for kind in sources
    }
    for kind in sources:
        listed = sections[kind.__name__] + shared
        missing = [name for name in inspect.signature(kind).parameters if f"\n| `{name}` | " not in listed]
        assert missing == [], kind.__name__


def test_the_reference_has_each_sink_and_each_option_of_it() -> None:
    sections = _sections("sinks")
    kinds = [getattr(geartrain.sinks, name) for name in geartrain.sinks.__all__]
    sinks = {kind for kind in kinds if issubclass(kind, geartrain.sinks.Sink)} - {geartrain.sinks.Sink}
    assert set(sections) == {kind.__name__ for kind in sinks} | {"Delivery"}
    for kind in sinks:
        options = inspect.signature(kind).parameters
        missing = [name for name in options if f"\n| `{name}` | " not in sections[kind.__name__]]
        assert missing == [], kind.__name__


def test_the_reference_has_all_that_a_task_may_ask() -> None:
    (context,) = (text for title, text in _sections("tasks").items() if title == "Context")
    asked = {name for name in vars(Context) if name[0] != "_"}
    assert {"event_time", "key", "emit", "notify_at"} <= asked
    assert set(re.findall(r"^### ctx\.(\w+)$", context, re.MULTILINE)) == asked


def _sections(page: str) -> dict[str, str]:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])


def _sources() -> set[Any]:
    names = [m.name for m in pkgutil.iter_modules(geartrain_devices.__path__, "geartrain_devices.")]
    return {
        kind for name in names for kind in vars(importlib.import_module(name)).values() if _is_source(kind)
    }


def _is_source(kind: Any) -> bool:
    return (
        inspect.isclass(kind)
        and issubclass(kind, Source)
        and kind.__module__.startswith("geartrain_devices.")
    )


def _callables(module: str) -> Iterator[tuple[str, Any, bool]]:
    owner = importlib.import_module(module)
    for name in owner.__all__:
        found = getattr(owner, name)
        if inspect.isfunction(found):
            yield name, found, False
        elif inspect.isclass(found) and found.__module__.startswith("geartrain."):
            yield name, found, False
            for kind in found.__mro__:
                if kind.__module__.startswith("geartrain."):
                    for method, value in vars(kind).items():
                        is_property = isinstance(value, property)
                        value = value.fget if isinstance(value, property) else value
                        value = value.__func__ if isinstance(value, staticmethod) else value
                        if inspect.isfunction(value) and not method.startswith("_"):
                            yield f"{name}.{method}", value, is_property


def _problems(found: Any, *, is_property: bool) -> Iterator[str]:
    text = inspect.getdoc(found) or ""
    if not text:
        yield "no docstring"
    kinds = found.__mro__ if inspect.isclass(found) else (found,)  # what sources share is said once
    named = {name for kind in kinds for name in PARAMETER.findall(inspect.cleandoc(kind.__doc__ or ""))}
    if inspect.isclass(found) and issubclass(found, Exception):
        return
    signature = inspect.signature(found)
    for parameter in signature.parameters.values():
        if parameter.name not in {"self", "args", "kwargs"} and parameter.name not in named:
            yield f"its docstring does not say what {parameter.name} is"
    returns = inspect.isfunction(found) and signature.return_annotation not in (None, "None")
    if returns and "Returns:" not in text and not is_property:
        yield "its docstring does not say what it returns"
