"""Images laid out as those of Ubuntu, Raspberry Pi OS and others: prepared without root, or refused."""

from __future__ import annotations

import email
import email.policy
import lzma
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import MistakeError
from geartrain_client.errors import FailedError
from geartrain_client.flash.base_image import prepare_image
from tests.flash.disks import FAT_SIZE, FAT_START, disk, take

pytestmark = [pytest.mark.mtools, pytest.mark.slow]

INSTALLER = b"\x1f\x8b" + bytes(range(256)) * 4096
UBUNTU = {
    "user-data": b"#cloud-config\nchpasswd:\n  expire: true\n",
    "meta-data": b"dsmode: local\n",
    "network-config": b"version: 2\n",
    "cmdline.txt": b"console=tty1 root=LABEL=writable\n",
}
PI_CARD = {
    "cmdline.txt": b"console=tty1 root=PARTUUID=1-02 rootwait systemd.run=/boot/firstrun.sh\n",
    "issue.txt": b"Raspberry Pi reference 2024-07-04\n",
    "firstrun.sh": b"#!/bin/bash\n\nset +e\n\necho own >OWN\nrm -f /boot/firstrun.sh\n"
    b"sed -i 's| systemd.run.*||g' /boot/cmdline.txt\nexit 0\n",
}
PI_FRESH = {
    "cmdline.txt": b"console=tty1 root=PARTUUID=1-02 rootwait init=/usr/lib/raspberrypi-sys-mods/firstboot\n",
    "issue.txt": b"Raspberry Pi reference 2024-07-04\nGenerated using pi-gen\n",
    "config.txt": b"arm_64bit=1\n",
}


def text_of(part: Any) -> bytes:
    return bytes(part.get_payload(decode=True)).strip()


def prepared(base: Path, output: Path) -> str:
    return prepare_image(base, output, lambda: INSTALLER).system


@pytest.mark.parametrize("table", ["mbr", "gpt"])
def test_an_image_with_cloud_init_gets_a_part_more(tmp_path: Path, table: str) -> None:
    base = disk(tmp_path / "base.img", UBUNTU, table=table)
    before, output = base.read_bytes(), tmp_path / "device.img"
    assert prepared(base, output) == "a system with cloud-init"
    assert base.read_bytes() == before
    assert output.stat().st_mode & 0o777 == 0o600
    assert take(output, "geartrain-installer.tar.gz") == INSTALLER
    message = email.message_from_bytes(take(output, "user-data"), policy=email.policy.default)
    there, ours = message.iter_parts()
    assert text_of(there) == UBUNTU["user-data"].strip()
    assert there.get_content_type() == "text/plain"
    assert ours.get_content_type() == "text/x-shellscript-per-boot"
    for name in UBUNTU.keys() - {"user-data"}:
        assert take(output, name) == UBUNTU[name]
    rest = FAT_START + FAT_SIZE
    assert output.read_bytes()[rest:] == before[rest:]
    assert output.read_bytes()[:FAT_START] == before[:FAT_START]
    again = tmp_path / "again.img"
    prepared(base, again)
    assert again.read_bytes() == output.read_bytes()


def test_a_second_installer_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first, second = tmp_path / "first.img", tmp_path / "second.img"
    prepared(disk(tmp_path / "base.img", UBUNTU), first)
    prepared(first, second)
    message = email.message_from_bytes(take(second, "user-data"), policy=email.policy.default)
    parts = list(message.iter_parts())
    assert text_of(parts[0]) == UBUNTU["user-data"].strip()
    assert [part.get_content_type() for part in parts[1:]] == ["text/x-shellscript-per-boot"]


def test_a_card_of_raspberry_pi_imager_runs_both_its_script_and_ours(tmp_path: Path) -> None:
    output = tmp_path / "device.img"
    assert prepared(disk(tmp_path / "base.img", PI_CARD), output) == "Raspberry Pi OS"
    assert take(output, "cmdline.txt") == PI_CARD["cmdline.txt"]
    script = take(output, "firstrun.sh").decode()
    run_first_boot(tmp_path, script)
    assert (tmp_path / "OWN").read_text(encoding="ascii") == "own\n"


