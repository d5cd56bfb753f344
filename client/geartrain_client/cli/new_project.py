"""`gear new`: a project with a flow, its test and a sample of data, which runs as it is.

Before anything else that a user does. Guarantees: nothing that is there already is written over. The folder
stands whole or not at all.
"""

from __future__ import annotations

import keyword
import re
import secrets
import shutil
import sys
from importlib.resources import files
from pathlib import Path

from geartrain import __version__
from geartrain.errors import ConfigError, MistakeError
from geartrain_client.terminal.screen import results

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
NAME_CHARS_MAX = 40
_MODULES = frozenset({"data", "geartrain", "geartrain_devices", "tests"})
"""Packages that would hide one that the project needs."""
_TEMPLATES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "@PACKAGE@/__init__.py": "__init__.py",
    "@PACKAGE@/flow.py": "flow.py",
    "tests/test_flow.py": "test_flow.py",
    "data/readings.csv": "readings.csv",
}
"""By file of the project that which it is made of."""


def new_project(folder: Path) -> None:
    """Make a project in `folder`, called as its last part, and print what to do next.

    Raises `ConfigError` for a name that no package can have, and for a folder that holds something or cannot
    be written.
    """
    name = folder.name
    package = _package(name)
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise ConfigError(f"{folder} is there already: name a new folder")
    words = {"@PROJECT@": name, "@PACKAGE@": package, "@COMPATIBLE@": _compatible(__version__)}
    made = folder.with_name(f".{name}.{secrets.token_hex(4)}")
    try:
        for file, template in _TEMPLATES.items():
            path = made / _filled(file, words)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = (files("geartrain_client") / "template" / f"{template}.template").read_text("utf-8")
            path.write_text(_filled(text, words), encoding="utf-8")
        made.replace(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    results().print(_said(folder), markup=False, highlight=False, soft_wrap=True)


def _package(name: str) -> str:
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise MistakeError(
            f"a project is called by a small letter, then small letters, digits and single - or _, at most "
            f"{NAME_CHARS_MAX}, such as cold-chain: not {name!a}"
        )
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or package in _MODULES:
        raise MistakeError(f"{name} is the name of another Python package: call the project otherwise")
    return package


def _compatible(version: str) -> str:
    """The versions of Geartrain with which the project runs: those of the same minor number."""
    major, minor = version.split(".")[:2]
    return f">={major}.{minor},<{major}.{int(minor) + 1}"


def _filled(text: str, words: dict[str, str]) -> str:
    return "\n".join(_filled_line(line, words) for line in text.split("\n"))


def _filled_line(line: str, words: dict[str, str]) -> str:
    """The line with the words in it; what stands right of two blanks stays in its column where it can."""
    left, gap, right = line.rpartition("  ")
    column = len(left + gap)
    for word, value in words.items():
        left, right = left.replace(word, value), right.replace(word, value)
    return f"{left.rstrip()}  ".ljust(column) + right if left.strip() else left + gap + right


def _said(folder: Path) -> str:
    path = "--set readings.path=data/readings.csv"
    return "\n".join(
        [
            f"made {folder}: a flow, its test, and a sample of data",
            f"  cd {folder}",
            f"  gear run . {path} --output out",
            f"  gear plan . {path}",
        ]
    )
