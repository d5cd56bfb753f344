"""What the root of a device's image consists of: Debian's packages, and files of our own.

Guarantees: the root is made of mmdebstrap's archive by reading and writing archives alone, so that no right
is needed for it. Nobody can log in, and nothing in the root is ever written by what we install.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from geartrain_client.flash.archive import EPOCH_S

PACKAGES = (
    *("usr-is-merged", "systemd-sysv", "udev", "dbus", "kmod", "e2fsprogs", "busybox-static"),
    *("systemd-boot-efi", "systemd-resolved", "systemd-timesyncd", "ca-certificates", "tzdata"),
    "python3",
)
"""Beside the kernel, and what Debian calls essential. busybox is for the first program only."""

EXCLUDED = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/lintian/*",
    "/usr/share/bug/*",
    "/usr/share/python-wheels/*",
    "/usr/lib/python3*/ensurepip/*",
    "/usr/lib/*/gconv/*",
    "/lib/udev/hwdb.d/*",
    # We make the first program's archive ourselves: theirs takes minutes where a processor is emulated.
    "/etc/kernel/postinst.d/initramfs-tools",
    *(
        f"/lib/modules/*/kernel/{folder}/*"
        for folder in (
            *(
                "drivers/gpu",
                "drivers/infiniband",
                "drivers/media",
                "drivers/nvdimm",
                "drivers/target",
                "sound",
            ),
            *(
                "drivers/isdn",
                "drivers/nvme/target",
                "net/sctp",
                "net/tipc",
                "net/openvswitch",
                "net/batman-adv",
            ),
            *(
                "fs/btrfs",
                "fs/ceph",
                "fs/cifs",
                "fs/gfs2",
                "fs/jfs",
                "fs/nfs",
                "fs/nfsd",
                "fs/ocfs2",
                "fs/xfs",
            ),
            *(
                "fs/reiserfs",
                "fs/afs",
                "fs/ubifs",
                "fs/orangefs",
                "fs/f2fs",
                "fs/dlm",
                "fs/hfs",
                "fs/hfsplus",
            ),
            *(
                "fs/smb",
                "fs/cachefiles",
                "arch/x86/kvm",
                "net/sunrpc",
                "net/ceph",
                "net/smc",
                "net/netfilter",
            ),
            *("net/bridge", "drivers/net/ethernet/mellanox", "drivers/scsi/mpi3mr", "drivers/scsi/ipr"),
            *(
                "drivers/scsi/lpfc",
                "drivers/scsi/qla2xxx",
                "drivers/block/drbd",
                "drivers/md",
                "drivers/comedi",
            ),
        )
    ),
)
"""Paths that dpkg leaves out."""

LEFT_OUT = ("boot/", "var/cache/", "var/log/", "var/tmp/", "tmp/", "run/", "dev/", "proc/", "sys/")
"""Folders whose contents are no part of the root; the folders are."""

REPLACED = frozenset(
    ("etc/fstab", "etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/lib/dbus/machine-id")
)

FOLDERS = ("data", "etc/geartrain", "var/lib/geartrain", "var/lib/systemd")
"""Places that something is mounted on."""

MASKED = (
    *("getty.target", "dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer", "e2scrub_reap.service"),
    *("systemd-logind.service", "systemd-user-sessions.service", "systemd-binfmt.service"),
    *("systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-journal-flush.service"),
)
"""Nobody logs in, and nothing is written to the root."""
_UNITS = "usr/lib/systemd/system"
_ONLINE = "systemd-networkd-wait-online.service"
_WANTED = {
    "multi-user.target.wants/systemd-networkd.service": "systemd-networkd.service",
    "sockets.target.wants/systemd-networkd.socket": "systemd-networkd.socket",
    f"network-online.target.wants/{_ONLINE}": _ONLINE,
    "dbus-org.freedesktop.network1.service": "systemd-networkd.service",
    "multi-user.target.wants/systemd-resolved.service": "systemd-resolved.service",
    "dbus-org.freedesktop.resolve1.service": "systemd-resolved.service",
    "sysinit.target.wants/systemd-timesyncd.service": "systemd-timesyncd.service",
    "sysinit.target.wants/geartrain-provision.service": "geartrain-provision.service",
}


def shipped(name: str) -> bytes:
    """The content of a file of the folder `image` beside this module."""
    return files("geartrain_client.flash").joinpath("image", name).read_bytes()


def own_files() -> dict[str, tuple[int, bytes]]:
    """The files of the root that are ours: path without the first slash, then mode and content."""
    return {
        "etc/fstab": (0o644, shipped("fstab")),
        "etc/hostname": (0o644, b"geartrain\n"),
        "etc/machine-id": (0o444, b""),
        "etc/systemd/network/50-wired.network": (0o644, shipped("wired.network")),
        "etc/systemd/journald.conf.d/geartrain.conf": (0o644, shipped("journald.conf")),
        "usr/lib/tmpfiles.d/geartrain.conf": (0o644, shipped("tmpfiles.conf")),
        "etc/systemd/system/emergency.service.d/geartrain.conf": (0o644, shipped("emergency.conf")),
        f"{_UNITS}/geartrain-provision.service": (0o644, shipped("geartrain-provision.service")),
        "usr/lib/geartrain/provision": (0o755, shipped("provision")),
    }


def own_links() -> dict[str, str]:
    """The symbolic links of the root that are ours, and what they name."""
    found = {f"etc/systemd/system/{link}": f"/{_UNITS}/{unit}" for link, unit in _WANTED.items()}
    found |= {f"etc/systemd/system/{unit}": "/dev/null" for unit in MASKED}
    return found | {
        "etc/resolv.conf": "../run/systemd/resolve/stub-resolv.conf",
        "var/lib/dbus/machine-id": "/etc/machine-id",
    }


@dataclass
class Boot:
    """What is taken out of the root on its way: the kernel, the loader, busybox, modules and their order."""

    kernel: bytes = b""
    loader: bytes = b""
    busybox: bytes = b""
    dependencies: str = ""
    modules: dict[str, bytes] = field(default_factory=dict)


def finish_root(base: Path, root: Path, extra: Mapping[str, tuple[int, bytes]]) -> Boot:
    """Copy the archive `base` of mmdebstrap to `root`, with our files, without what is no part of it.

    extra: more files, by path without the first slash: mode and content. The others keep their times, which
    Python's compiled files hold. Returns what the boot partition is made of. Raises `OSError`.
    """
    boot, ours, links = Boot(), own_files() | dict(extra), own_links()
    replaced = {*REPLACED, *ours, *links}
    with tarfile.open(base, "r:") as source, tarfile.open(root, "w:", format=tarfile.PAX_FORMAT) as target:
        seen = set[str]()
        for member in source:
            name = member.name.removeprefix("./")
            if member.isfile():
                _take(boot, name, source, member)
            if name in replaced or name.startswith(LEFT_OUT):
                continue
            seen.add(name)
            target.addfile(member, source.extractfile(member) if member.isreg() else None)
        for name in _missing_folders((*ours, *links, *(f"{one}/." for one in FOLDERS)), seen):
            target.addfile(_member(name, 0o755, tarfile.DIRTYPE))
        for name, (mode, content) in ours.items():
            member = _member(name, mode, tarfile.REGTYPE)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
        for name, meant in links.items():
            member = _member(name, 0o777, tarfile.SYMTYPE)
            member.linkname = meant
            target.addfile(member)
    return boot


def _take(boot: Boot, name: str, source: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    def content() -> bytes:
        file = source.extractfile(member)
        return file.read() if file else b""

    if name.startswith("boot/vmlinuz-"):
        boot.kernel = content()
    elif name.startswith("usr/lib/systemd/boot/efi/systemd-boot") and name.endswith(".efi"):
        boot.loader = content()
    elif name == "usr/bin/busybox":
        boot.busybox = content()
    elif name.startswith("usr/lib/modules/") and name.endswith("/modules.dep"):
        boot.dependencies = content().decode()
    elif name.startswith("usr/lib/modules/") and name.endswith((".ko", ".ko.xz")):
        boot.modules[name.split("/", 4)[4]] = content()


def _missing_folders(names: Iterable[str], seen: set[str]) -> list[str]:
    found = list[str]()
    for name in names:
        parts = name.split("/")[:-1]
        for length in range(1, len(parts) + 1):
            folder = "/".join(parts[:length])
            if folder not in seen:
                seen.add(folder)
                found.append(folder)
    return found


def _member(name: str, mode: int, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"./{name}")
    member.mode, member.mtime, member.type = mode, EPOCH_S, kind
    member.uname = member.gname = "root"
    return member
