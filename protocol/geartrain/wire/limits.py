"""Caps that are checked before anything from the network is decoded or inflated."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """payload_bytes_max: one publish; header_bytes_max: its header; body_bytes_max: one inflated body;
    rows_max: records in one batch; text_bytes_max: one string or bytes value; names_max: watermarks,
    positions or channels in one header.
    """

    payload_bytes_max: int = 1 << 20
    header_bytes_max: int = 1 << 17
    body_bytes_max: int = 8 << 20
    rows_max: int = 10_000
    text_bytes_max: int = 1 << 18
    names_max: int = 1_024

    @property
    def sent_body_bytes_max(self) -> int:
        """One body as it travels: what a publish leaves beside the largest header and the digest."""
        return self.payload_bytes_max - self.header_bytes_max - 64


LIMITS = Limits()
