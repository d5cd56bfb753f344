"""The rules that all which travels obeys, checked before it is sent and after it was decoded.

Under the codecs of both directions. Guarantees: what passes can be encoded, and is within the caps; what
does not is a `WireError`, one printable sentence. Every function here raises only that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Sized
from functools import lru_cache

from geartrain.errors import WireError, WireVersionError
from geartrain.ports.spool import SplitProgress
from geartrain.schema.fields import Schema
from geartrain.wire.envelope import (
    DEFLATED,
    DIGEST_BYTES,
    EPOCH_BYTES,
    VERSION,
    Ack,
    BatchKind,
    Control,
    Envelope,
    Header,
    Offer,
    Welcome,
)
from geartrain.wire.limits import Limits
from geartrain.wire.parsing import INT64_MAX
from geartrain.wire.topics import KNOWN_MAX, NAME, check_name

_SCHEMA_ID = re.compile(r"[0-9a-f]{16}")
_SCHEMA_NAME_CHARS_MAX = 256


def check_version(version: int) -> None:
    """This program reads and writes one version; raises `WireVersionError` for any other."""
    if version != VERSION:
        older = "sender" if version < VERSION else "receiver"
        raise WireVersionError(
            f"a batch has wire version {version}; this program speaks version {VERSION} only: upgrade the "
            f"{older}"
        )


def check_names(limits: Limits, *named: Sized) -> None:
    """At most `names_max` of each."""
    if max(map(len, named)) > limits.names_max:
        raise WireError(f"a header has more than {limits.names_max} watermarks or positions")


def check_header(header: Header, limits: Limits) -> None:
    """A header as a whole."""
    check_version(header.version)
    check_names(limits, header.watermarks, header.positions, header.dropped, header.source_watermarks)
    if not 0 <= header.count <= limits.rows_max:
        raise WireError(f"a batch has {header.count} rows; {limits.rows_max} are the most")
    check_name("device", header.device)
    check_name("flow", header.flow)
    check_epoch(header.epoch)
    _check_kind(header)
    _check_ordinal(header)
    _check_crossing(header)
    if header.channel:
        check_channel(header.channel)
    elif header.count:
        raise WireError(f"batch {header.seq} has rows but no channel")
    if header.schema_id and not _SCHEMA_ID.fullmatch(header.schema_id):
        raise WireError(
            f"batch {header.seq}: a schema id is 16 hexadecimal digits, not {header.schema_id[:80]!r}"
        )
    if header.flags & ~DEFLATED:
        raise WireError(f"batch {header.seq} has unknown flags {header.flags:#x}")
    _check_places(header.watermarks, header.source_watermarks, header.positions)


def _check_kind(header: Header) -> None:
    """What only one kind of batch may say."""
    seq, kind = header.seq, header.kind
    if header.count and kind in (BatchKind.SCHEMA, BatchKind.CROSSING):
        raise WireError(f"batch {seq} announces schemas but counts {header.count} rows")
    if kind is BatchKind.HELLO:
        if seq or header.count:
            raise WireError(f"a hello has neither a seq nor rows: {seq}, {header.count}")
    elif seq or kind is not BatchKind.SCHEMA:
        check_seq(seq)
    if kind is BatchKind.GAP:
        if not 1 <= header.first_seq <= seq:
            raise WireError(f"gap {seq} cannot stand for the batches from {header.first_seq} on")
        check_digest(header.digest_after)
        if header.count:
            raise WireError(f"gap {seq} counts {header.count} rows in its header")
    elif (header.first_seq and kind is not BatchKind.HELLO) or header.digest_after:
        raise WireError(f"batch {seq} is no gap but says what it stands for")
    if header.dropped and (not seq or kind is BatchKind.GAP):
        raise WireError(f"batch {seq} of kind {kind.name} cannot declare dropped rows in its header")
    for channel, count in header.dropped.items():
        check_channel(channel)
        if not 1 <= count <= INT64_MAX:
            raise WireError(f"batch {seq} declares {count} dropped rows of channel {channel}")


def _check_ordinal(header: Header) -> None:
    if header.ordinal and header.kind is not BatchKind.HELLO:
        raise WireError(f"batch {header.seq} is no hello but has the ordinal of an epoch")
    if not 0 <= header.ordinal <= INT64_MAX:
        raise WireError(f"the ordinal of an epoch is never negative and fits 64 bits: {header.ordinal}")
    if not 0 <= header.first_seq <= INT64_MAX:
        raise WireError(f"a hello cannot say that batches are held from {header.first_seq} on")


def _check_crossing(header: Header) -> None:
    least = 1 if header.kind is BatchKind.CROSSING else 0
    if not least <= header.crossing <= INT64_MAX:
        raise WireError(
            f"batch {header.seq}: the number of a crossing is at least {least} and fits 64 bits: "
            f"{header.crossing}"
        )
    if header.fresh and (header.kind is not BatchKind.HELLO or header.crossing):
        raise WireError(f"batch {header.seq} is no hello of a fresh spool, and says that it is one")


def check_gap(dropped: Sequence[tuple[int, str, int]], limits: Limits) -> None:
    """The counts of a gap: positive, by (seq, channel) in their order and each once."""
    if len(dropped) > limits.rows_max:
        raise WireError(f"a gap has {len(dropped)} counts; {limits.rows_max} are the most")
    before = (0, "")
    for seq, channel, count in dropped:
        check_seq(seq)
        check_channel(channel)
        if not 1 <= count <= INT64_MAX:
            raise WireError(f"a gap counts {count} rows of batch {seq}")
        if (seq, channel) <= before:
            raise WireError(f"a gap counts batch {seq} out of order or twice")
        before = (seq, channel)


def check_envelope(envelope: Envelope) -> None:
    """An envelope, but for what is inside."""
    if not envelope.header:
        raise WireError("an envelope has no header")
    check_digest(envelope.digest)
    check_seq(envelope.oldest_seq)


def check_control(control: Control) -> None:
    """An ack, a NACK, a welcome or an offer."""
    check_name("flow", control.flow)
    check_epoch(control.epoch)
    if not 0 <= control.term <= INT64_MAX:
        raise WireError(f"a term is never negative and fits 64 bits: {control.term}")
    if isinstance(control, Welcome):
        _check_places(control.watermarks, control.source_watermarks, control.positions)
        if not 0 <= control.crossing <= INT64_MAX:
            raise WireError(
                f"the number of a crossing fits 64 bits and is never negative: {control.crossing}"
            )
        return
    if isinstance(control, Offer):
        if not 1 <= control.ordinal <= INT64_MAX:
            raise WireError(f"the ordinal of an epoch is at least 1 and fits 64 bits: {control.ordinal}")
        return
    check_seq(control.seq)
    if isinstance(control, Ack):
        check_digest(control.digest)


def _check_places(
    watermarks: Mapping[str, int],
    source_watermarks: Mapping[str, int],
    positions: Mapping[tuple[str, str], SplitProgress],
) -> None:
    for name in (*watermarks, *source_watermarks):
        check_channel(name)
    for step, split in positions:
        check_channel(step)
        if not split:
            raise WireError(f"a split of step {step} has no name")


def check_schema(channel: str, schema: Schema, limits: Limits) -> None:
    """A schema whose names can be shown."""
    check_channel(channel)
    names = [schema.name, *(field.name for field in schema.fields)]
    if len(names) > limits.names_max:
        raise WireError(f"the schema of channel {channel} has more than {limits.names_max} fields")
    if not all(0 < len(name) <= _SCHEMA_NAME_CHARS_MAX and name.isprintable() for name in names):
        raise WireError(
            f"the schema of channel {channel} has a name that is empty, not printable, or longer than "
            f"{_SCHEMA_NAME_CHARS_MAX} characters"
        )


@lru_cache(KNOWN_MAX)
def check_channel(channel: str) -> None:
    """A channel's or a step's id."""
    if not NAME.fullmatch(channel):
        raise WireError(f"{channel[:80]!r} cannot name a channel or a step")


def check_epoch(epoch: bytes) -> None:
    """8 bytes."""
    if len(epoch) != EPOCH_BYTES:
        raise WireError(f"an epoch has {EPOCH_BYTES} bytes, not {len(epoch)}")


def check_digest(digest: bytes) -> None:
    """16 bytes."""
    if len(digest) != DIGEST_BYTES:
        raise WireError(f"a digest has {DIGEST_BYTES} bytes, not {len(digest)}")


def check_seq(seq: int) -> None:
    """From 1 to 2^63 - 1."""
    if not 1 <= seq <= INT64_MAX:
        raise WireError(f"a seq is at least 1 and fits 64 bits: {seq}")