def test_a_fresh_raspberry_pi_os_gets_a_script_as_its_imager_writes_it(tmp_path: Path) -> None:
    base, output = disk(tmp_path / "base.img", PI_FRESH), tmp_path / "device.img"
    packed = tmp_path / "base.img.xz"
    packed.write_bytes(lzma.compress(base.read_bytes(), preset=0))
    assert prepared(packed, output) == "Raspberry Pi OS"
    line = take(output, "cmdline.txt").decode()
    assert line == PI_FRESH["cmdline.txt"].decode().strip() + (
        " systemd.run=/boot/firstrun.sh systemd.run_success_action=reboot"
        " systemd.unit=kernel-command-line.target\n"
    )
    run_first_boot(tmp_path, take(output, "firstrun.sh").decode())


def run_first_boot(folder: Path, script: str) -> None:
    """Run `firstrun.sh` in a folder in the place of the root, then the service that it has made."""
    for path in ("boot/firmware", "etc/systemd/system", "usr/local/sbin", "bin"):
        (folder / path).mkdir(parents=True, exist_ok=True)
    (folder / "boot/firstrun.sh").write_text(script, encoding="utf-8")
    (folder / "bin/systemctl").write_text(f'#!/bin/sh\necho "$@" >>{folder}/systemctl\n', encoding="ascii")
    (folder / "bin/systemctl").chmod(0o755)
    moved = script
    for path in ("/boot", "/etc/systemd", "/usr/local"):
        moved = moved.replace(f" {path}", f" {folder}{path}").replace(f">{path}", f">{folder}{path}")
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", moved], check=True, cwd=folder, env=environment)
    assert not (folder / "boot/firstrun.sh").exists()
    assert (folder / "systemctl").read_text(encoding="ascii") == "enable geartrain-first-boot.service\n"
    assert "ExecStart=" in (folder / "etc/systemd/system/geartrain-first-boot.service").read_text("utf-8")
    (folder / "made/geartrain-installer").mkdir(parents=True)
    installer = folder / "made/geartrain-installer/install.sh"
    card = folder / "boot/firmware/geartrain-installer.tar.gz"
    service = folder / "usr/local/sbin/geartrain-first-boot"
    for code in (1, 0):  # a first boot at which it fails, and the next
        installer.write_text(f"echo tried; exit {code}\n", encoding="ascii")
        subprocess.run(["tar", "-czf", str(card), "-C", str(folder / "made"), "."], check=True)
        subprocess.run([str(service)], check=True)
        assert card.exists() == bool(code)
        assert (card.parent / "geartrain-install.log").read_text(encoding="ascii") == "tried\n"
    subprocess.run([str(service)], check=True)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"dietpi.txt": b"x"}, r"it is DietPi \(dietpi.txt\)"),
        ({"armbianEnv.txt": b"x"}, "it is Armbian"),
        ({"device-type.json": b"{}"}, "it is balenaOS"),
        ({"EFI.txt": b"x"}, r"neither user-data \(cloud-init\) nor firstrun.sh .* but EFI.txt"),
        ({}, "but nothing"),
        ({"user-data": b"\x1f\x8b\x08"}, "its user-data is compressed"),
        ({**PI_FRESH, "cmdline.txt": PI_CARD["cmdline.txt"]}, "has a program for the first boot already"),
    ],
)
def test_other_systems_are_refused_by_name(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    base, output = disk(tmp_path / "base.img", files), tmp_path / "device.img"
    with pytest.raises(MistakeError, match=said):
        prepared(base, output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.img"]


def test_a_boot_partition_without_room_is_said_and_nothing_stays(tmp_path: Path) -> None:
    base = disk(tmp_path / "base.img", UBUNTU, fat_size=18 << 20)
    with pytest.raises(FailedError, match="no room for the installer"):
        prepare_image(base, tmp_path / "device.img", lambda: bytes(30 << 20))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.img"]


def test_what_is_no_image_is_said(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.img"
    for content, said in (
        (b"", "ends before its partition table"),
        (bytes(1 << 20), "no partition table"),
        (b"PK\x03\x04", "is a zip file"),
        (b"\xfd7zXZ\x00" + bytes(20), "cannot be unpacked"),
    ):
        wrong.write_bytes(content)
        with pytest.raises(MistakeError, match=said):
            prepared(wrong, tmp_path / "device.img")
    assert not (tmp_path / "device.img").exists()
