"""Which devices a flow of live sources waits for: a silent device is excluded until it is heard again.

Beside the sequencer. Guarantees: in a flow whose sources all end, no device is ever excluded. Each exclusion
and readmission is an entry of every channel concerned, so the clock is a function of the log alone. Silence
counts only while ingest itself could have heard the device.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from geartrain.ports import Clock
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.ingest.config import FlowConfig
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.group import Partition, Place
from geartrain_cloud.ingest.streams import DeviceStream
from geartrain_cloud.ports import EntryKind

_LOG = logging.getLogger("geartrain.ingest")

_INTERVAL_S_MAX = 1.0
_STALL_INTERVALS = 5.0
"""A check that comes this many intervals late finds that ingest was not listening: no device was silent."""


class Membership:
    """Excludes and readmits the devices of `streams`."""

    def __init__(
        self,
        flows: Mapping[str, FlowConfig],
        streams: Mapping[tuple[str, str], DeviceStream],
        partitions: Mapping[Place, Partition],
        content: Content,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self._flows = {name: flow for name, flow in flows.items() if not flow.bounded}
        self._streams, self._partitions, self._content = streams, partitions, content
        self._counters, self._clock = counters, clock
        self._listening_s = self._checked_s = clock.monotonic_s()
        self.is_live = bool(self._flows)

    @property
    def interval_s(self) -> float:
        """How often `check` is to be called."""
        limits = [s for flow in self._flows.values() for s in (flow.join_timeout_s, flow.idle_after_s)]
        return min(_INTERVAL_S_MAX, min(limits, default=_INTERVAL_S_MAX) / 4)

    def listen(self) -> None:
        """From now on devices can be heard: the broker was reached again, or what was queued is taken."""
        self._listening_s = self._clock.monotonic_s()

    def contact(self, stream: DeviceStream) -> None:
        """Anything of the device arrived; it is waited for again if it was excluded."""
        stream.contact_s = self._clock.monotonic_s()
        stream.contact_us = self._clock.now_us()
        channels = [c for c in stream.channels if self._of(stream, c).clock.is_excluded(stream.device)]
        if not channels:
            return
        for channel in channels:
            self._of(stream, channel).clock.readmit(stream.device)
        self._counters.add(Counter.DEVICES_READMITTED)
        _LOG.warning("%s is heard again: the clock waits for it from here on", stream.name)
        self._note(stream, channels, EntryKind.READMITTED, "it is heard again")

    def check(self) -> None:
        """Exclude the devices that have been silent for too long."""
        now_s, before_s = self._clock.monotonic_s(), self._checked_s
        self._checked_s = now_s
        if now_s - before_s > _STALL_INTERVALS * self.interval_s:
            self._listening_s = now_s
        for stream in self._streams.values():
            flow = self._flows.get(stream.flow)
            if flow is None:
                continue
            has_joined = stream.cursor is not None
            limit_s = flow.idle_after_s if has_joined else flow.join_timeout_s
            if now_s - max(stream.contact_s, self._listening_s) >= limit_s:
                what = "nothing was heard of it for" if has_joined else "it did not join within"
                self._exclude(stream, f"{what} {limit_s:g} s")

    def _exclude(self, stream: DeviceStream, why: str) -> None:
        marks = {} if stream.cursor is None else stream.cursor.watermarks
        channels = [
            channel
            for channel in stream.channels
            # A device that has come to its end holds up nobody.
            if marks.get(channel, START_OF_TIME) < END_OF_TIME
            and not self._of(stream, channel).clock.is_excluded(stream.device)
        ]
        if not channels:
            return
        for channel in channels:
            self._of(stream, channel).clock.exclude(stream.device)
        self._counters.add(Counter.DEVICES_EXCLUDED)
        _LOG.warning("%s: %s; the clock goes on without it", stream.name, why)
        self._note(stream, channels, EntryKind.EXCLUDED, why)

    def _note(self, stream: DeviceStream, channels: list[str], kind: EntryKind, detail: str) -> None:
        cursor = stream.cursor
        epoch, seq = (b"", 0) if cursor is None else (cursor.epoch, cursor.seq)
        self._content.note(stream, kind, epoch, seq, detail, channels)

    def _of(self, stream: DeviceStream, channel: str) -> Partition:
        return self._partitions[stream.flow, channel, stream.partition]
