"""The envelope of a batch and its header, as data. `geartrain.wire.codec` turns them into bytes and back."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from geartrain.ports.spool import SplitProgress

EPOCH_BYTES = 8
DIGEST_BYTES = 16
VERSION = 2
"""Of a batch; since 2 an origin begins with the step of its birth, by which records are ordered."""
DEFLATED = 1
"""The flag of a header whose body is deflated (zlib)."""


class BatchKind(Enum):
    """DATA: rows of one channel (or none: the watermarks alone); SCHEMA: announces the schema of channels;
    GAP: stands for batches that the device dropped, under their seqs; HELLO: asks where the device stands;
    CROSSING: from here on the device runs another cut or revision.
    """

    DATA = 1
    SCHEMA = 2
    GAP = 3
    HELLO = 4
    CROSSING = 5


class Header(msgspec.Struct, frozen=True):
    """What a batch says of itself; covered by the digest, and never changed once it is committed.

    count: rows; first_number: the number of the first row where numbers run without a gap, else 0;
    watermarks: of ALL channels of the flow after this batch, microseconds; source_watermarks: of all sources
    that the device has, by step id; positions: how far each (source step, split) was read when it was made;
    flags: 1 = body is deflated (zlib). seq: 0 in what is unsequenced, a HELLO or the SCHEMA that answers a
    NACK. first_seq, digest_after: of a GAP, the first seq it stands for (`seq` is the last) and the running
    digest after `seq`. dropped: by channel, rows that the device dropped before they had a seq, since the
    sequenced batch before this one. ordinal: of a HELLO, the epoch's number among those of its device, as the
    sender knows it, 0 where it does not say. crossing: how often the device had gone over to another cut or
    revision: with a CROSSING itself, of a HELLO before the first batch of its epoch; 0: never, or it does not
    know yet. fresh: of a HELLO, the spool is new and knows of no crossing.
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
    watermarks: Mapping[str, int] = msgspec.field(default_factory=dict)
    positions: Mapping[tuple[str, str], SplitProgress] = msgspec.field(default_factory=dict)
    flags: int = 0
    version: int = VERSION
    first_seq: int = 0
    digest_after: bytes = b""
    dropped: Mapping[str, int] = msgspec.field(default_factory=dict)
    ordinal: int = 0
    source_watermarks: Mapping[str, int] = msgspec.field(default_factory=dict)
    crossing: int = 0
    fresh: bool = False


class Envelope(msgspec.Struct, frozen=True):
    """One publish of a batch: header and body as they were committed, and the running digest after this
    batch. With it goes the oldest seq that the spool still holds at the moment of sending, which may differ
    between two sends.

    The digest of a GAP, and of what is unsequenced, is its own: `next_digest(FIRST_DIGEST, header, body)`.
    The chain goes on behind a GAP from its `digest_after`.
    """

    header: bytes
    body: bytes
    digest: bytes
    oldest_seq: int


class Ack(msgspec.Struct, frozen=True):
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
    CLOSED: the epoch was replaced by a later one; NEED_SCHEMA: the batch `seq` names an unknown schema;
    HOLD: the batch `seq` cannot be taken yet, so keep it and try again later; SET_BACK: the epoch begins
    before crossing `seq` of its device, which ingest has: it is not opened.
    """

    GAP = 1
    DIGEST = 2
    CLOSED = 3
    NEED_SCHEMA = 4
    HOLD = 5
    SET_BACK = 6


class Nack(msgspec.Struct, frozen=True):
    """Send again from `seq` on, for the `reason` given."""

    flow: str
    epoch: bytes
    seq: int
    reason: NackReason
    term: int


class Welcome(msgspec.Struct, frozen=True):
    """The answer to the HELLO of a fresh `epoch`: what ingest last knew of (device, flow) in any epoch.

    positions: by (source step, split); watermarks: by channel, source_watermarks: by source step,
    microseconds; all empty for a device that ingest has never heard of. crossing: the newest of the device.
    """

    flow: str
    epoch: bytes
    positions: Mapping[tuple[str, str], SplitProgress]
    watermarks: Mapping[str, int]
    term: int
    source_watermarks: Mapping[str, int] = msgspec.field(default_factory=dict)
    crossing: int = 0


class Offer(msgspec.Struct, frozen=True):
    """The answer to the HELLO of an `epoch` that is not open, and whose ordinal another epoch of its device
    has. If its agent still lives, it says HELLO again with this `ordinal`. Nothing has been opened.
    """

    flow: str
    epoch: bytes
    ordinal: int
    term: int


Control = Ack | Nack | Welcome | Offer
"""What travels on an `ack` topic."""
