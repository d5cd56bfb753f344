"""The folder of a device's bundles, `STATE/bundles`, and the steps that put one there or take one away.

Under the parent and the process that fetches. Guarantees: a bundle has its name, the hash of its code, only
when all of it is durable; one that goes loses its name first. So after kill -9 or a loss of power at any step
a bundle is there whole or not at all, and what was left half is removed. Folders are 0700, files 0600.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Protocol

from geartrain.adapters.files import fsync_path
from geartrain.errors import DiskError

_CODE_CHARS = 64
_HEX = frozenset("0123456789abcdef")
_DRAFT, _GONE = ".new-", ".gone-"


class Files(Protocol):
    """Effects on files, each of which may be the last one of this process. All raise `OSError`."""

    def make_folder(self, path: Path) -> None:
        """A new folder, 0700."""
        ...

    def write(self, path: Path, content: Iterable[bytes]) -> None:
        """A new file, 0600, given in pieces."""
        ...

    def sync(self, path: Path) -> None:
        """Make a file's content, or a folder's names, durable."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Give it another name."""
        ...

    def remove(self, path: Path) -> None:
        """A file, or an empty folder."""
        ...


class SystemFiles:
    """`Files` of this machine."""

    def make_folder(self, path: Path) -> None:
        """A new folder, 0700."""
        path.mkdir(mode=0o700)

    def write(self, path: Path, content: Iterable[bytes]) -> None:
        """A new file, 0600, given in pieces."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for part in content:
                file.write(part)

    def sync(self, path: Path) -> None:
        """Make durable."""
        fsync_path(path)

    def rename(self, old: Path, new: Path) -> None:
        """Give it another name."""
        old.rename(new)

    def remove(self, path: Path) -> None:
        """A file, or an empty folder."""
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


class BundleFolder:
    """One such folder; all calls but `has` and `path` raise `DiskError`."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root, self._files = root, files or SystemFiles()

    def path(self, code: str) -> Path:
        """Where the bundle of a code is, or would be."""
        return self.root / code

    def has(self, code: str) -> bool:
        """Whether the bundle of a code is there."""
        return is_code(code) and self.path(code).is_dir()

    def draft(self, code: str, files: Iterable[tuple[str, Iterable[bytes]]]) -> Path:
        """The files of a bundle, by relative paths in pieces, in a folder without its name yet, all durable.

        What the pieces raise comes through, and the draft is nothing then.
        """
        draft = self.root / f"{_DRAFT}{code}"
        try:
            self._prepare()
            self._drop(draft)
            self._files.make_folder(draft)
            self._fill(draft, files)
            self._files.sync(draft)
        except OSError as error:
            raise _unwritable(self.root, error) from None
        return draft

    def add(self, code: str, files: Iterable[tuple[str, Iterable[bytes]]]) -> None:
        """More files for the draft of a bundle, all durable; as `draft` else."""
        try:
            self._fill(self.root / f"{_DRAFT}{code}", files)
        except OSError as error:
            raise _unwritable(self.root, error) from None

    def install(self, code: str) -> None:
        """Give the draft of a bundle its name; durable when this returns."""
        try:
            if not self.path(code).is_dir():
                self._files.rename(self.root / f"{_DRAFT}{code}", self.path(code))
            self._files.sync(self.root)
        except OSError as error:
            raise _unwritable(self.root, error) from None

    def discard(self, code: str) -> None:
        """Take the name of a bundle that is damaged; `keep` removes the rest."""
        gone = self.root / f"{_GONE}{code}"
        try:
            self._drop(gone)
            self._files.rename(self.path(code), gone)
            self._files.sync(self.root)
        except OSError as error:
            raise _unwritable(self.root, error) from None

    def keep(self, codes: Collection[str]) -> list[str]:
        """Remove every bundle but these, and whatever was left half; returns the codes that went."""
        went = []
        try:
            if not self.root.is_dir():
                return []
            for path in sorted(self.root.iterdir()):
                if is_code(path.name) and path.name not in codes:
                    self.discard(path.name)
                    self._drop(self.root / f"{_GONE}{path.name}")
                    went.append(path.name)
                elif path.name.startswith((_DRAFT, _GONE)):
                    self._drop(path)
        except OSError as error:
            raise _unwritable(self.root, error) from None
        return went

    def _fill(self, draft: Path, files: Iterable[tuple[str, Iterable[bytes]]]) -> None:
        """Write files below a draft, durably, with the folders that they need."""
        touched = dict[Path, None]()
        for name, content in files:
            path = draft / _checked(name)
            missing = [above for above in path.parents if draft in above.parents and not above.exists()]
            for above in reversed(missing):
                self._files.make_folder(above)
                touched[above.parent] = None
            touched[path.parent] = None
            self._files.write(path, content)
            self._files.sync(path)
        for folder in sorted(touched, reverse=True):
            self._files.sync(folder)

    def _prepare(self) -> None:
        for folder in reversed([self.root, *self.root.parents]):
            if not folder.exists():
                self._files.make_folder(folder)
                self._files.sync(folder.parent)

    def _drop(self, path: Path) -> None:
        """Remove a tree; what it holds is of no use any more, so nothing is synced."""
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            for inner in sorted(path.iterdir()):
                self._drop(inner)
        self._files.remove(path)


def is_code(name: str) -> bool:
    """Whether it has the form of a code's hash."""
    return len(name) == _CODE_CHARS and _HEX.issuperset(name)


def _checked(name: str) -> PurePosixPath:
    """A relative path that stays where it belongs; raises `DiskError`."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name or "\\" in name:
        raise DiskError(f"a bundle has a file {name[:80]!r}, which would lie outside of its folder")
    return path


def _unwritable(root: Path, error: OSError) -> DiskError:
    return DiskError(f"{root} cannot be written: {error.strerror or error}: make room on its disk")
