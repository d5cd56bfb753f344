"""A card is written only where it can be taken out and is not in use, and what was written is compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from geartrain.errors import MistakeError
from geartrain_client.errors import FailedError
from geartrain_client.flash import card
from geartrain_client.flash.card import Disks, write_card

ROOM = 3 * card.CHUNK
Change = Callable[["Machine"], object]


class Machine:
    """A machine with one disk `sdz`, whose partition is `sdz1`; its kernel's files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.device, self.sys = folder / "dev" / "sdz", folder / "sys"
        self.mounts, self.swaps = folder / "mountinfo", folder / "swaps"
        self.device.parent.mkdir()
        self.device.write_bytes(os.urandom(ROOM))
        self.image = folder / "device.img"
        self.image.write_bytes(os.urandom(2 * card.CHUNK + 5))
        self.says(removable="1", ro="0", size=str(ROOM // 512), dev="8:240")
        part = self.sys / "sdz" / "sdz1"
        (part / "holders").mkdir(parents=True)
        (part / "partition").write_text("1\n", encoding="ascii")
        (part / "dev").write_text("8:241\n", encoding="ascii")
        self.mounts.write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", encoding="ascii")
        self.swaps.write_text(
            "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n", encoding="ascii"
        )
        self.disks = Disks(self.sys, self.mounts, self.swaps, is_disk=lambda path: path.parent.name == "dev")

    def says(self, **files: str) -> None:
        for name, text in files.items():
            path = self.sys / "sdz" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="ascii")

    def write(self, progress: card.Progress = lambda *_: None) -> None:
        write_card(self.image, self.device, progress, self.disks)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_image_is_written_whole_with_progress(machine: Machine) -> None:
    steps: list[tuple[str, int, int]] = []
    rest = machine.device.read_bytes()[machine.image.stat().st_size :]
    machine.write(lambda *step: steps.append(step))
    assert machine.device.read_bytes() == machine.image.read_bytes() + rest
    size = machine.image.stat().st_size
    each = [card.CHUNK, 2 * card.CHUNK, size]
    assert steps == [(what, done, size) for what in ("writing", "comparing") for done in each]


def test_a_card_in_a_reader_that_is_built_in_is_removable_too(machine: Machine) -> None:
    machine.says(removable="0", device__type="SD")
    machine.write()
    assert machine.device.read_bytes().startswith(machine.image.read_bytes())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.says(removable="0"), "not removable"),
        (lambda m: m.says(removable="0", device__type="MMC"), "not removable"),
        (lambda m: m.says(ro="1"), "write-protected"),
        (lambda m: m.says(size="64"), "has 0 MiB and the image needs 9"),
        (lambda m: m.says(partition="1"), "is a partition: name the whole disk"),
        (
            lambda m: m.mounts.write_text("9 1 8:241 / /media/card rw - vfat /dev/mapper/x rw\n"),
            "run umount /media/card",
        ),
        (lambda m: m.mounts.write_text("9 1 8:240 / /mnt rw - ext4 /dev/sdz rw\n"), "run umount /mnt"),
        (lambda m: m.swaps.write_text("Filename\n/dev/sdz1 partition 1 0 -2\n"), "run swapoff /dev/sdz1"),
        (lambda m: (m.sys / "sdz/sdz1/holders/dm-0").mkdir(), "in use by dm-0"),
        (lambda m: m.device.unlink(), "cannot be found"),
    ],
)
def test_a_disk_that_may_hold_something_is_refused_untouched(
    machine: Machine, change: Change, said: str
) -> None:
    before = machine.device.read_bytes()
    change(machine)
    with pytest.raises(MistakeError, match=said):
        machine.write()
    assert not machine.device.exists() or machine.device.read_bytes() == before


def test_a_file_is_no_disk(machine: Machine) -> None:
    with pytest.raises(MistakeError, match="is no disk"):
        write_card(machine.image, machine.device, lambda *_: None)


def test_a_card_that_does_not_keep_what_it_is_given_is_found(machine: Machine) -> None:
    def spoil(what: str, done: int, size: int) -> None:
        if what == "writing" and done == size:
            with machine.device.open("r+b") as file:
                file.seek(card.CHUNK + 7)
                file.write(b"\0\0\0\0")

    with pytest.raises(FailedError, match="does not hold what was written"):
        machine.write(spoil)


def test_a_card_that_fails_is_one_sentence(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(FailedError, match="failed: Input/output error: try another card"):
        machine.write()
