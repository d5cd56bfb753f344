"""A file system on paper: what of it a loss of power may leave, after each of its operations.

A file's content is durable once it was synced, a name once its folder was. Until then, each change of names
in a folder may be there or not, and a file may be as it was, whole, half, or zeros.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

Change = tuple[str, str, "Folder | File | None"]
"""A name that goes, one that comes, and what it names; empty for none."""


class File:
    """Its content, and what of it is durable; None before any sync."""

    def __init__(self, content: bytes) -> None:
        self.content: bytes = content
        self.durable: bytes | None = None

    def remains(self) -> list[bytes]:
        """What a reader may find after a loss of power."""
        if self.durable == self.content:
            return [self.content]
        half = self.content[: len(self.content) // 2]
        return [self.durable or b"", self.content, half, bytes(len(self.content))]


class Folder:
    """What it holds, the part of that which is durable, and the changes since."""

    def __init__(self) -> None:
        self.now: dict[str, Folder | File] = {}
        self.durable: dict[str, Folder | File] = {}
        self.changes: list[Change] = []

    def change(self, change: Change) -> None:
        """Make one."""
        _apply(self.now, change)
        self.changes.append(change)

    def sync(self) -> None:
        """Make all of them durable."""
        self.durable, self.changes = dict(self.now), []


def _apply(names: dict[str, Folder | File], change: Change) -> None:
    gone, come, what = change
    if gone:
        names.pop(gone, None)
    if come and what is not None:
        names[come] = what


class PaperDisk:
    """`Files` of bundles below one root; `after` holds a copy of the disk after each operation."""

    def __init__(self, root: Path) -> None:
        self.root, self.top = root, Folder()
        self.after: list[tuple[str, Folder]] = [("nothing", copy.deepcopy(self.top))]

    def make_folder(self, path: Path) -> None:
        """A new folder."""
        path.mkdir(mode=0o700)
        self._change("make", path, ("", path.name, Folder()))

    def write(self, path: Path, content: Iterable[bytes]) -> None:
        """A new file."""
        whole = b"".join(content)
        path.write_bytes(whole)
        self._change("write", path, ("", path.name, File(whole)))

    def sync(self, path: Path) -> None:
        """Make a file's content, or a folder's names, durable."""
        found = self._found(path)
        if isinstance(found, Folder):
            found.sync()
        else:
            found.durable = found.content
        self._done(f"sync {path.name}")

    def rename(self, old: Path, new: Path) -> None:
        """Within one folder."""
        assert old.parent == new.parent
        found = self._found(old)
        old.rename(new)
        self._change("rename", new, (old.name, new.name, found))

    def remove(self, path: Path) -> None:
        """A file, or an empty folder."""
        path.rmdir() if path.is_dir() else path.unlink()
        self._change("remove", path, (path.name, "", None))

    def _found(self, path: Path) -> Folder | File:
        found: Folder | File = self.top
        for name in path.relative_to(self.root).parts:
            assert isinstance(found, Folder)
            found = found.now[name]
        return found

    def _change(self, what: str, path: Path, change: Change) -> None:
        folder = self._found(path.parent)
        assert isinstance(folder, Folder)
        folder.change(change)
        self._done(f"{what} {path.name}")

    def _done(self, what: str) -> None:
        self.after.append((what, copy.deepcopy(self.top)))


Tree = dict[str, "bytes | Tree"]


def remains(folder: Folder, most: int = 400) -> Iterator[Tree]:
    """Contents that a loss of power may leave: all kept, all lost, and each single thing otherwise."""
    seen: list[Tree] = []
    for tree in _trees(folder):
        if tree not in seen:
            seen.append(tree)
            yield tree
            if len(seen) >= most:
                return


def _trees(folder: Folder) -> Iterator[Tree]:
    count = len(folder.changes)
    picks = sorted(
        {chosen for size in range(count + 1) for chosen in combinations(range(count), size)},
        key=lambda chosen: (0 < len(chosen) < count, chosen),
    )
    for chosen in picks:
        names = dict(folder.durable)
        for number in chosen:
            _apply(names, folder.changes[number])
        yield from _contents(names)


def _contents(names: dict[str, Folder | File]) -> Iterator[Tree]:
    """Each thing as it may be, while the others are as they may be first."""
    ways = {
        name: list(_trees(one)) if isinstance(one, Folder) else one.remains() for name, one in names.items()
    }
    first: Tree = {name: way[0] for name, way in ways.items()}
    last: Tree = {name: way[-1] for name, way in ways.items()}
    yield first
    for base in (first, last):
        for name, found in ways.items():
            for one in found:
                yield {**base, name: one}


def lay_out(tree: Tree, root: Path) -> None:
    """Make it real."""
    root.mkdir(mode=0o700, parents=True)
    for name, content in tree.items():
        if isinstance(content, dict):
            lay_out(content, root / name)
        else:
            (root / name).write_bytes(content)
