"""What a sender tells its driver: what is to be sent, and what has happened."""

from __future__ import annotations

from enum import Enum

import msgspec

from geartrain.wire.envelope import Ack, Welcome

# What is to be sent


class SendHello(msgspec.Struct, frozen=True):
    """Send a hello that takes its epoch for this one of its device's epochs."""

    ordinal: int


class SendSchemas(msgspec.Struct, frozen=True):
    """Send the schemas again, outside the sequence."""


class SendBatch(msgspec.Struct, frozen=True):
    """Read the batch that follows on `after_seq`, give it to `sent`, and publish it if that agrees.

    gap_only: the window is full, so that only a gap may go; is_probe: the oldest unacked batch once more;
    is_inside: `after_seq` is where the receiver stands inside a gap, which goes out of its turn.
    """

    epoch: bytes
    after_seq: int
    gap_only: bool = False
    is_probe: bool = False
    is_inside: bool = False


Sending = SendHello | SendSchemas | SendBatch


# What has happened


class Acked(msgspec.Struct, frozen=True):
    """All up to `seq` is acked and may be trimmed; digest: the running one after it."""

    seq: int
    digest: bytes


class CompareAck(msgspec.Struct, frozen=True):
    """An ack names a batch whose digest is not at hand: read it, and call `compared`."""

    ack: Ack


class ReadAgain(msgspec.Struct, frozen=True):
    """The receiver refused a digest: let go of what was read ahead, which may be damaged in memory only."""


class Examine(msgspec.Struct, frozen=True):
    """The receiver refused the digest of batch `seq` so many times: look at the stored bytes.

    Put a gap in its place where they are damaged; call `intact` where they are not.
    """

    seq: int
    times: int


class Doubt(Enum):
    """Why an epoch cannot go on: an ack is beyond the last batch or has another digest, or the epoch is
    closed. Or the digest of an intact batch is refused, or the receiver lost what it had acked.
    """

    ACK_BEYOND = 1
    ACK_DIFFERS = 2
    CLOSED = 3
    DIGEST_REFUSED = 4
    RECEIVER_LOST = 5


class Renew(msgspec.Struct, frozen=True):
    """Begin a new epoch with all that is unacked, and call `renewed`. seq, times: what the doubt is about."""

    doubt: Doubt
    seq: int
    ordinal: int
    times: int = 0


class Renumbered(msgspec.Struct, frozen=True):
    """The epoch, of which nothing is acked, has another ordinal from now on."""

    ordinal: int


class Welcomed(msgspec.Struct, frozen=True):
    """The epoch is open."""

    welcome: Welcome


class SchemasRefused(msgspec.Struct, frozen=True):
    """The receiver does not know the schema of a batch, and the sender has none to send."""

    seq: int


class Held(msgspec.Struct, frozen=True):
    """The receiver cannot take batch `seq` yet: it and all behind it stay in the store until it can."""

    seq: int


class Silent(msgspec.Struct, frozen=True):
    """The receiver has said nothing for `silence_s`, though an answer is due: give the connection up."""


Event = (
    Acked | CompareAck | ReadAgain | Examine | Renew | Renumbered | Welcomed | SchemasRefused | Held | Silent
)
