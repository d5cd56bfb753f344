"""The running digest over the batches of an epoch: equal digests at a seq mean equal batches up to it.

Agent and ingest each keep it, and meet on it in every ack. So a spool that was cloned, restored or damaged is
found before it is trimmed.
"""

from __future__ import annotations

import hashlib

from geartrain.wire.envelope import DIGEST_BYTES

FIRST_DIGEST = bytes(DIGEST_BYTES)
"""The digest before the first batch of an epoch."""


def next_digest(previous: bytes, header: bytes, body: bytes) -> bytes:
    """The running digest after a batch: blake2b (16 bytes) of previous digest, header and body as committed.

    Each part is preceded by its length (8 bytes, big-endian), so that no byte can move from one into another.
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (previous, header, body):
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()
