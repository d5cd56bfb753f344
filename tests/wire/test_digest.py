"""The running digest tells any two histories apart."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from geartrain.wire.digest import FIRST_DIGEST, next_digest

BATCHES = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=4)


def digest_of(batches: list[tuple[bytes, bytes]]) -> bytes:
    digest = FIRST_DIGEST
    for header, body in batches:
        digest = next_digest(digest, header, body)
    return digest


def test_digest_is_blake2b_of_the_parts_with_their_lengths() -> None:
    told = bytes(7) + b"\x10" + bytes(16) + bytes(7) + b"\x06header" + bytes(7) + b"\x04body"
    assert bytes(16) == FIRST_DIGEST
    assert next_digest(FIRST_DIGEST, b"header", b"body") == hashlib.blake2b(told, digest_size=16).digest()


@given(BATCHES, BATCHES)
def test_two_histories_have_one_digest_only_if_they_are_one(
    left: list[tuple[bytes, bytes]], right: list[tuple[bytes, bytes]]
) -> None:
    assert (digest_of(left) == digest_of(right)) == (left == right)


@given(st.binary(max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_no_byte_moves_between_header_and_body(text: bytes, cut: int, other: int) -> None:
    same = text[:cut] == text[:other]
    left = next_digest(FIRST_DIGEST, text[:cut], text[cut:])
    right = next_digest(FIRST_DIGEST, text[:other], text[other:])
    assert (left == right) == same


def test_each_batch_counts_and_so_does_their_order() -> None:
    one, two = (b"h1", b"b1"), (b"h2", b"b2")
    digests = {digest_of(history) for history in ([], [one], [two], [one, two], [two, one], [one, one])}
    assert len(digests) == 6
