"""The first program of a device's image and its archive: a shell, the modules that a disk needs, and no more.

Debian's own archive is five times as large and waits for udev; this one starts systemd some seconds sooner.
"""

from __future__ import annotations

import stat

from geartrain.errors import MistakeError
from geartrain_client.flash.image_root import Boot, shipped

DRIVERS = (
    *(
        "virtio_pci",
        "virtio_mmio",
        "virtio_blk",
        "virtio_scsi",
        "nvme",
        "ahci",
        "sd_mod",
        "uas",
        "usb-storage",
    ),
    *("xhci-pci", "mmc_block", "sdhci-pci", "sdhci-acpi", "xen-blkfront", "hv_storvsc", "squashfs"),
)
"""Modules that a root may need, where the kernel has them as modules."""

APPLETS = ("sh", "grep", "insmod", "mount", "reboot", "sleep", "switch_root")
_FOLDERS = ("bin", "dev", "proc", "sys", "root", "modules")


def ordered_modules(dependencies: str, wanted: tuple[str, ...] = DRIVERS) -> list[str]:
    """The paths of the modules that `wanted` needs, each behind those that it needs itself.

    dependencies: the text of `modules.dep`. A module that is not in it is part of the kernel, or not there.

    >>> ordered_modules("b/two.ko: a/one.ko\\na/one.ko:\\n", ("two", "three"))
    ['a/one.ko', 'b/two.ko']
    """
    needs, paths = dict[str, list[str]](), dict[str, str]()
    for line in dependencies.splitlines():
        path, _, needed = line.partition(":")
        needs[path] = needed.split()
        paths[_name(path)] = path
    found = list[str]()
    for path in (paths[_name(name)] for name in wanted if _name(name) in paths):
        # modules.dep names all that a module needs, what comes first last.
        found += [one for one in (*reversed(needs[path]), path) if one not in found]
    return found


def make_initramfs(boot: Boot) -> bytes:
    """The archive that the kernel unpacks, in the format newc; raises `MistakeError` where a part lacks."""
    if not boot.busybox or not boot.dependencies:
        raise MistakeError("the image's packages hold no busybox or no kernel modules: name another --kernel")
    archive = _Archive()
    for folder in _FOLDERS:
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("bin/busybox", stat.S_IFREG | 0o755, boot.busybox)
    for applet in APPLETS:
        archive.add(f"bin/{applet}", stat.S_IFLNK | 0o777, b"busybox")
    names = list[str]()
    for path in ordered_modules(boot.dependencies):
        if path in boot.modules:
            names.append(path.rpartition("/")[2])
            archive.add(f"modules/{names[-1]}", stat.S_IFREG | 0o644, boot.modules[path])
    archive.add("modules.list", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in names).encode())
    archive.add("init", stat.S_IFREG | 0o755, shipped("init"))
    return archive.ended()


class _Archive:
    """An archive of cpio in the format newc, as the kernel's documentation has it."""

    def __init__(self) -> None:
        self._parts = bytearray()
        self._count = 0

    def add(self, name: str, mode: int, content: bytes = b"") -> None:
        """Add a file, a folder or a link; `content` of a link is what it names."""
        self._count += 1
        links = 2 if stat.S_ISDIR(mode) else 1
        path = name.encode() + b"\0"
        fields = (self._count, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(path), 0)
        self._parts += b"070701" + b"".join(b"%08X" % value for value in fields) + path
        self._fill()
        self._parts += content
        self._fill()

    def ended(self) -> bytes:
        """The whole archive."""
        self.add("TRAILER!!!", 0)
        return bytes(self._parts)

    def _fill(self) -> None:
        self._parts += bytes(-len(self._parts) % 4)


def _name(path: str) -> str:
    """A module's name: in it, - and _ are the same."""
    return path.rpartition("/")[2].partition(".")[0].replace("-", "_")
