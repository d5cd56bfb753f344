"""The envelope of a batch and its header, as data. `geartrain.wire.codec` turns them into bytes and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from geartrain.ports.spool import SplitProgress

EPOCH_BYTES = 8
DIGEST_BYTES = 16
VERSION = 1
DEFLATED = 1
"""The flag of a header whose body is deflated (zlib)."""


class BatchKind(Enum):
    """DATA: rows of one channel (or none: the watermarks alone); SCHEMA: announces the schema of channels."""

    DATA = 1
    SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Header:
    """What a batch says of itself; covered by the digest, and never changed once it is committed.

    count: rows; first_number: the number of the first row where numbers run without a gap, else 0;
    watermarks: of ALL channels of the flow after this batch, microseconds; positions: how far each
    (source step, split) was read when it was made; flags: 1 = body is deflated (zlib).
    """

    kind: BatchKind
    flow: str
    device: str
    epoch: bytes
    seq: int
    channel: str = ""
    schema_id: str = ""
    count: int = 0
    first_number: int = 0
    watermarks: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[tuple[str, str], SplitProgress] = field(default_factory=dict)
    flags: int = 0
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Envelope:
    """One publish of a batch: header and body as they were committed, the running digest after this batch,
    and the oldest seq that the spool still holds at the moment of sending (it may differ between two sends).
    """

    header: bytes
    body: bytes
    digest: bytes
    oldest_seq: int


@dataclass(frozen=True, slots=True)
class Ack:
    """All batches of (flow, epoch) up to `seq` are durable; `digest` is the running one at `seq`, `term`
    ingest's.
    """

    flow: str
    epoch: bytes
    seq: int
    digest: bytes
    term: int


class NackReason(Enum):
    """GAP: `seq` is the first that is missing; DIGEST: the batch `seq` came with a digest that does not fit;
    CLOSED: the epoch was replaced by a later one."""

    GAP = 1
    DIGEST = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Nack:
    """Send again from `seq` on, for the `reason` given."""

    flow: str
    epoch: bytes
    seq: int
    reason: NackReason
    term: int
