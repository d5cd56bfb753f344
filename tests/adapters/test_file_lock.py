"""Locks on files: who holds one, what the others are told, and that a lock ends with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain.adapters.file_lock import is_held, locked, open_lock, take_lock, try_lock
from geartrain.errors import DiskError

HOLDER = """
import sys
from pathlib import Path
from geartrain.adapters.file_lock import take_lock
from geartrain.errors import DiskError
take_lock(Path(sys.argv[1]), DiskError, unusable="no", taken="no")
print("held", flush=True)
sys.stdin.read()
"""


def take(path: Path, *, is_shared: bool = False) -> int:
    return take_lock(path, DiskError, unusable="it is no file", taken="another has it", is_shared=is_shared)


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_held(path)
    assert not path.parent.exists()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        with pytest.raises(DiskError, match=r"^another has it$"):
            take(path)
        assert is_held(path)
        holder.kill()
        holder.wait()
    assert not is_held(path)
    os.close(take(path))


def test_a_block_holds_it_and_gives_it_back_whatever_happens(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = open_lock(path)

    def fail() -> None:
        with locked(path, DiskError, unusable="no", taken="no"):
            assert not try_lock(other)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert try_lock(other)
    os.close(other)


def test_those_who_share_it_keep_out_one_who_does_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = take(path, is_shared=True), take(path, is_shared=True)
    os.close(first)
    with pytest.raises(DiskError, match="another has it"):
        take(path)
    os.close(second)
    os.close(take(path))


def test_a_refusal_leaves_nothing_open(tmp_path: Path) -> None:
    held = take(tmp_path / "lock")
    before = sorted(Path("/proc/self/fd").iterdir())
    for path, sentence in (
        (tmp_path / "lock", "another has it"),
        (tmp_path, "it is no file: Is a directory"),
    ):
        with pytest.raises(DiskError, match=f"^{sentence}$"):
            take(path)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    os.close(held)
