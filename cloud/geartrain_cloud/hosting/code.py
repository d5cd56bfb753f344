"""A user's code, kept by the hash of its files, so that two versions of a module never meet.

`keep` copies packages as they are when a flow is prepared. `Bookcase` stands in Spark's workers: it has the
modules of one version in `sys.modules` while that version's flow runs, and takes them out again.

Guarantees: a flow runs the code with which it was prepared, whatever is installed meanwhile, after a restart
too. A worker that has run one version of a package runs another with that one's own modules. What a package
imports of other distributions is not kept apart.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from geartrain.adapters.files import write_tree
from geartrain_cloud.hosting.errors import HostError

CODE_BYTES_MAX = 64 << 20
"""Bytes of one package that are kept; a larger one holds data that belong elsewhere."""
CODE_FILES_MAX = 10_000
"""Files of one package."""

_BYTECODE = "__pycache__"
_FRAMEWORK = frozenset(
    f"geartrain{part}" for part in ("", "_client", "_cloud", "_devices", "_edge", "_simulation")
)


# Where a flow is prepared


def user_packages(entry: str, before: frozenset[str]) -> list[str]:
    """The top-level names of a user's own code: that of module `entry`, and those that were imported since
    `before` from no installed distribution.
    """
    first = entry.partition(".")[0]
    new = {name.partition(".")[0] for name in set(sys.modules) - before} - _FRAMEWORK - {first}
    return [first, *sorted(name for name in new if _is_users(name))]


def _is_users(name: str) -> bool:
    if name in sys.stdlib_module_names or name.startswith("_"):
        return False
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    places = _places(sys.modules.get(name))
    return bool(places) and not any(place.is_relative_to(one) for place in places for one in installed)


def _places(module: ModuleType | None) -> list[Path]:
    """The folders of a package, or the file of a module."""
    folders = [Path(one).resolve() for one in getattr(module, "__path__", ())]
    file = getattr(module, "__file__", None)
    return folders or ([Path(file).resolve()] if file else [])


def keep(folder: Path, names: list[str]) -> dict[str, str]:
    """Copy these packages into `folder`, each under the hash of its files; the hashes by name.

    Raises `HostError` for one that is too large or has no files, and `OSError`.
    """
    return {name: _keep(folder, name, _places(sys.modules.get(name))) for name in names}


def keep_bundle(folder: Path, bundle: Path) -> dict[str, str]:
    """The same for all that an unpacked bundle holds, whether it was imported or not."""
    places = [path for path in bundle.iterdir() if path.is_dir() or path.suffix == ".py"]
    modules = [path for path in places if path.stem.isidentifier() and path.name != _BYTECODE]
    return {path.stem: _keep(folder, path.stem, [path]) for path in modules}


def hash_of(name: str, places: list[Path]) -> str:
    """The hash of the files of a package; raises `HostError` and `OSError`."""
    return _hash(_files_of(name, places))


def _hash(files: Mapping[str, Path]) -> str:
    total = sha256()
    for inside, path in files.items():
        total.update(f"{inside}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _keep(folder: Path, name: str, places: list[Path]) -> str:
    files = _files_of(name, places)
    code = _hash(files)
    place = folder / code
    if place.exists():
        return code
    write_tree(place, ((inside, [path.read_bytes()]) for inside, path in files.items()))
    return code


def _files_of(name: str, places: list[Path]) -> dict[str, Path]:
    """The files of a package by their place beside `sys.path`, sorted."""
    found: dict[str, Path] = {}
    size = 0
    for place in places:
        if place.is_file():
            found[place.name] = place
        for path in sorted(place.rglob("*")) if place.is_dir() else ():
            if path.is_file() and _BYTECODE not in path.parts:
                found[f"{name}/{path.relative_to(place)}"] = path
                size += path.stat().st_size
                if size > CODE_BYTES_MAX or len(found) > CODE_FILES_MAX:
                    raise HostError(
                        f"package {name} is larger than {CODE_BYTES_MAX >> 20} MiB or {CODE_FILES_MAX:,} "
                        "files: move its data elsewhere"
                    )
    if not found:
        raise HostError(f"package {name} has no files that could be kept: give the flow a module of its own")
    return dict(sorted(found.items()))


# Where it runs


class _Shelf:
    """The modules of one version of some packages, while they are not in `sys.modules`."""

    def __init__(self, folder: Path, code: Mapping[str, str]) -> None:
        self.names = frozenset(code)
        self.paths = [str(folder / one) for one in code.values()]
        self.modules: dict[str, ModuleType] = {}


class Bookcase:
    """All versions of users' packages that this process has opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shelves: dict[tuple[tuple[str, str], ...], _Shelf] = {}

    @contextmanager
    def use(self, code: Mapping[str, str]) -> Iterator[None]:
        """Have these versions be what `import` finds in the block; raises `HostError` for a missing one."""
        if not code:  # of a flow without a user's package; to look for its modules takes long
            yield
            return
        key = tuple(sorted(code.items()))
        shelf = self._shelves.get(key)
        if shelf is None:
            for name, one in key:
                if not (self._folder / one).is_dir():
                    raise HostError(f"the code of package {name} is missing at {self._folder / one}")
            shelf = self._shelves[key] = _Shelf(self._folder, code)
            PathFinder.invalidate_caches()
            importlib.invalidate_caches()
        outside = _taken(shelf.names)
        sys.modules.update(shelf.modules)
        sys.path[:0] = shelf.paths
        try:
            yield
        finally:
            for path in shelf.paths:
                sys.path.remove(path)
            shelf.modules = _taken(shelf.names)
            sys.modules.update(outside)


def _taken(names: frozenset[str]) -> dict[str, ModuleType]:
    """Take the modules of these packages out of `sys.modules`."""
    inside = tuple(f"{name}." for name in names)
    found = [name for name in list(sys.modules) if name in names or name.startswith(inside)]
    return {name: sys.modules.pop(name) for name in found}
