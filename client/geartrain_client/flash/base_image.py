"""An image made by others, with the installer on its boot partition: no root, nothing mounted.

mtools read and write the FAT partition inside the file. Guarantees: the base is only read. The output is
whole or not there, and 0600, as it may hold a one-time token.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from geartrain.errors import MistakeError
from geartrain.printable import printable
from geartrain_client.errors import FailedError
from geartrain_client.flash.archive import EPOCH_S
from geartrain_client.flash.first_boot import INSTALLER, READ, FirstBoot, first_boot
from geartrain_client.flash.partitions import Partition, fat_partitions

IMAGE_BYTES_MAX = 64 << 30
_CHUNK = 4 << 20
_FILE_BYTES_MAX = 1 << 20
_NAMES_MAX = 4096
_MTOOLS_S_MAX = 120


def prepare_image(base: Path, output: Path, installer: Callable[[], bytes]) -> FirstBoot:
    """Write `output`: the image `base` (also .xz or .gz) with an installer; raises `GeartrainError`.

    installer: makes it, and is called once the image is known to be one that can take it.
    """
    if shutil.which("mcopy") is None:
        raise MistakeError("gear flash --image needs mtools: install them (apt-get install mtools)")
    draft = output.with_name(f".{output.name}.new")
    try:
        try:
            _copy(base, draft)
            fat, found = _boot_partition(base, draft)
            for name, content in {**found.files, INSTALLER: installer()}.items():
                fat.write(name, content)
            with draft.open("rb") as written:
                os.fsync(written.fileno())
            draft.replace(output)
        except OSError as error:
            raise MistakeError(f"{output} cannot be written: {error.strerror or error}") from None
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return found


class Fat:
    """The FAT file system in a partition of an image, through mtools."""

    def __init__(self, image: Path, partition: Partition) -> None:
        self._drive = f"{image}@@{partition.offset}"

    def names(self) -> list[str]:
        """The names in its root folder, without hidden ones; raises `FailedError`."""
        listed = self._run("mdir", "-b", "-i", self._drive, "::/").decode("utf-8", "replace")
        names = [
            line.removeprefix("::/").rstrip("/") for line in listed.splitlines() if line.startswith("::/")
        ]
        return names[:_NAMES_MAX]

    def read(self, name: str) -> bytes:
        """A file of the root folder; raises `FailedError`."""
        found = self._run("mcopy", "-i", self._drive, f"::/{name}", "-")
        if len(found) > _FILE_BYTES_MAX:
            raise FailedError(f"{name} on its boot partition is larger than {_FILE_BYTES_MAX} bytes")
        return found

    def write(self, name: str, content: bytes) -> None:
        """Make or replace a file of the root folder; raises `FailedError`."""
        # A full file system is no failure to mcopy, which then has written what there was room for.
        self._run("mcopy", "-o", "-i", self._drive, "-", f"::/{name}", stdin=content)
        if self._run("mcopy", "-i", self._drive, f"::/{name}", "-") != content:
            raise FailedError("its boot partition has no room for the installer")

    def _run(self, *command: str, stdin: bytes = b"") -> bytes:
        own = {"MTOOLSRC": os.devnull, "MTOOLS_SKIP_CHECK": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        environment = {**os.environ, **own, "SOURCE_DATE_EPOCH": str(EPOCH_S)}
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, input=stdin, env=environment, timeout=_MTOOLS_S_MAX
            )
        except subprocess.TimeoutExpired:
            raise FailedError(f"{command[0]} did not end within {_MTOOLS_S_MAX} s") from None
        if done.returncode != 0:
            said = printable(" ".join(done.stderr.decode("utf-8", "replace").split()), 200)
            raise FailedError(f"its boot partition cannot be used: {said}")
        return done.stdout


def _copy(base: Path, draft: Path) -> None:
    """Unpack or copy the base; holes of the image stay holes."""
    draft.unlink(missing_ok=True)
    with (
        _opened(base) as source,
        os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as to,
    ):
        size = 0
        try:
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                if size > IMAGE_BYTES_MAX:
                    raise MistakeError(f"{base} is larger than {IMAGE_BYTES_MAX >> 30} GiB: is it an image?")
                if chunk.count(0) == len(chunk):
                    to.seek(len(chunk), os.SEEK_CUR)
                else:
                    to.write(chunk)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile):
            raise MistakeError(f"{base} cannot be unpacked: copy it again") from None
        to.truncate(size)


def _opened(base: Path) -> BinaryIO:
    try:
        with base.open("rb") as file:
            magic = file.read(6)
        if magic == b"\xfd7zXZ\x00":
            return cast(BinaryIO, lzma.open(base, "rb"))
        if magic[:2] == b"\x1f\x8b":
            return cast(BinaryIO, gzip.open(base, "rb"))
        if magic[:2] == b"PK":
            raise MistakeError(f"{base} is a zip file: unpack it, and name the image in it")
        return base.open("rb")
    except OSError as error:
        raise MistakeError(f"--image {base} cannot be read: {error.strerror or error}") from None


def _boot_partition(base: Path, draft: Path) -> tuple[Fat, FirstBoot]:
    """The partition that the system begins from, and what to write there."""
    refusal = MistakeError("it has no FAT partition to begin from")
    with draft.open("rb") as image:
        try:
            for partition in fat_partitions(image, draft.stat().st_size):
                fat = Fat(draft, partition)
                names = fat.names()
                read = {name: fat.read(name) for name in READ if name in names}
                try:
                    return fat, first_boot(read, names)
                except MistakeError as error:
                    refusal = error
        except (MistakeError, FailedError) as error:
            raise MistakeError(f"{base}: {error}") from None
    raise MistakeError(f"{base}: {refusal}")
