"""The quarantine: refused batches, kept raw and out of the log, so that a person can look at them.

Beside the way into the log. Guarantees: it never holds more than its caps. Batches without a proof of their
sender can fill only half of it, so that there is room for those that were acked. Whatever it cannot hold is
counted.
"""

from __future__ import annotations

from geartrain.delivery.receiver import Arrival
from geartrain.printable import TEXT_CHARS_MAX, printable
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.group import Group
from geartrain_cloud.ports import QuarantinedBatch


class Quarantine:
    """Takes refused batches into the group that is committed next."""

    def __init__(self, config: IngestConfig, group: Group, counters: Counters, alarm: Alarm) -> None:
        self._batches_max = config.quarantine_batches_max
        self._bytes_max = config.quarantine_bytes_max
        self._group, self._counters, self._alarm = group, counters, alarm

    def keep_raw(self, device: str, flow: str, payload: bytes, why: Counter, reason: str) -> None:
        """Keep a payload whose header is not known; device and flow as the topic names them."""
        self._keep(
            QuarantinedBatch(device, flow, b"", 0, 0, printable(reason, TEXT_CHARS_MAX), payload),
            why,
            is_ours=False,
        )

    def keep(self, arrival: Arrival, why: Counter, reason: str, *, in_sequence: bool = False) -> None:
        """Keep a batch; in_sequence: it has its place in its epoch, and will be acked."""
        header = arrival.header
        batch = QuarantinedBatch(
            header.device,
            header.flow,
            header.epoch,
            header.seq,
            header.count,
            printable(reason, TEXT_CHARS_MAX),
            arrival.payload,
            acked=in_sequence,
        )
        if in_sequence:
            self._counters.add(Counter.QUARANTINED_RECORDS, header.count)
        self._keep(batch, why, is_ours=in_sequence)

    def _keep(self, batch: QuarantinedBatch, why: Counter, *, is_ours: bool) -> None:
        self._counters.add(why)
        self._alarm.warn(why.value, f"{batch.device}/{batch.flow}", batch.reason)
        share = 1 if is_ours else 2
        held_bytes = self._counters[Counter.QUARANTINE_BYTES] + len(batch.payload)
        held_batches = self._counters[Counter.QUARANTINED_BATCHES] + 1
        if held_bytes * share > self._bytes_max or held_batches * share > self._batches_max:
            self._counters.add(Counter.QUARANTINE_DROPPED)
            return
        self._counters.add(Counter.QUARANTINED_BATCHES)
        self._counters.add(Counter.QUARANTINE_BYTES, len(batch.payload))
        self._group.quarantine(batch)
