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
import geartrain_devices
from geartrain.source import Source

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
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
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
    modules = [
        importlib.import_module(m.name)
        for m in pkgutil.iter_modules(geartrain_devices.__path__, "geartrain_devices.")
    ]
    sources = {kind for module in modules for kind in vars(module).values() if _is_source(kind)}
    assert len(sources) >= 9
    wrong = [
        f"{kind.__name__}: {problem}" for kind in sources for problem in _problems(kind, is_property=False)
    ]
    assert wrong == []


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
