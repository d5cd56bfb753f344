"""`gear flash --build`: a disk image of a small Debian with the agent, whose root is never written.

Three partitions: `geartrain-boot` (FAT: systemd-boot, kernel, first program, and what is for one device),
`geartrain-root` (squashfs) and `geartrain-data` (ext4, all that a device keeps). Guarantees: nothing is
mounted. mmdebstrap takes the least rights that it can do with; no other step needs any. The image appears
whole or not at all. It is 0600, as it may hold a one-time token.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from geartrain.errors import MistakeError
from geartrain_client.errors import FailedError
from geartrain_client.flash.image_disk import BOOT_KIND, DATA_KIND, MIB, Partition, Place, write_disk
from geartrain_client.flash.image_initramfs import make_initramfs
from geartrain_client.flash.image_root import EXCLUDED, PACKAGES, Boot, finish_root, shipped
from geartrain_client.flash.installer import Content, installer

SUITE = "bookworm"
PYTHON = "3.11"
"""Debian's suite, and the Python that it has."""
PUBLIC_MIRROR = "http://deb.debian.org/debian"
BOOT_NAME, ROOT_NAME, DATA_NAME = "geartrain-boot", "geartrain-root", "geartrain-data"
BOOT_BYTES = 96 * MIB
DATA_BYTES_MIN = 16 * MIB
_LIMIT_S = 3_600.0
_LINES = 12
_INSTALLER = "/root/geartrain-installer"
_HOOKS = "/usr/share/mmdebstrap/hooks/merged-usr"
_PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "mksquashfs": "squashfs-tools",
    "mke2fs": "e2fsprogs",
    "mkfs.fat": "dosfstools",
    "mcopy": "mtools",
}
_CONSOLES = {"amd64": "ttyS0,115200", "arm64": "ttyAMA0,115200"}
_LOADERS = {"amd64": "BOOTX64.EFI", "arm64": "BOOTAA64.EFI"}


@dataclass(frozen=True)
class ImageOptions:
    """What is built. content: what the device gets; its join file and settings go to the boot partition.

    kernel: a package of Debian's, "" for the smallest; mirror: an address, "" for that of this machine.
    packages, root_files: more of Debian's packages, and more files of the root, by path without the first
    slash: mode and content. device_files: more files for this one device. data_bytes: of the data partition.
    """

    content: Content
    output: Path
    mirror: str = ""
    kernel: str = ""
    device_files: Mapping[str, bytes] = field(default_factory=dict)
    packages: Sequence[str] = ()
    root_files: Mapping[str, tuple[int, bytes]] = field(default_factory=dict)
    data_bytes: int = 256 * MIB


def build_image(options: ImageOptions, say: Callable[[str], None]) -> list[Place]:
    """Build the image and return its partitions; `say` gets a sentence for each step.

    Raises `MistakeError` for what the operator can put right, and `FailedError` where a program fails.
    """
    check_programs()
    if options.output.exists():
        raise MistakeError(
            f"--output {options.output} is there already: name another file, or remove that one"
        )
    if options.content.target.python != PYTHON:
        raise MistakeError(f"--python {options.content.target.python}: Debian {SUITE} has {PYTHON}")
    device_files(options)
    if options.data_bytes < DATA_BYTES_MIN:
        raise MistakeError(f"--data-size: a data partition has {DATA_BYTES_MIN // MIB} MiB or more")
    try:
        with tempfile.TemporaryDirectory(prefix=".geartrain-", dir=options.output.parent) as folder:
            return _build(options, Path(folder), say)
    except OSError as error:
        raise MistakeError(
            f"--output {options.output} cannot be written: {error.strerror or error}"
        ) from None


def device_files(options: ImageOptions) -> dict[str, bytes]:
    """What the boot partition holds for this one device; the first start moves it to /etc/geartrain."""
    content = options.content
    if content.settings.wifi is not None:
        raise MistakeError("--wifi: the image's kernel has no wireless network: use a cable, or --image")
    ours = ("hostname", "timesyncd.conf", "geartrain.network")
    found = {name: text for name, text in content.settings.files().items() if name in ours}
    if content.join is not None:
        found["join.toml"] = content.join
    return found | dict(options.device_files)


def check_programs() -> None:
    """Raises `MistakeError` that names each program that is missing here, and its package."""
    missing = [name for name in _PROGRAMS if _find(name) is None]
    if missing:
        packages = " ".join(sorted({_PROGRAMS[name] for name in missing}))
        raise MistakeError(f"--build needs {', '.join(missing)}: apt-get install {packages}")


def mmdebstrap_command(options: ImageOptions, archive: Path, output: Path) -> list[str]:
    """The command that makes the root's archive. archive: the installer's."""
    arch = options.content.target.arch
    packages = (*PACKAGES, options.kernel or f"linux-image-cloud-{arch}", *options.packages)
    hooks = (
        f'mkdir -p "$1{_INSTALLER}"',
        f'tar -xzf {_quoted(archive)} -C "$1{_INSTALLER}" --no-same-owner --strip-components=1',
        f'chroot "$1" sh {_INSTALLER}/install.sh --no-start',
        f'rm -rf "$1{_INSTALLER}"',
    )
    found = ["mmdebstrap", "--mode=auto", "--variant=essential", f"--arch={arch}", "--format=tar"]
    found += ['--aptopt=APT::Install-Recommends "false"', f"--include={','.join(packages)}"]
    found += [f"--dpkgopt=path-exclude={path}" for path in EXCLUDED]
    found += [f"--hook-dir={_HOOKS}"] if Path(_HOOKS).is_dir() else []
    found += [f"--customize-hook={hook}" for hook in hooks]
    return [*found, SUITE, str(output), *mirror_lines(options.mirror)]


