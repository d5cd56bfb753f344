"""Bytes that version 2 wrote once are read for ever, and still mean the same."""

from __future__ import annotations

import zlib

import pytest

from geartrain.errors import WireError
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_control, decode_envelope, decode_gap, decode_header, decode_schemas
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from tests.wire import golden_batches as golden
from tests.wire.batches import same


def kept(name: str) -> bytes:
    return (golden.FOLDER / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", golden.HEADERS)
def test_header(name: str) -> None:
    assert decode_header(kept(name)) == golden.HEADERS[name]


@pytest.mark.parametrize("name", golden.CONTROLS)
def test_control(name: str) -> None:
    assert decode_control(kept(name)) == golden.CONTROLS[name]


@pytest.mark.parametrize("name", golden.CONTROLS)
def test_of_a_control_no_bit_can_change(name: str) -> None:
    data = kept(name)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            decode_control(bytes(damaged))


def test_a_checksum_is_that_of_what_stands_before_it() -> None:
    data = kept("ack")
    assert data[-5] == 15 << 3 | 5
    assert int.from_bytes(data[-4:], "little") == zlib.crc32(data[:-5])
    with pytest.raises(WireError, match="does not fit its checksum"):
        decode_control(data + b"\x60\x01")  # what comes behind it is not covered
    longer = data[:-5] + b"\x60\x01"  # a field that a later program may add
    summed = longer + data[-5:-4] + zlib.crc32(longer).to_bytes(4, "little")
    assert decode_control(summed) == golden.CONTROLS["ack"]
    with pytest.raises(WireError, match="does not fit its checksum"):
        decode_control(longer)


def test_schemas() -> None:
    assert decode_schemas(kept("schemas")) == golden.SCHEMAS
    assert golden.QUOTE.schema_id == "6dabe5e3bbe3ceb5"


def test_gap() -> None:
    assert decode_gap(golden.GAP_HEADER, kept("gap_body")) == golden.GAP


def test_rows() -> None:
    assert same(decode_rows(golden.QUOTE, golden.FEW_HEADER, kept("few_body")), golden.FEW)
    assert same(decode_rows(golden.QUOTE, golden.MANY_HEADER, kept("many_body")), golden.MANY)


def test_envelope_and_digest() -> None:
    envelope = decode_envelope(kept("envelope"))
    assert (envelope.header, envelope.body) == (kept("few_header"), kept("few_body"))
    assert envelope.oldest_seq == 1
    assert envelope.digest == next_digest(FIRST_DIGEST, envelope.header, envelope.body)
    assert envelope.digest.hex() == "468f4787ac06ac1b5cd47a855b700871"


def test_what_was_written_once_is_written_the_same_today() -> None:
    assert {name: kept(name) for name in golden.written()} == golden.written()


def test_each_file_is_read_here() -> None:
    assert {path.stem for path in golden.FOLDER.iterdir()} == set(golden.written())
