"""Bytes that version 1 wrote once are read for ever, and still mean the same."""

from __future__ import annotations

import pytest

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
    assert envelope.digest.hex() == "e38d9728700bc5d0d13e05bc40e18684"


def test_what_was_written_once_is_written_the_same_today() -> None:
    assert {name: kept(name) for name in golden.written()} == golden.written()


def test_each_file_is_read_here() -> None:
    assert {path.stem for path in golden.FOLDER.iterdir()} == set(golden.written())