def mirror_lines(mirror: str) -> list[str]:
    """What mmdebstrap is told of the mirror: the one named, or that of this machine, or the public one."""
    if mirror:
        if not mirror.startswith(("http://", "https://", "file:/")) or any(one.isspace() for one in mirror):
            raise MistakeError(f"--mirror {mirror}: write an address, such as {PUBLIC_MIRROR}")
        return [mirror]
    return own_mirror(Path("/etc/apt")) or [f"deb {PUBLIC_MIRROR} {SUITE} main"]


def own_mirror(folder: Path) -> list[str]:
    """Lines for sources.list of the Debian mirrors that apt's configuration in `folder` names."""
    found = list[str]()
    for path in sorted([*folder.glob("sources.list"), *folder.glob("sources.list.d/*")]):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".sources":
            for stanza in text.split("\n\n"):
                fields = dict[str, str]()
                for line in stanza.splitlines():
                    name, colon, value = line.partition(":")
                    if colon and not line.startswith(("#", " ")):
                        fields[name.strip().lower()] = value.strip()
                if "deb" in fields.get("types", "").split():
                    suites, parts = fields.get("suites", "").split(), fields.get("components", "").split()
                    found += _lines(fields.get("uris", "").split(), suites, parts)
        elif path.suffix == ".list":
            for line in text.splitlines():
                words = [word for word in line.split("#")[0].split() if not word.startswith("[")]
                if len(words) > 3 and words[0] == "deb":
                    found += _lines([words[1]], [words[2]], words[3:])
    return found


def _lines(addresses: Sequence[str], suites: Sequence[str], parts: Sequence[str]) -> list[str]:
    ours = [suite for suite in suites if suite in {SUITE, f"{SUITE}-updates", f"{SUITE}-security"}]
    if "main" not in parts:
        return []
    return [f"deb {address} {suite} main" for address in addresses for suite in ours]


def _build(options: ImageOptions, folder: Path, say: Callable[[str], None]) -> list[Place]:
    arch = options.content.target.arch
    base, root, squashed = folder / "base.tar", folder / "root.tar", folder / "root.squashfs"
    say(f"making the root of Debian {SUITE} for {arch}: this takes minutes")
    archive = folder / "installer.tar.gz"
    archive.write_bytes(installer(Content(options.content.target, options.content.wheels)))
    _run(mmdebstrap_command(options, archive, base))
    boot = finish_root(base, root, options.root_files)
    base.unlink()
    say("packing the root")
    with root.open("rb") as content:
        packed = ["mksquashfs", "-", str(squashed), "-tar", "-quiet", "-no-progress", "-comp", "zstd"]
        _run([*packed, "-Xcompression-level", "15", "-b", "256K"], content.fileno())
    root.unlink()
    say("writing the partitions")
    boot_disk = _boot_partition(folder, arch, boot, device_files(options))
    data_disk = folder / "data.ext4"
    with data_disk.open("wb") as file:
        file.truncate(options.data_bytes)
    quiet = ["mke2fs", "-q", "-t", "ext4", "-m", "1", "-L", "geartrain-data"]
    _run([*quiet, "-E", "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0", str(data_disk)])
    partitions = (
        Partition(BOOT_NAME, BOOT_KIND, boot_disk, BOOT_BYTES),
        Partition(ROOT_NAME, DATA_KIND, squashed, squashed.stat().st_size),
        Partition(DATA_NAME, DATA_KIND, data_disk, options.data_bytes),
    )
    image = folder / "image"
    os.close(os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    places = write_disk(image, partitions)
    image.rename(options.output)
    return places


def _boot_partition(folder: Path, arch: str, boot: Boot, device_files: Mapping[str, bytes]) -> Path:
    if not boot.kernel or not boot.loader:
        raise MistakeError("the image's packages hold no kernel or no systemd-boot: name another --kernel")
    content = {
        f"EFI/BOOT/{_LOADERS[arch]}": boot.loader,
        "linux": boot.kernel,
        "initrd": make_initramfs(boot),
        "loader/loader.conf": shipped("loader.conf"),
        "loader/entries/geartrain.conf": shipped("geartrain.conf").replace(
            b"@CONSOLE@", _CONSOLES[arch].encode()
        ),
        **{f"geartrain/{name}": text for name, text in device_files.items()},
    }
    disk, tree = folder / "boot.fat", folder / "boot"
    tree.mkdir()
    (tree / "geartrain").mkdir()
    for name, text in content.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(text)
    with disk.open("wb") as file:
        file.truncate(BOOT_BYTES)
    _run(["mkfs.fat", "-F", "32", "-n", "GEARTRAIN", str(disk)])
    _run(["mcopy", "-s", "-i", str(disk), *(str(one) for one in sorted(tree.iterdir())), "::"])
    shutil.rmtree(tree)
    return disk


def _run(command: Sequence[str], stdin: int = subprocess.DEVNULL) -> None:
    """Run a program to its end; raises `FailedError` with the last lines that it said."""
    program = _find(command[0])
    if program is None:
        raise MistakeError(f"--build needs {command[0]}: apt-get install {_PROGRAMS[command[0]]}")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"{command[0]} did not end within {_LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        said = "; ".join(done.stdout.decode(errors="replace").splitlines()[-_LINES:])
        raise FailedError(f"{command[0]} failed with {done.returncode}: {said}")


def _find(name: str) -> str | None:
    """A program, also where only root's PATH has its folder."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _quoted(path: Path) -> str:
    return "'" + str(path.absolute()).replace("'", "'\\''") + "'"
