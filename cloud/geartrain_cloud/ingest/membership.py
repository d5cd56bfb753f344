"""Which devices a flow of live sources waits for: a silent device is excluded until it is heard again.

Beside the sequencer. Guarantees: in a flow whose sources all end, no device is ever excluded. Each exclusion
and readmission is an entry for every source of the device, so the clocks are a function of the log alone.
Silence counts only while ingest itself could have heard the device, and from when it was assigned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from geartrain.errors.reason import Reason, make_reason
from geartrain.ports import Clock
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.ingest.clock import SourceClock
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.group import Partition, Place
from geartrain_cloud.ingest.streams import DeviceStream
from geartrain_cloud.log.entry_reasons import EntryCode, entry_sentence
from geartrain_cloud.ports import EntryKind

_LOG = logging.getLogger("geartrain.ingest")

_INTERVAL_S_MAX = 1.0
_STALL_INTERVALS = 5.0
"""A check that comes this many intervals late finds that ingest was not listening: no device was silent."""


class Membership:
    """Excludes and readmits the devices of `streams`."""

    def __init__(
        self,
        flows: Mapping[str, FollowedFlow],
        streams: Mapping[tuple[str, str], DeviceStream],
        partitions: Mapping[Place, Partition],
        content: Content,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self._flows = flows
        self._streams, self._partitions, self._content = streams, partitions, content
        self._counters, self._clock = counters, clock
        self._listening_s = self._checked_s = clock.monotonic_s()

    def _live(self) -> list[FollowedFlow]:
        return [flow for flow in self._flows.values() if not flow.bounded]

    @property
    def interval_s(self) -> float:
        """How often `check` is to be called."""
        limits = [s for flow in self._live() for s in (flow.join_timeout_s, flow.idle_after_s)]
        return min(_INTERVAL_S_MAX, min(limits, default=_INTERVAL_S_MAX) / 4)

    def listen(self) -> None:
        """From now on devices can be heard: the broker was reached again, or what was queued is taken."""
        self._listening_s = self._clock.monotonic_s()

    def contact(self, stream: DeviceStream) -> None:
        """Anything of the device arrived; it is waited for again if it was excluded."""
        stream.contact_s = self._clock.monotonic_s()
        stream.contact_us = self._clock.now_us()
        if stream.gone is not None:
            return
        clocks = self._clocks(stream)
        said = None if stream.cursor is None or not stream.cursor.seq else stream.cursor.source_watermarks
        out = [
            source
            for source in stream.sources
            # Of a source that it does not have, it has said nothing.
            if clocks[source].is_excluded(stream.device) and (said is None or source in said)
        ]
        if not out:
            return
        for source in out:
            clocks[source].readmit(stream.device)
        self._counters.add(Counter.DEVICES_READMITTED)
        _LOG.warning("%s is heard again: the clock waits for it from here on", stream.name)
        self._note(stream, out, EntryKind.READMITTED, make_reason(EntryCode.HEARD_AGAIN))

    def check(self) -> None:
        """Exclude the devices that have been silent for too long."""
        now_s, before_s = self._clock.monotonic_s(), self._checked_s
        self._checked_s = now_s
        if now_s - before_s > _STALL_INTERVALS * self.interval_s:
            self._listening_s = now_s
        for stream in self._streams.values():
            flow = self._flows.get(stream.flow)
            if flow is None or flow.bounded or stream.gone is not None:
                stream.waited_since_s = None
                continue
            if stream.waited_since_s is None:
                stream.waited_since_s = now_s
            has_joined = stream.cursor is not None
            limit_s = flow.idle_after_s if has_joined else flow.join_timeout_s
            if now_s - max(stream.contact_s, stream.waited_since_s, self._listening_s) >= limit_s:
                code = EntryCode.SILENT if has_joined else EntryCode.NOT_JOINED
                self._exclude(stream, make_reason(code, limit_s=limit_s))

    def _exclude(self, stream: DeviceStream, why: Reason) -> None:
        marks = {} if stream.cursor is None else stream.cursor.source_watermarks
        clocks = self._clocks(stream)
        live = [
            source
            for source in stream.sources
            # A source that has come to its end holds up nobody.
            if marks.get(source, START_OF_TIME) < END_OF_TIME
            and not clocks[source].is_excluded(stream.device)
        ]
        if not live:
            return
        for source in live:
            clocks[source].exclude(stream.device)
        self._counters.add(Counter.DEVICES_EXCLUDED)
        _LOG.warning("%s: %s; the clock goes on without it", stream.name, entry_sentence(why))
        self._note(stream, live, EntryKind.EXCLUDED, why)

    def _note(self, stream: DeviceStream, sources: list[str], kind: EntryKind, reason: Reason) -> None:
        cursor = stream.cursor
        epoch, seq = (b"", 0) if cursor is None else (cursor.epoch, cursor.seq)
        self._content.note(stream, kind, epoch, seq, reason, sources)

    def _clocks(self, stream: DeviceStream) -> Mapping[str, SourceClock]:
        return self._partitions[stream.flow, stream.partition].clocks
