"""The code of a flow: the user's files that it rests on, each with a hash, found from its module.

Beside the loading of a flow. Its files are the modules of the user's own package that the flow's module
imports, directly or through others. The settings files in the folders of these packages count, too. A module
without a package has the modules beside it in place of a package. What `[tool.geartrain]` in the project's
pyproject.toml names counts as well: more files, and wheels. In the folder of an unpacked bundle the files are
those of its manifest.

Guarantees: the hashes are the same in every process and place, whatever times, paths, line ends and bytecode
are. Where the project names no more files, they are those of an installed wheel, too. What is only imported
by name at run time (`importlib.import_module(variable)`) is not seen, nor is another distribution.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from geartrain.bundle import MANIFEST, Manifest, code_hash
from geartrain.bundle.archive import FILE_BYTES_MAX, UNPACKED_BYTES_MAX
from geartrain.bundle.manifest import FILES_MAX
from geartrain.bundle.project import NATIVE, named_files
from geartrain.errors import BundleError, ConfigError

SETTINGS = (".json", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".sql")
"""How the names of settings files end, which count beside the modules of a package."""


class Code(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """The files of a flow.

    package: the user's package, or the module that has none; files: sha256 of each by its path below the
    folder that holds the package, such as `coldchain/tasks.py`.
    """

    package: Annotated[str, msgspec.Meta(max_length=1_024)] = ""
    files: dict[str, str] = {}

    @cached_property
    def hash(self) -> str:
        """64 hexadecimal digits: sha256 of the files' names and hashes."""
        return code_hash(self.files)


def code_of(flow: str) -> Code:
    """The code of the flow `module:name`; its module need not be loaded, but those above it are.

    Raises `ConfigError` for a module that is not there, a file that cannot be read, and too many files.
    """
    module = flow.partition(":")[0]
    files: dict[str, str] = {}

    def take(name: str, content: bytes) -> None:
        files[name] = hashlib.sha256(content).hexdigest()

    _Search(module, take).run()
    return Code(module.partition(".")[0], dict(sorted(files.items())))


def contents_of(flow: str) -> dict[str, bytes]:
    """The same files with what is in them, for a bundle.

    Raises `ConfigError`, also for one that cannot go there.
    """
    module = flow.partition(":")[0]
    files: dict[str, bytes] = {}

    def take(name: str, content: bytes) -> None:
        if name.endswith(NATIVE):
            raise ConfigError(
                f"the code of flow {module}: {name} is made for one machine, and a bundle runs on every one: "
                "install its package on the devices, or write it in Python"
            )
        files[name] = content
        if sum(map(len, files.values())) > UNPACKED_BYTES_MAX:
            raise ConfigError(
                f"the code of flow {module} has more than {UNPACKED_BYTES_MAX >> 20} MiB: keep data elsewhere"
            )

    _Search(module, take).run()
    return files


