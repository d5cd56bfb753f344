"""What ingest knows of one device in one flow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from geartrain.delivery.receiver import Receiver
from geartrain_cloud.ports import AckCursor


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A batch of another flow than the one that ingest was told of: the device keeps it, and all behind it.

    seq: 0 where a fresh spool is not opened; channel: where it differs; why: a sentence without a full stop;
    expected: the seq that its epoch waits for, below `seq` only where the batches between are lost.
    """

    seq: int
    channel: str
    rows: int
    expected: int
    why: str


class Gone(Enum):
    """Why nothing of a device is taken any more: its spool is declared dropped, by count, and acked."""

    RETIRED = "retired"
    ENDED = "ended"


@dataclass(slots=True)
class DeviceStream:
    """One (device, flow).

    sources: those it has, sorted; channels: those it feeds, sorted; cursor: after the last batch that was
    appended, `durable`: after the last that was committed (None before the first); current: its open epoch;
    candidate: an epoch that has shown itself, but not yet by a first batch with a good digest; contact_us:
    when anything of the device last arrived, wall clock, 0 before; contact_s: the same, monotonic;
    waited_since_s: when ingest found that it is to wait for it, monotonic; None where it does not; greeted:
    an epoch whose HELLO is answered once its opening is durable; partition: which one its batches go to;
    held: the batch that its open epoch waits with; is_fresh: a fresh spool has opened its epoch, and has not
    gone over since: its batches have no number until it has heard of one; gone: the device was retired, or
    its flow is over; revision: the number of what it runs, as it has said last, 0 where it has not.
    """

    device: str
    flow: str
    sources: tuple[str, ...]
    channels: tuple[str, ...]
    cursor: AckCursor | None = None
    durable: AckCursor | None = None
    current: Receiver | None = None
    candidate: Receiver | None = None
    contact_us: int = 0
    contact_s: float = -math.inf
    waited_since_s: float | None = None
    greeted: bytes = b""
    partition: int = 0
    held: HeldBatch | None = None
    is_fresh: bool = False
    gone: Gone | None = None
    revision: int = 0

    @property
    def name(self) -> str:
        """`device/flow`, for people."""
        return f"{self.device}/{self.flow}"
