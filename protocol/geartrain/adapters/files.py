"""Files that others must never see half-written, or at all: written beside their place, 0600, then renamed.

For configurations, manifests and results, which a crash may lose; what must be durable is synced by
`fsync_path` too. The log has its own `Disk` port.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, with mode 0700; raises `OSError`."""
    for folder in reversed([path, *path.parents]):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: str | bytes) -> None:
    """Replace the file at `path` by `content` (text as UTF-8) in one step, with mode 0600.

    Makes the folders above it (0700). Raises `OSError`.
    """
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def whole_files(folder: Path) -> list[Path]:
    """What lies in a folder, in any order, without the drafts of files that are written just now, or that a
    kill has left: their names begin with a dot. Nothing where there is no folder. Raises `OSError`.
    """
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []


def write_durable(path: Path, content: bytes) -> None:
    """`write_private`, and durable when it returns, its name in its folder too. Raises `OSError`."""
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    replace_durably(path, draft)


def replace_durably(path: Path, draft: Path) -> None:
    """Put the file `draft` in the place of `path`, on the same file system: its content and name are durable
    when this returns. Raises `OSError`.
    """
    fsync_path(draft)
    draft.replace(path)
    fsync_path(path.parent)


def read_durably(path: Path) -> bytes:
    """A file that `write_durable` wrote, made durable: a process that was killed may have left it in the page
    cache only. Raises `OSError`.
    """
    content = path.read_bytes()
    fsync_path(path)
    fsync_path(path.parent)
    return content


def write_tree(folder: Path, files: Iterable[tuple[str, Iterable[bytes]]]) -> None:
    """Make a folder with these files (0600), durable when it returns; it is there whole or not at all.

    files: the path below the folder and the content in pieces, of each; every path must lie below it. A
    folder that is there already stays as it is. A kill leaves a draft beside it, `.NAME.` and 12 digits.
    Raises `OSError`, and whatever `files` raises.
    """
    make_private_folder(folder.parent)
    draft = folder.with_name(f".{folder.name}.{os.urandom(6).hex()}")
    try:
        make_private_folder(draft)
        for name, content in files:
            path = draft / name
            make_private_folder(path.parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                for part in content:
                    file.write(part)
                file.flush()
                os.fsync(descriptor)
        for inside in [path for path in draft.rglob("*") if path.is_dir()]:
            fsync_path(inside)
        fsync_path(draft)
        draft.rename(folder)
    except BaseException as error:
        import shutil  # which brings megabytes of compression, for once in a while

        shutil.rmtree(draft, ignore_errors=True)
        if not (isinstance(error, OSError) and folder.is_dir()):  # made at the same time by another
            raise
    fsync_path(folder.parent)


def fsync_path(path: Path) -> None:
    """Make a file's content, or a folder's names, durable; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
