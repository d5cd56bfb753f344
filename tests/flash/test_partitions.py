"""Partition tables are read as they are defined, and nothing in them is believed."""

from __future__ import annotations

import io
import struct
import uuid
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.errors import MistakeError
from geartrain_client.flash.partitions import Partition, partitions
from tests.flash.disks import gpt, mbr

SIZE = 8 << 20


def read(image: bytes, size: int = SIZE) -> list[Partition]:
    return partitions(io.BytesIO(image.ljust(size, b"\0")), size)


def test_a_master_boot_record_is_read() -> None:
    places = [(2048, 4096), (6144, 2048)]
    assert read(mbr(places)) == [Partition(start * 512, count * 512) for start, count in places]


@pytest.mark.parametrize("sector", [512, 4096])
def test_a_guid_table_is_read(sector: int) -> None:
    found = read(gpt([(256, 511), (512, 1023)], sector))
    assert found == [Partition(256 * sector, 256 * sector), Partition(512 * sector, 512 * sector)]


def test_a_partition_beyond_the_file_does_not_count() -> None:
    assert read(mbr([(2048, 1 << 31), (4_294_967_295, 1), (0, 5), (2048, 16)])) == [Partition(1 << 20, 8192)]


def test_a_table_that_is_not_sound_is_refused() -> None:
    whole = bytearray(gpt([(256, 511)], 512))
    for at in (512 + 56, 512 + 80, 1024 + 40):  # of the disk's name, the count of entries, the first entry
        spoilt = bytearray(whole)
        spoilt[at] ^= 0xFF
        with pytest.raises(MistakeError, match="damaged"):
            read(bytes(spoilt))
    with pytest.raises(MistakeError, match="no partition table"):
        read(bytes(512))
    with pytest.raises(MistakeError, match="ends before"):
        partitions(io.BytesIO(b"\0" * 100), 100)


def test_a_table_that_claims_to_be_endless_is_refused() -> None:
    for count, entry in ((1 << 31, 128), (129, 128), (4, 1 << 30), (0, 128), (4, 0)):
        whole = bytearray(gpt([(256, 511)], 512))
        struct.pack_into("<II", whole, 512 + 80, count, entry)
        struct.pack_into("<I", whole, 512 + 16, 0)
        struct.pack_into("<I", whole, 512 + 16, zlib.crc32(whole[512 : 512 + 92]))
        with pytest.raises(MistakeError, match="damaged"):
            read(bytes(whole))


@given(st.binary(min_size=512, max_size=4096), st.booleans())
def test_any_bytes_give_partitions_inside_of_the_file_or_one_sentence(noise: bytes, is_gpt: bool) -> None:
    image = bytearray(noise)
    image[510:512] = b"\x55\xaa"
    if is_gpt:
        image[450] = 0xEE
        image[512:520] = b"EFI PART"
    try:
        found = read(bytes(image))
    except MistakeError:
        return
    assert all(one.offset > 0 and one.offset + one.size <= SIZE for one in found)


def test_the_helper_makes_a_table_that_the_definition_describes() -> None:
    """UEFI 2.10, table 5.5 and 5.6, at their offsets."""
    made = gpt([(256, 511)], 512)
    assert made[512:520] == b"EFI PART"
    assert struct.unpack_from("<I", made, 512 + 8) == (0x0001_0000,)
    assert struct.unpack_from("<QII", made, 512 + 72) == (2, 4, 128)
    assert uuid.UUID(bytes_le=made[1024:1040]) == uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
    assert struct.unpack_from("<QQ", made, 1024 + 32) == (256, 511)
