"""Power is lost after each step of an install and of a removal: a bundle is there whole, or not at all."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from geartrain.bundle import Archive
from geartrain.control.states import App
from geartrain_edge.bundles.choice import Choice
from geartrain_edge.bundles.folder import BundleFolder
from geartrain_edge.bundles.kept_choices import decode_choices, encode_choices
from geartrain_simulation.machine.platter import Platter
from tests.bundles.paper_disk import PaperDisk, lay_out, remains
from tests.bundles.versions import bundle

GOOD, GOOD_ARCHIVE = bundle("good")
BETTER, BETTER_ARCHIVE = bundle("better")
MORE = [("coldroom/__pycache__/flow.pyc", [b"bytecode"]), ("list.json", [b"{}"])]


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def expected(archive: bytes) -> dict[str, bytes]:
    found = {name: b"".join(parts) for name, parts in Archive(io.BytesIO(archive)).files()}
    return found | {name: b"".join(parts) for name, parts in MORE}


def put(folder: BundleFolder, code: str, archive: bytes) -> None:
    folder.draft(code, Archive(io.BytesIO(archive)).files())
    folder.add(code, MORE)
    folder.install(code)


def test_power_loss_at_every_step_leaves_a_device_that_starts(tmp_path: Path) -> None:
    disk = PaperDisk(tmp_path / "disk")
    disk.root.mkdir()
    folder = BundleFolder(disk.root / "bundles", disk)
    put(folder, GOOD, GOOD_ARCHIVE)
    installed = len(disk.after)
    put(folder, BETTER, BETTER_ARCHIVE)
    changed = len(disk.after)
    assert folder.keep({BETTER}) == [GOOD]
    whole = {GOOD: expected(GOOD_ARCHIVE), BETTER: expected(BETTER_ARCHIVE)}
    states = 0
    for step, (what, top) in enumerate(disk.after):
        for tree in remains(top):
            states += 1
            root = tmp_path / f"after-{step}-{states}"
            lay_out(tree, root)
            found = BundleFolder(root / "bundles")
            for code, content in whole.items():
                assert not found.has(code) or content_of(found.path(code)) == content, (what, code)
            if installed <= step < changed:  # its install had returned
                assert found.has(GOOD), what
            if step >= changed:
                assert found.has(BETTER), what
            found.keep({GOOD, BETTER})
            for code, archive in ((GOOD, GOOD_ARCHIVE), (BETTER, BETTER_ARCHIVE)):
                if not found.has(code):
                    put(found, code, archive)
                assert content_of(found.path(code)) == whole[code], what
            assert {path.name for path in found.root.iterdir()} == {GOOD, BETTER}, what
    print(f"{len(disk.after)} steps, {states} states")
    assert len(disk.after) > 30
    assert states > 100


@pytest.mark.parametrize("forgotten", ["sync of a file", "sync of the draft", "sync of the root"])
def test_a_forgotten_sync_is_found(tmp_path: Path, forgotten: str) -> None:
    class Forgetful(PaperDisk):
        def sync(self, path: Path) -> None:
            kind = {
                "sync of a file": path.name == "flow.py",
                "sync of the draft": path.name.startswith(".new-"),
                "sync of the root": path.name == "bundles",
            }[forgotten]
            if not kind:
                super().sync(path)

    disk = Forgetful(tmp_path / "disk")
    disk.root.mkdir()
    put(BundleFolder(disk.root / "bundles", disk), GOOD, GOOD_ARCHIVE)
    whole, bad = expected(GOOD_ARCHIVE), 0
    for number, tree in enumerate(remains(disk.after[-1][1])):
        lay_out(tree, tmp_path / str(number))
        found = BundleFolder(tmp_path / str(number) / "bundles")
        bad += not found.has(GOOD) or content_of(found.path(GOOD)) != whole
    assert bad


def test_power_loss_while_a_choice_is_kept_leaves_the_old_one_or_the_new_one() -> None:
    app = App("coldroom.1", "coldroom.flow:flow", code=GOOD)
    old = {"coldroom.1": Choice(proved=app, begun=app)}
    new = {"coldroom.1": Choice(proved=app, begun=app, tried=BETTER, tries=1)}
    platter = Platter(random.Random(1))
    steps: list[Callable[[], None]] = [
        lambda: platter.put("choices.json.new", encode_choices(new)),
        lambda: platter.sync("choices.json.new"),
        lambda: platter.rename("choices.json.new", "choices.json"),
        lambda: platter.sync("choices.json"),
    ]
    platter.put("choices.json", encode_choices(old))
    platter.sync("choices.json")
    found = []
    for step in steps:
        step()
        found = [decode_choices(files["choices.json"]) for files in platter.crash_states(500)]
        assert all(one in (old, new) for one in found)
    assert found
    assert all(one == new for one in found)
