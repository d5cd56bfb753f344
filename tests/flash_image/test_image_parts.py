"""The parts of a device's image that need no program: its disk, its first program, its root's own files."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from geartrain.errors import MistakeError
from geartrain_client.flash.image_build import PUBLIC_MIRROR, SUITE, mirror_lines, own_mirror
from geartrain_client.flash.image_disk import BOOT_KIND, DATA_KIND, MIB, Partition, write_disk
from geartrain_client.flash.image_initramfs import APPLETS, make_initramfs, ordered_modules
from geartrain_client.flash.image_root import FOLDERS, Boot, finish_root, own_files, own_links

MODULES = """kernel/drivers/virtio_blk.ko: kernel/virtio.ko kernel/ring.ko
kernel/ring.ko:
kernel/virtio.ko: kernel/ring.ko
"""


def test_a_disk_holds_its_partitions_and_two_equal_tables(tmp_path: Path) -> None:
    parts = []
    for name, kind, size in (("one", BOOT_KIND, 3 * MIB), ("two", DATA_KIND, 5 * MIB + 7)):
        content = tmp_path / name
        content.write_bytes(os.urandom(MIB + 3) + bytes(MIB) + b"end")
        parts.append(Partition(name, kind, content, size))
    disk = tmp_path / "disk.img"
    places = write_disk(disk, parts)
    raw = disk.read_bytes()
    assert [(one.name, one.offset, one.size) for one in places] == [
        ("one", MIB, 3 * MIB),
        ("two", 4 * MIB, 6 * MIB),
    ]
    for part, place in zip(parts, places, strict=True):
        written = part.content.read_bytes()
        assert raw[place.offset : place.offset + len(written)] == written
    assert len(raw) == 11 * MIB
    assert raw[510:512] == b"\x55\xaa"
    assert raw[450] == 0xEE
    last = len(raw) - 512
    assert raw[512:520] == raw[last : last + 8] == b"EFI PART"
    assert raw[1024 : 1024 + 128 * 128] == raw[last - 128 * 128 : last]
    assert disk.stat().st_blocks * 512 < 8 * MIB


def archive_of(raw: bytes) -> dict[str, tuple[int, bytes]]:
    """The files of an archive of newc: mode and content."""
    found, at = dict[str, tuple[int, bytes]](), 0
    while True:
        assert raw[at : at + 6] == b"070701"
        fields = [int(raw[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name = raw[at + 110 : at + 110 + fields[11] - 1].decode()
        begin = -(-(at + 110 + fields[11]) // 4) * 4
        if name == "TRAILER!!!":
            return found
        found[name] = fields[1], raw[begin : begin + fields[6]]
        at = -(-(begin + fields[6]) // 4) * 4


def test_the_first_program_has_its_modules_in_the_order_of_their_needs() -> None:
    assert ordered_modules(MODULES) == ["kernel/ring.ko", "kernel/virtio.ko", "kernel/drivers/virtio_blk.ko"]
    modules = {"kernel/ring.ko": b"r", "kernel/virtio.ko": b"v", "kernel/drivers/virtio_blk.ko": b"b"}
    found = archive_of(make_initramfs(Boot(busybox=b"#!", dependencies=MODULES, modules=modules)))
    assert found["modules.list"][1] == b"ring.ko\nvirtio.ko\nvirtio_blk.ko\n"
    assert {name: content for name, (_, content) in found.items() if name.endswith(".ko")} == {
        "modules/ring.ko": b"r",
        "modules/virtio.ko": b"v",
        "modules/virtio_blk.ko": b"b",
    }
    assert found["init"][0] == stat.S_IFREG | 0o755
    for applet in APPLETS:
        assert found[f"bin/{applet}"] == (stat.S_IFLNK | 0o777, b"busybox")


def test_a_root_without_a_kernel_is_refused() -> None:
    with pytest.raises(MistakeError, match="--kernel"):
        make_initramfs(Boot())


def test_the_root_has_our_files_and_what_starts_it_is_taken_out(tmp_path: Path) -> None:
    base, root = tmp_path / "base.tar", tmp_path / "root.tar"
    given = {
        "etc/hostname": b"builder",
        "etc/resolv.conf": b"nameserver 192.0.2.1",
        "boot/vmlinuz-6.1": b"kernel",
        "usr/lib/systemd/boot/efi/systemd-bootx64.efi": b"loader",
        "usr/bin/busybox": b"busybox",
        "usr/lib/modules/6.1/modules.dep": MODULES.encode(),
        "usr/lib/modules/6.1/kernel/ring.ko": b"ring",
        "var/log/dpkg.log": b"log",
        "usr/bin/true": b"true",
    }
    with tarfile.open(base, "w") as archive:
        for name, content in given.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mtime = len(content), 1_700_000_000
            archive.addfile(member, io.BytesIO(content))
    boot = finish_root(base, root, {"usr/share/one": (0o600, b"1")})
    assert (boot.kernel, boot.loader, boot.busybox) == (b"kernel", b"loader", b"busybox")
    assert boot.modules == {"kernel/ring.ko": b"ring"}
    with tarfile.open(root) as archive:
        members = {member.name.removeprefix("./"): member for member in archive}
        assert len(members) == len(archive.getmembers()), "a path stands in it twice"
        files = {name: archive.extractfile(one) for name, one in members.items() if one.isreg()}
        contents = {name: file.read() for name, file in files.items() if file}
    assert {"boot/vmlinuz-6.1", "var/log/dpkg.log"}.isdisjoint(members)
    assert contents["usr/bin/true"] == b"true"
    assert members["usr/bin/true"].mtime == 1_700_000_000
    assert contents["usr/share/one"] == b"1"
    assert contents["etc/hostname"] == b"geartrain\n"
    assert members["etc/resolv.conf"].issym()
    assert set(FOLDERS) <= members.keys()
    assert own_links().keys() <= members.keys()
    assert all(members[name].uid == members[name].gid == 0 for name in own_files())


def test_only_the_data_partition_and_memory_can_be_written() -> None:
    lines = [line.split() for line in own_files()["etc/fstab"][1].decode().splitlines() if line[0] != "#"]
    [root] = [line for line in lines if line[1] == "/"]
    assert root[2:4] == ["squashfs", "ro"]
    on_data = {line[1] for line in lines if line[0].startswith("/data/")}
    assert on_data == {"/var/lib/geartrain", "/etc/geartrain", "/var/lib/systemd"}
    [boot] = [line for line in lines if line[0] == "PARTLABEL=geartrain-boot"]
    assert {"noauto", "x-systemd.device-timeout=2min"} <= set(boot[3].split(","))
    others = [line for line in lines if line[1] not in {"/", "/data", boot[1], *on_data}]
    assert {line[2] for line in others} == {"tmpfs"}
    assert all("size=" in line[3] for line in others), "memory is bounded"


def test_the_mirror_is_that_of_this_machine_or_the_one_named(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        f"# deb http://old.example {SUITE} main\n"
        f"deb [signed-by=/k.gpg] http://a.example/debian {SUITE} main contrib\n"
        "deb http://other.example/apt stable main\n"
    )
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        f"Types: deb deb-src\nURIs: http://b.example/debian\nSuites: {SUITE} {SUITE}-updates trixie\n"
        f"Components: main\n\nTypes: deb-src\nURIs: http://c.example\nSuites: {SUITE}\nComponents: main\n"
    )
    assert own_mirror(tmp_path) == [
        f"deb http://a.example/debian {SUITE} main",
        f"deb http://b.example/debian {SUITE} main",
        f"deb http://b.example/debian {SUITE}-updates main",
    ]
    assert own_mirror(tmp_path / "none") == []
    assert mirror_lines(PUBLIC_MIRROR) == [PUBLIC_MIRROR]
    for wrong in ("ftp://a.example", "http://a.example main; rm", "--option"):
        with pytest.raises(MistakeError, match="--mirror"):
            mirror_lines(wrong)
