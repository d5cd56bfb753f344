"""A disk in a file: a GUID partition table and what lies in its partitions.

Guarantees: a partition begins at a full MiB. Blocks of zeros are not written, so the file is sparse.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SECTOR, MIB = 512, 1 << 20
BOOT_KIND = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
DATA_KIND = uuid.UUID("0fc63daf-8483-4772-8e79-3d69d8477de4")
"""The kinds of partitions: what the firmware starts from, and any file system of Linux."""

_ENTRIES, _ENTRY_BYTES = 128, 128
_TABLE_SECTORS = _ENTRIES * _ENTRY_BYTES // SECTOR
_HEADER = struct.Struct("<8sIIIIQQQQ16sQIII")
_ENTRY = struct.Struct("<16s16sQQQ72s")
_SIGNATURE, _REVISION = b"EFI PART", 0x10000
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Partition:
    """One to be written. size: in bytes, that of the file `content` or more; kind: a GUID of the standard."""

    name: str
    kind: uuid.UUID
    content: Path
    size: int


@dataclass(frozen=True)
class Place:
    """Where a partition of a disk lies: its first byte and its length, in bytes."""

    name: str
    kind: uuid.UUID
    offset: int
    size: int


def write_disk(path: Path, partitions: Sequence[Partition]) -> list[Place]:
    """Write a disk of these partitions to the file `path`, and return where they lie; raises `OSError`."""
    places, end = list[Place](), MIB
    for one in partitions:
        size = _aligned(one.size)
        places.append(Place(one.name, one.kind, end, size))
        end += size
    disk, sectors = uuid.uuid4(), (end + MIB) // SECTOR
    entries = b"".join(_entry(place) for place in places).ljust(_ENTRIES * _ENTRY_BYTES, b"\0")
    last = sectors - 1
    with path.open("wb") as file:
        file.truncate(sectors * SECTOR)
        file.write(_protection(sectors))
        file.write(_header(disk, 1, last, 2, last, entries))
        file.write(entries)
        for one, place in zip(partitions, places, strict=True):
            _copy(one.content, file.fileno(), place.offset)
        file.seek((last - _TABLE_SECTORS) * SECTOR)
        file.write(entries)
        file.write(_header(disk, last, 1, last - _TABLE_SECTORS, last, entries))
        file.flush()
        os.fsync(file.fileno())
    return places


def _aligned(size: int) -> int:
    return -(-size // MIB) * MIB


def _entry(place: Place) -> bytes:
    first = place.offset // SECTOR
    return _ENTRY.pack(
        place.kind.bytes_le,
        uuid.uuid4().bytes_le,
        first,
        first + place.size // SECTOR - 1,
        0,
        place.name.encode("utf-16-le"),
    )


def _header(disk: uuid.UUID, here: int, other: int, table: int, last: int, entries: bytes) -> bytes:
    usable = 2 + _TABLE_SECTORS, last - _TABLE_SECTORS - 1
    sums = _ENTRIES, _ENTRY_BYTES, zlib.crc32(entries)

    def packed(own: int) -> bytes:
        begun = _SIGNATURE, _REVISION, _HEADER.size, own, 0
        return _HEADER.pack(*begun, here, other, *usable, disk.bytes_le, table, *sums)

    return packed(zlib.crc32(packed(0))).ljust(SECTOR, b"\0")


def _protection(sectors: int) -> bytes:
    """The first sector: to what knows no GPT, the disk is full."""
    whole = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xEE, b"\xff\xff\xff", 1, min(sectors - 1, 0xFFFFFFFF))
    return (bytes(446) + whole).ljust(SECTOR - 2, b"\0") + b"\x55\xaa"


def _copy(content: Path, descriptor: int, offset: int) -> None:
    empty = bytes(_CHUNK)
    with content.open("rb") as file:
        while chunk := file.read(_CHUNK):
            if chunk != empty[: len(chunk)]:
                os.pwrite(descriptor, chunk, offset)
            offset += len(chunk)
