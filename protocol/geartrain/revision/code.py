"""The code of a flow: the user's files that it rests on, each with a hash, found from its module.

Beside the loading of a flow. Its files are the modules of the user's own package that the flow's module
imports, directly or through others. The settings files in the folders of these packages count, too. A module
without a package has the modules beside it in place of a package. Guarantees: the hashes are the same
in every process and place: of a working folder or an installed wheel, whatever times, paths, line ends and
bytecode are. What is only imported by name at run time (`importlib.import_module(variable)`) is not seen,
nor is another distribution.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from geartrain.errors import ConfigError

FILES_MAX = 5_000
"""Files of one flow."""
FILE_BYTES_MAX = 16 << 20
"""Of one of its files."""
SETTINGS = (".json", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".sql")
"""How the names of settings files end, which count beside the modules of a package."""

_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n;#]*)|import[ \t]+([^\n;#]+))",
    re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")


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
        listed = "".join(f"{name}\n{digest}\n" for name, digest in sorted(self.files.items()))
        return hashlib.sha256(listed.encode()).hexdigest()


def code_of(flow: str) -> Code:
    """The code of the flow `module:name`; its module need not be loaded, but those above it are.

    Raises `ConfigError` for a module that is not there, a file that cannot be read, and too many files.
    """
    module = flow.partition(":")[0]
    return _Search(module).code()


class _Search:
    """The search through the imports of a flow's module."""

    def __init__(self, module: str) -> None:
        self._module, self._package = module, module.partition(".")[0]
        self._files: dict[str, str] = {}
        self._seen: dict[str, ModuleSpec | None] = {}
        spec = self._spec(module)
        if spec is None:
            raise ConfigError(f"the code of flow {module}: there is no module {module!r}")
        self._alone = Path(str(spec.origin)).parent if "." not in module and _is_plain(spec) else None

    def code(self) -> Code:
        """All its files."""
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
        return Code(self._package, dict(sorted(self._files.items())))

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
        yield from _imported(content.decode("utf-8", "replace"), name if folders else name.rpartition(".")[0])

    def _read(self, spec: ModuleSpec) -> bytes:
        loader: Any = spec.loader
        try:
            content = bytes(loader.get_data(spec.origin))
        except (OSError, AttributeError) as error:
            raise ConfigError(
                f"the code of flow {self._module}: {spec.origin} cannot be read: {error}"
            ) from None
        return content.replace(b"\r\n", b"\n")

    def _note_settings(self, package: str, folder: Path) -> None:
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix in SETTINGS)
            for path in paths:
                if not path.name.startswith(".") and path.stat().st_size <= FILE_BYTES_MAX and path.is_file():
                    content = path.read_bytes().replace(b"\r\n", b"\n")
                    self._note(f"{package.replace('.', '/')}/{path.name}", content)
        except (NotADirectoryError, FileNotFoundError):
            return  # of a zip, or gone
        except OSError as error:
            raise ConfigError(
                f"the code of flow {self._module}: {error.filename}: {error.strerror}"
            ) from None

    def _note(self, name: str, content: bytes) -> None:
        self._files[name] = hashlib.sha256(content).hexdigest()
        if len(self._files) > FILES_MAX:
            raise ConfigError(f"the code of flow {self._module} has more than {FILES_MAX:,} files")


def _is_plain(spec: ModuleSpec) -> bool:
    """Whether it is a file of Python's and no package."""
    return bool(spec.has_location and spec.origin and spec.origin.endswith(".py")) and (
        spec.submodule_search_locations is None
    )


def _imported(text: str, package: str) -> Iterator[str]:
    """The names of modules that a module's text may import; some are no modules but things in one."""
    for above, names, plain in _IMPORT.findall(_COMMENT.sub("", text).replace("\\\n", " ")):
        if plain:
            for part in plain.split(","):
                name = part.split(" as ")[0].strip()
                yield from _all_above(name)
            continue
        base = above.lstrip(".")
        dots = len(above) - len(base)
        if dots:
            parts = package.split(".")
            root = parts[: len(parts) - dots + 1]
            base = ".".join([*root, base] if base else root)
        yield from _all_above(base)
        for part in names.strip("() \t").split(","):
            name = part.split(" as ")[0].strip()
            if name.isidentifier():
                yield f"{base}.{name}"


def _all_above(name: str) -> Iterator[str]:
    """A module and the packages above it."""
    while name:
        yield name
        name = name.rpartition(".")[0]
