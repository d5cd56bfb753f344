"""Landlock: a Linux process gives up access to files, for itself and all that it starts, without any right.

Used by an app's process before it loads code of a user. Guarantees: what was given up does not come back.
It cannot be had through other processes either: the memory of those outside is closed to it, and from Linux
6.12 on it cannot signal them. Names in folders stay visible. What comes later beside a private folder, or
beside one above it, is private, too.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_READ = 1 << 2
_ON_FILES = 1 << 1 | _READ
_TRUNCATE, _REFER = 1 << 14, 1 << 13
_IN_FOLDERS = sum(1 << bit for bit in (4, 5, 6, 7, 8, 9, 10, 11, 12))
"""Remove a folder or a file; make any kind of file."""
_NO_SIGNALS = 1 << 1
_ABI_OF_REFER, _ABI_OF_TRUNCATE, _ABI_OF_NET, _ABI_OF_SCOPES = 2, 3, 4, 6


def landlock_abi() -> int:
    """The version of Landlock that this kernel has, 0 for none."""
    if sys.platform != "linux":
        return 0
    return max(0, _syscall(_CREATE_RULESET, None, 0, _VERSION))


def give_up(private: Collection[Path], own: Collection[Path], read_only: Collection[Path]) -> bool:
    """Have this process and what it starts no access to `private`, but for `own` and, to read, `read_only`.

    Paths are absolute. Returns whether this kernel can; raises `OSError` where it refuses.
    """
    if not (abi := landlock_abi()):
        return False
    on_files = _ON_FILES | (_TRUNCATE if abi >= _ABI_OF_TRUNCATE else 0)
    all_of_it = on_files | _IN_FOLDERS | (_REFER if abi >= _ABI_OF_REFER else 0)
    sizes = 1 + (abi >= _ABI_OF_NET) + (abi >= _ABI_OF_SCOPES)
    asked = struct.pack(f"={sizes}Q", *(all_of_it, 0, _NO_SIGNALS)[:sizes])
    ruleset = _checked(_syscall(_CREATE_RULESET, asked, len(asked), 0))
    try:
        outside = _others(Path("/"), {*map(os.path.realpath, private)})
        for path in (*outside, *map(Path, map(os.path.realpath, own))):
            _allow(ruleset, path, all_of_it if path.is_dir() else on_files)
        for path in map(Path, map(os.path.realpath, read_only)):
            _allow(ruleset, path, _READ)
        _checked(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def _others(folder: Path, private: Collection[str]) -> Iterator[Path]:
    """The highest files and folders that hold nothing private; links lead to one of them, or to nothing."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink() or entry.path in private:
            continue
        if any(path.startswith(f"{entry.path}/") for path in private):
            yield from _others(Path(entry.path), private)
        else:
            yield Path(entry.path)


def _allow(ruleset: int, path: Path, allowed: int) -> None:
    with suppress(OSError):  # it has gone, or was never to be had
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            rule = struct.pack("=Qi", allowed, handle)
            _checked(_syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
        finally:
            os.close(handle)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *given))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
