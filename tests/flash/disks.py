"""Images of disks for the tests of `gear flash`: tables and file systems as other makers lay them out."""

from __future__ import annotations

import os
import struct
import subprocess
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from geartrain_cloud.programs import SBIN, find_program

_ESP = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
FAT_START = 1 << 20
FAT_SIZE = 40 << 20


def mbr(places: Sequence[tuple[int, int]], kind: int = 0x0C) -> bytes:
    """A master boot record with partitions of (first sector, count)."""
    entries = b"".join(struct.pack("<B3xB3xII", 0x80, kind, start, count) for start, count in places)
    return bytes(446) + entries.ljust(64, b"\0") + b"\x55\xaa"


def gpt(places: Sequence[tuple[int, int]], sector: int) -> bytes:
    """The begin of a disk with a GUID table of four entries, partitions of (first, last sector)."""
    entries = b"".join(
        _ESP.bytes_le + uuid.UUID(int=number + 1).bytes_le + struct.pack("<QQQ72x", first, last, 0)
        for number, (first, last) in enumerate(places)
    ).ljust(4 * 128, b"\0")

    def header(own_sum: int) -> bytes:
        head = struct.pack("<8sIIII", b"EFI PART", 0x0001_0000, 92, own_sum, 0)
        middle = struct.pack("<QQQQ16s", 1, 99_999, 34, 99_000, uuid.UUID(int=7).bytes_le)
        return head + middle + struct.pack("<QIII", 2, 4, 128, zlib.crc32(entries))

    whole = header(zlib.crc32(header(0)))
    return mbr([(1, 0xFFFF_FFFF)], 0xEE).ljust(sector, b"\0") + whole.ljust(sector, b"\0") + entries


def disk(path: Path, files: Mapping[str, bytes], *, table: str = "mbr", fat_size: int = FAT_SIZE) -> Path:
    """A disk with one FAT partition that holds the files, and room after it for a root."""
    start, count = FAT_START // 512, fat_size // 512
    head = mbr([(start, count)]) if table == "mbr" else gpt([(start, start + count - 1)], 512)
    fat = path.with_suffix(".fat")
    with fat.open("wb") as made:
        made.truncate(fat_size)
    mkfs = find_program("mkfs.vfat", SBIN)
    assert mkfs
    kind = "32" if fat_size >= 34 << 20 else "16"
    command = [mkfs, "-F", kind, "-i", "1234abcd", "--invariant", str(fat)]
    subprocess.run(command, check=True, capture_output=True)
    for name, content in files.items():
        put(fat, 0, name, content)
    with path.open("wb") as image:
        image.write(head)
        image.seek(FAT_START)
        image.write(fat.read_bytes())
        image.truncate(FAT_START + fat_size + (4 << 20))
    fat.unlink()
    return path


def put(image: Path, offset: int, name: str, content: bytes) -> None:
    """Write a file into a FAT file system."""
    command = ["mcopy", "-o", "-i", f"{image}@@{offset}", "-", f"::/{name}"]
    subprocess.run(command, check=True, input=content, env=_environment())


def take(image: Path, name: str, offset: int = FAT_START) -> bytes:
    """Read a file of a FAT file system."""
    command = ["mcopy", "-i", f"{image}@@{offset}", f"::/{name}", "-"]
    return subprocess.run(command, check=True, capture_output=True, env=_environment()).stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "MTOOLSRC": os.devnull, "MTOOLS_SKIP_CHECK": "1"}
