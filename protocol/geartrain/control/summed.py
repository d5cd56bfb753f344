"""Messages of a device's lane with a checksum: how one is written, and what is refused before it is read.

Under the codecs. Guarantees: what was damaged on its way raises `WireError`.
"""

from __future__ import annotations

import zlib

from geartrain.control import lane_pb2, question_pb2
from geartrain.control.states import VERSION
from geartrain.errors import WireError
from geartrain.wire.parsing import check_size

_CHECKSUM_BYTES = 5
"""The field as it is written: its tag, and 4 bytes."""
Summed = lane_pb2.Desired | lane_pb2.Reported | lane_pb2.Kept | question_pb2.Question | question_pb2.Answer


def with_checksum(raw: Summed, what: str, bytes_max: int) -> bytes:
    """The bytes of a message, with its checksum; raises `WireError` where they are more than `bytes_max`."""
    raw.checksum = zlib.crc32(raw.SerializeToString())
    # The field with the highest number is written last, so what was summed up stands before it.
    encoded: bytes = raw.SerializeToString()
    check_size(encoded, what, bytes_max)
    return encoded


def check_sum(raw: Summed, data: bytes, what: str) -> None:
    """Raise `WireError` unless `raw`, which was parsed from `data`, has the checksum of what it says."""
    if not raw.HasField("checksum") or zlib.crc32(data[:-_CHECKSUM_BYTES]) != raw.checksum:
        raise WireError(f"{what} does not fit its checksum: it was damaged on its way")


def check_version(version: int) -> None:
    """Raise `WireError` for a version that this program does not speak."""
    if version != VERSION:
        raise WireError(f"a state has version {version}; this program speaks version {VERSION} only")
