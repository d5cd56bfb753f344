"""Writing an image to a card: only to one that can be taken out, and read back from it.

Guarantees: a disk that is not removable, is mounted, used as swap or held by another is refused before a byte
is written. The kernel is asked for the disk alone, so that none can be mounted meanwhile. What was written is
read from the card itself, past the machine's memory, and compared.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from geartrain.errors import MistakeError
from geartrain_client.errors import FailedError

CHUNK = 4 << 20
Progress = Callable[[str, int, int], None]
"""Told what is done (`writing`, `comparing`), and how many bytes of how many."""

_BLKFLSBUF = 0x1261  # drops what the kernel keeps of a disk


@dataclass(frozen=True, slots=True)
class Disks:
    """What the machine says of its disks. Tests give files of their own in the place of the kernel's."""

    sys: Path = Path("/sys/class/block")
    mounts: Path = Path("/proc/self/mountinfo")
    swaps: Path = Path("/proc/swaps")
    is_disk: Callable[[Path], bool] = lambda path: stat.S_ISBLK(path.stat().st_mode)

    def check(self, device: Path, size: int) -> Path:
        """The disk itself, which may take `size` bytes; raises `MistakeError`."""
        try:
            disk = device.resolve(strict=True)
            if not self.is_disk(disk):
                raise MistakeError(f"--to {device} is no disk: name one such as /dev/sdX")
        except OSError as error:
            raise MistakeError(f"--to {device} cannot be found: {error.strerror or error}") from None
        here = self.sys / disk.name
        if (here / "partition").exists():
            raise MistakeError(f"--to {device} is a partition: name the whole disk")
        if not self._removable(here):
            raise MistakeError(
                f"--to {device} is not removable: an image is written to cards and sticks only"
            )
        if _text(here / "ro") == "1":
            raise MistakeError(f"--to {device} is write-protected: move the slider of the card")
        room = int(_text(here / "size") or 0) * 512
        if room < size:
            raise MistakeError(f"--to {device} has {room >> 20} MiB and the image needs {(size >> 20) + 1}")
        self._check_unused(device, here)
        return disk

    def _removable(self, here: Path) -> bool:
        # The reader built into a machine says 0, and that an SD card is in it; 'MMC' is soldered.
        return _text(here / "removable") == "1" or _text(here / "device" / "type") == "SD"

    def _check_unused(self, device: Path, here: Path) -> None:
        own = [here, *(path.parent for path in sorted(here.glob("*/partition")))]
        numbers = {_text(one / "dev") for one in own}
        for line in _text(self.mounts).splitlines():
            fields = line.split()
            if len(fields) > 4 and fields[2] in numbers:
                raise MistakeError(f"--to {device} is mounted at {fields[4]}: run umount {fields[4]} first")
        swaps = {Path(line.split()[0]).name for line in _text(self.swaps).splitlines()[1:] if line.split()}
        for one in own:
            if one.name in swaps:
                raise MistakeError(f"--to {device} is used as swap: run swapoff /dev/{one.name} first")
            if holders := sorted(path.name for path in (one / "holders").glob("*")):
                raise MistakeError(f"--to {device} is in use by {holders[0]}: close that first")


def write_card(image: Path, device: Path, progress: Progress, disks: Disks | None = None) -> None:
    """Write the file `image` to the disk `device`, and compare; raises `GeartrainError`."""
    size = image.stat().st_size
    disk = (disks or Disks()).check(device, size)
    try:
        # For a disk O_EXCL asks the kernel for it alone: it fails where a part of it is mounted.
        descriptor = os.open(disk, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        raise MistakeError(f"--to {device} cannot be opened: {error.strerror or error}") from None
    try:
        written = _write(image, descriptor, size, progress)
        read = _read_back(descriptor, size, progress)
    except OSError as error:
        raise FailedError(f"{device} failed: {error.strerror or error}: try another card") from None
    finally:
        os.close(descriptor)
    if read != written:
        raise FailedError(f"{device} does not hold what was written to it: try another card")


def _write(image: Path, descriptor: int, size: int, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    with image.open("rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            done += len(chunk)
            progress("writing", done, size)
    os.fsync(descriptor)
    return digest.hexdigest()


def _read_back(descriptor: int, size: int, progress: Progress) -> str:
    if stat.S_ISBLK(os.fstat(descriptor).st_mode):
        fcntl.ioctl(descriptor, _BLKFLSBUF)
    os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
    digest, done = hashlib.sha256(), 0
    os.lseek(descriptor, 0, os.SEEK_SET)
    while done < size:
        chunk = os.read(descriptor, min(CHUNK, size - done))
        if not chunk:
            break
        digest.update(chunk)
        done += len(chunk)
        progress("comparing", done, size)
    return digest.hexdigest()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
