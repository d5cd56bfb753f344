"""The partition table of a disk image: where its FAT partitions begin, found without mounting anything.

It reads an image that others made, so nothing in it is believed. Guarantees: no more than 128 entries are
read, none outside of the file counts, and a table that is not sound is refused in a sentence.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from geartrain.errors import MistakeError

SECTORS = (512, 4096)
ENTRIES_MAX = 128
ENTRY_BYTES = (128, 4096)

_MBR_ENTRIES, _MBR_ENTRY = 446, 16
_PROTECTIVE = 0xEE
_SIGNATURE = b"\x55\xaa"
_GPT = b"EFI PART"
_HEADER = struct.Struct("<8sIIIIQQQQ16sQIII")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its place and its length in bytes."""

    offset: int
    size: int


def partitions(image: BinaryIO, size: int) -> list[Partition]:
    """The partitions of an image of `size` bytes, in the order of the table; raises `MistakeError`."""
    first = _at(image, 0, 512)
    if first[510:] != _SIGNATURE:
        raise MistakeError("it has no partition table: is it an image of a whole disk?")
    entries = [first[at : at + _MBR_ENTRY] for at in range(_MBR_ENTRIES, 510, _MBR_ENTRY)]
    if any(entry[4] == _PROTECTIVE for entry in entries):
        found = _of_gpt(image, size)
    else:
        places = (struct.unpack_from("<II", entry, 8) for entry in entries if entry[4])
        found = [Partition(start * 512, count * 512) for start, count in places]
    return [one for one in found if 0 < one.offset < one.offset + one.size <= size]


def fat_partitions(image: BinaryIO, size: int) -> Iterator[Partition]:
    """Those of the partitions that begin as a FAT file system does; raises `MistakeError`."""
    for one in partitions(image, size):
        boot = _at(image, one.offset, 512)
        named = boot[54:57] == b"FAT" or boot[82:87] == b"FAT32"
        if boot[510:] == _SIGNATURE and named and struct.unpack_from("<H", boot, 11)[0] in (512, 4096):
            yield one


def _of_gpt(image: BinaryIO, size: int) -> list[Partition]:
    for sector in SECTORS:
        raw = _at(image, sector, _HEADER.size)
        if raw[:8] == _GPT:
            return list(_entries(image, raw, sector, size))
    raise MistakeError("its GUID partition table is damaged: copy the image again")


def _entries(image: BinaryIO, raw: bytes, sector: int, size: int) -> Iterator[Partition]:
    header = _HEADER.unpack(raw)
    length, own_sum, place, count, entry_bytes, table_sum = header[2], header[3], *header[10:14]
    damaged = MistakeError("its GUID partition table is damaged: copy the image again")
    if not _HEADER.size <= length <= sector or not 1 <= count <= ENTRIES_MAX:
        raise damaged
    if not ENTRY_BYTES[0] <= entry_bytes <= ENTRY_BYTES[1] or place * sector + count * entry_bytes > size:
        raise damaged
    whole = bytearray(_at(image, sector, length))
    whole[16:20] = bytes(4)  # the sum is over a header whose sum is 0
    table = _at(image, place * sector, count * entry_bytes)
    if zlib.crc32(whole) != own_sum or zlib.crc32(table) != table_sum:
        raise damaged
    for at in range(0, len(table), entry_bytes):
        first, last = struct.unpack_from("<QQ", table, at + 32)
        if any(table[at : at + 16]) and first <= last:
            yield Partition(first * sector, (last - first + 1) * sector)


def _at(image: BinaryIO, offset: int, count: int) -> bytes:
    image.seek(offset)
    found = image.read(count)
    if len(found) != count:
        raise MistakeError("it ends before its partition table does: is it an image of a whole disk?")
    return found
