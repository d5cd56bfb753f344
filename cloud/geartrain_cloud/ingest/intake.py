"""The gate of ingest: the checks that a publish must pass before ingest believes any of it.

First behind the broker. Guarantees: the size is checked before anything is decoded, and the topic before the
payload. A batch goes on to the sequencer only if its header agrees with its topic and its device is assigned
to the flow. Everything else is counted, and quarantined raw where that can be of use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geartrain.delivery.receiver import Arrival
from geartrain.errors import WireError, WireVersionError
from geartrain.ports import Incoming
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain.wire.limits import LIMITS
from geartrain.wire.topics import parse_up
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.membership import Membership
from geartrain_cloud.ingest.quarantine import Quarantine
from geartrain_cloud.ingest.sequence import Sequencer
from geartrain_cloud.ingest.streams import DeviceStream

Stranger = Callable[[str, str], DeviceStream | None]
"""Gives the stream of a device in a flow that has none: of one that has left, None for any other."""


class Intake:
    """Checks publishes. `streams`: by (device, flow), one for every assigned device."""

    def __init__(
        self,
        streams: Mapping[tuple[str, str], DeviceStream],
        sequencer: Sequencer,
        quarantine: Quarantine,
        counters: Counters,
        alarm: Alarm,
        membership: Membership,
        stranger: Stranger,
    ) -> None:
        self._stranger = stranger
        self._streams, self._sequencer, self._quarantine = streams, sequencer, quarantine
        self._counters, self._alarm, self._membership = counters, alarm, membership

    async def take(self, incoming: Incoming) -> None:
        """Take one publish; raises `LedgerError` when the ledger cannot be asked."""
        payload = incoming.payload
        self._counters.add(Counter.BATCHES_RECEIVED)
        try:
            device, flow = parse_up(incoming.topic)
        except WireError as error:
            self._drop(Counter.FOREIGN_TOPICS, "broker", str(error))
            return
        if len(payload) > LIMITS.payload_bytes_max:
            reason = f"a publish of {len(payload)} bytes is above the cap of {LIMITS.payload_bytes_max}"
            self._drop(Counter.OVERSIZED_PAYLOADS, f"{device}/{flow}", reason)
            return
        stream = self._streams.get((device, flow))
        stream = stream or self._stranger(device, flow)
        if stream is None:
            reason = "the roster does not have the device in the flow: nothing of it is taken yet"
            self._drop(Counter.UNASSIGNED_BATCHES, f"{device}/{flow}", reason)
            return
        try:
            envelope = decode_envelope(payload)
            arrival = Arrival(decode_header(envelope.header), envelope, payload)
        except WireVersionError as error:
            self._drop(Counter.OTHER_WIRE_VERSION, f"{device}/{flow}", str(error))
            return
        except WireError as error:
            self._quarantine.keep_raw(device, flow, payload, Counter.MALFORMED_BATCHES, str(error))
            self._sequencer.hint(stream)
            return
        named = (arrival.header.device, arrival.header.flow)
        if named != (device, flow):
            reason = f"a header of {named[0]}/{named[1]} came on the topic of {device}/{flow}"
            self._quarantine.keep_raw(device, flow, payload, Counter.IDENTITY_MISMATCHES, reason)
            return
        self._membership.contact(stream)
        await self._sequencer.take(stream, arrival)

    def _drop(self, why: Counter, subject: str, reason: str) -> None:
        self._counters.add(why)
        self._alarm.warn(why.value, subject, reason)