class _Search:
    """The search through the imports of a flow's module, which gives each file to `take`."""

    def __init__(self, module: str, take: Callable[[str, bytes], None]) -> None:
        self._module, self._package, self._take = module, module.partition(".")[0], take
        self._taken: dict[str, str] = {}
        self._seen: dict[str, ModuleSpec | None] = {}
        spec = self._spec(module)
        if spec is None:
            raise ConfigError(f"the code of flow {module}: there is no module {module!r}")
        self._alone = Path(str(spec.origin)).parent if "." not in module and _is_plain(spec) else None

    def run(self) -> None:
        """Give all its files."""
        root = self._root()
        if root is not None and (root / MANIFEST).is_file():
            self._take_bundle(root)
            return
        self._follow()
        for name, content in named_files(root) if root is not None else ():
            self._note(name, _same_everywhere(name, content))

    def _root(self) -> Path | None:
        """The folder that Python finds the package in."""
        top = self._spec(self._package)
        if top is None:
            return None
        folders = list(top.submodule_search_locations or ())
        if folders:
            return Path(folders[0]).parent
        return Path(str(top.origin)).parent if top.has_location else None

    def _take_bundle(self, root: Path) -> None:
        """The files that the manifest of an unpacked bundle names, as they are now."""
        try:
            for name in Manifest.from_json((root / MANIFEST).read_bytes()).files:
                self._note(name, (root / name).read_bytes())
        except (BundleError, OSError) as error:
            raise ConfigError(f"the code of flow {self._module}: bundle {root}: {error}") from None

    def _follow(self) -> None:
        """The user's modules that the flow imports, and the settings beside them."""
        waiting = [self._module]
        found: set[str] = set()
        while waiting:
            name = waiting.pop()
            spec = None if name in found else self._ours(name)
            if spec is None:
                continue
            found.add(name)
            waiting.append(name.rpartition(".")[0])  # whose __init__ runs first
            waiting += self._imports(name, spec)

    def _spec(self, name: str) -> ModuleSpec | None:
        """Where a module is, found without running any; None for a name that is no module."""
        if name not in self._seen:
            above, _, own = name.rpartition(".")
            found: ModuleSpec | None = None
            if not own.isidentifier():
                pass
            elif not above:
                try:
                    found = find_spec(name)
                except (ImportError, ValueError):
                    found = None  # such as __main__
            elif (
                package := self._spec(above)
            ) is not None and package.submodule_search_locations is not None:
                found = PathFinder.find_spec(name, package.submodule_search_locations)
            self._seen[name] = found
        return self._seen[name]

    def _ours(self, name: str) -> ModuleSpec | None:
        """Where a module of the user's is: of the package, or beside a module without one."""
        if name == self._package or name.startswith(f"{self._package}."):
            return self._spec(name)
        if self._alone is None or "." in name:
            return None
        spec = self._spec(name)
        if spec is None or not _is_plain(spec) or Path(str(spec.origin)).parent != self._alone:
            return None
        return spec

    def _imports(self, name: str, spec: ModuleSpec) -> Iterator[str]:
        """Note the file of a module, and the settings beside a package's; what it may import."""
        folders = list(spec.submodule_search_locations or ())
        for folder in folders[:1]:
            self._note_settings(name, Path(folder))
        if spec.origin is None or not spec.has_location:
            return  # a package without __init__
        place = name.replace(".", "/")
        if not spec.origin.endswith(".py"):
            self._note(
                f"{place}{Path(spec.origin).suffix}", b""
            )  # made for one machine: only that it is there
            return
        content = self._read(spec)
        self._note(f"{place}/__init__.py" if folders else f"{place}.py", content)
        yield from _imported(content, name if folders else name.rpartition(".")[0])

    def _read(self, spec: ModuleSpec) -> bytes:
        loader: Any = spec.loader
        try:
            content = bytes(loader.get_data(spec.origin))
        except (OSError, AttributeError) as error:
            raise ConfigError(
                f"the code of flow {self._module}: {spec.origin} cannot be read: {error}"
            ) from None
        return _same_everywhere(spec.origin or "", content)

    def _note_settings(self, package: str, folder: Path) -> None:
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix in SETTINGS)
            for path in paths:
                if not path.name.startswith(".") and path.stat().st_size <= FILE_BYTES_MAX and path.is_file():
                    name = f"{package.replace('.', '/')}/{path.name}"
                    self._note(name, _same_everywhere(name, path.read_bytes()))
        except (NotADirectoryError, FileNotFoundError):
            return  # of a zip, or gone
        except OSError as error:
            raise ConfigError(
                f"the code of flow {self._module}: {error.filename}: {error.strerror}"
            ) from None

    def _note(self, name: str, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        if self._taken.setdefault(name, digest) != digest:
            raise ConfigError(
                f"the code of flow {self._module}: there are two files {name}, such as one of a wheel: "
                "a bundle holds one of them"
            )
        self._take(name, content)
        if len(self._taken) > FILES_MAX:
            raise ConfigError(f"the code of flow {self._module} has more than {FILES_MAX:,} files")


def _same_everywhere(name: str, content: bytes) -> bytes:
    """A file's content with the line ends of every system, where it is text that is known here."""
    return content.replace(b"\r\n", b"\n") if name.endswith((".py", *SETTINGS)) else content


def _is_plain(spec: ModuleSpec) -> bool:
    """Whether it is a file of Python's and no package."""
    return bool(spec.has_location and spec.origin and spec.origin.endswith(".py")) and (
        spec.submodule_search_locations is None
    )


def _imported(content: bytes, package: str) -> Iterator[str]:
    """The names of modules that a module's source may import; some are no modules but things in one."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it cannot be imported, so that it imports nothing
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _all_above(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                root = parts[: len(parts) - node.level + 1]
                base = ".".join([*root, base] if base else root)
            yield from _all_above(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _all_above(name: str) -> Iterator[str]:
    """A module and the packages above it."""
    while name:
        yield name
        name = name.rpartition(".")[0]
