"""Folders that are written whole: what a kill at any step leaves, and what is durable."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.adapters.files import whole_files, write_durable, write_private, write_tree

TREE = {"a.py": [b"a", b" = 1\n"], "deep/er/b.bin": [b"\0" * 100], "deep/c.py": []}


def read(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_tree_has_its_files_for_its_owner_alone(tmp_path: Path) -> None:
    write_tree(tmp_path / "made" / "tree", TREE.items())
    folder = tmp_path / "made" / "tree"
    assert read(folder) == {name: b"".join(parts) for name, parts in TREE.items()}
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")} == {0o600, 0o700}
    write_tree(folder, [("other.py", [b"1"])])
    assert set(read(folder)) == set(TREE)  # as it was
    assert [p.name for p in folder.parent.iterdir()] == ["tree"]


def test_a_tree_that_fails_is_not_there(tmp_path: Path) -> None:
    def torn() -> Iterator[bytes]:
        yield b"some"
        raise ValueError("spoiled")

    with pytest.raises(ValueError, match="spoiled"):
        write_tree(tmp_path / "tree", [("a.py", [b"1"]), ("b.py", torn())])
    assert list(tmp_path.iterdir()) == []


def test_a_kill_at_any_step_leaves_it_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call that changes the disk or makes it durable, the process dies before it."""
    points = ("mkdir", "open", "fsync", "rename")
    steps = 0

    class Died(BaseException):
        pass

    def dying(call: str, at: int) -> None:
        real = getattr(os, call)

        def change(*args: object, **more: object) -> object:
            nonlocal steps
            steps += 1
            if steps > at:
                raise Died
            return real(*args, **more)

        monkeypatch.setattr(os, call, change)

    whole, at = 0, 0
    while True:
        steps, folder = 0, tmp_path / f"at{at}"
        with monkeypatch.context():
            for call in points:
                dying(call, at)
            monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # a dead process tidies nothing
            try:
                write_tree(folder, TREE.items())
                ended = True
            except Died:
                ended = False
            monkeypatch.undo()
        if folder.exists():
            whole += 1
            assert read(folder) == {name: b"".join(parts) for name, parts in TREE.items()}
        if ended:
            break
        at += 1
    assert at > 15
    assert whole >= 1


def test_drafts_are_no_whole_files(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    assert whole_files(folder) == []
    write_private(folder / "a", "1")
    write_durable(folder / "b", b"2")
    for draft in (".a.0123456789ab", ".b.new"):
        (folder / draft).write_text("half")
    assert {path.name for path in whole_files(folder)} == {"a", "b"}
