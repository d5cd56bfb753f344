"""What a project's `pyproject.toml` says under `[tool.geartrain]`: what goes into its bundles besides the
modules that the flow imports.

Beside the search for a flow's files. Guarantees: only what is named there comes in: files below the folder
that Python imports from, and wheels of pure Python. Any mistake is one sentence that names the file and key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from geartrain.bundle.archive import FILE_BYTES_MAX, entries_of
from geartrain.bundle.manifest import check_range
from geartrain.errors import BundleError, ConfigError
from geartrain.errors.conversion import ConversionCode, read_conversion
from geartrain.errors.reason import Reason

PROJECT = "pyproject.toml"
PURE = "-none-any.whl"
"""How the name of a wheel ends that runs anywhere."""
NATIVE = (".so", ".pyd", ".dylib", ".dll")


class Project(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[tool.geartrain]`.

    flow: `module:flow`; files: patterns below the folder that holds the package, such as
    `coldchain/models/*.json`; wheels: paths from the folder of pyproject.toml; geartrain, python: the
    versions that can run it.
    """

    flow: str = ""
    files: list[str] = []
    wheels: list[str] = []
    geartrain: str = ""
    python: str = ""


def project_of(root: Path) -> tuple[Path, Project] | None:
    """The project whose packages lie in `root`, and the folder of its pyproject.toml; None for no project.

    root: the project's folder, or `src` in it. Raises `ConfigError`.
    """
    for folder in (root, root.parent) if root.name == "src" else (root,):
        if (folder / PROJECT).is_file():
            return folder, _read(folder / PROJECT)
    return None


def _sentence(place: str, reason: Reason) -> str:
    where = f"{place}: " if place else ""
    if reason.code == ConversionCode.UNKNOWN_FIELD:
        return f"{where}object contains unknown field {reason['field']}"
    if reason.code == ConversionCode.MISSING_FIELD:
        return f"{where}object missing required field {reason['field']}"
    words = str(reason["text"]).replace("`", "")
    return f"{where}{words}"


def _read(path: Path) -> Project:
    try:
        content: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        at = f"its byte {error.start + 1} is not UTF-8"
        raise ConfigError(f"{path} is not a TOML file: {at}: save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: correct what stands there ({error})") from None
    own = _table(content, "tool").get("geartrain", {})
    try:
        found = msgspec.convert(own, Project)
        check_range(found.geartrain)
        check_range(found.python)
    except msgspec.ValidationError as error:
        place, reason = read_conversion(error)
        raise ConfigError(f"{path}: [tool.geartrain] {_sentence(place, reason)}") from None
    except BundleError as error:
        raise ConfigError(f"{path}: [tool.geartrain] {error}") from None
    if found.python:
        return found
    needs = _table(content, "project").get("requires-python", "")
    try:
        check_range(needs if isinstance(needs, str) else "")
    except BundleError:
        needs = ""  # written in a way that pip alone understands
    return msgspec.structs.replace(found, python=needs if isinstance(needs, str) else "")


def _table(content: Any, key: str) -> dict[str, Any]:
    found = content.get(key)
    return found if isinstance(found, dict) else {}


def named_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """The files that the project of `root` names, by their path below `root`: raises `ConfigError`."""
    if (found := project_of(root)) is None:
        return
    folder, project = found
    where = f"{folder / PROJECT}: [tool.geartrain]"
    for pattern in project.files:
        yield from _matching(root, pattern, f"{where} files: {pattern!r}")
    for wheel in project.wheels:
        yield from _unpacked(folder / wheel, f"{where} wheels: {wheel!r}")


def _matching(root: Path, pattern: str, where: str) -> Iterator[tuple[str, bytes]]:
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise ConfigError(f"{where}: write a pattern below {root}, such as coldchain/models/*.json")
    top, count = root.resolve(), 0
    try:
        for path in sorted(root.glob(pattern)):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            if not path.resolve().is_relative_to(top):
                raise ConfigError(f"{where}: {path} is a link that leads out of {root}")
            if path.name.endswith(NATIVE):
                raise ConfigError(f"{where}: {path.name} is made for one machine: a bundle runs on every one")
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{where}: {path} has more than {FILE_BYTES_MAX >> 20} MiB")
            count += 1
            yield path.relative_to(root).as_posix(), path.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: {error}") from None
    if not count:
        raise ConfigError(f"{where}: no file below {root} is called so")


def _unpacked(path: Path, where: str) -> Iterator[tuple[str, bytes]]:
    if not path.name.endswith(PURE):
        raise ConfigError(f"{where}: only a wheel of pure Python goes into a bundle: its name ends in {PURE}")
    try:
        with path.open("rb") as file:
            for name, content in entries_of(file, "the wheel"):
                if name.split("/")[0].endswith(".data") or name.endswith(NATIVE):
                    raise ConfigError(f"{where}: it holds {name}, which would have to be installed")
                yield name, content
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror or error}") from None
    except BundleError as error:
        raise ConfigError(f"{where}: {error}") from None
