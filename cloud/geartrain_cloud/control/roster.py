"""What control has ingest follow: instances with their channels, sources and devices, as the log's roster.

Between the reconciler and ingest. Guarantees: what is written is a function of the store. What was told is
told again only where it has changed, so that a round that changes nothing writes nothing. An instance ends in
the roster only when it has ended in the store, or was purged while this process ran. A store that was lost
ends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain_cloud.control_store.model import Instance, Report
from geartrain_cloud.control_store.sources import Lacks, members
from geartrain_cloud.log.roster import (
    RosterChannel,
    RosterDocument,
    RosterReader,
    RosterWriter,
    changed,
)
from geartrain_cloud.platform.config import FleetSection
from geartrain_cloud.platform.places import PlatformPlaces

Assigned = Mapping[str, str]
"""The devices that an instance was ever given, each with `wanted`, `draining` or `left`."""


@dataclass(frozen=True, slots=True)
class Told:
    """An instance with its devices; lacks: the sources that are not for them; reports: what they say."""

    instance: Instance
    assigned: Assigned
    lacks: Lacks = field(default_factory=dict)
    reports: Mapping[str, Report] = field(default_factory=dict)


class RosterKeeper:
    """Keeps the roster of one platform."""

    def __init__(self, places: PlatformPlaces, fleet: FleetSection) -> None:
        self._places, self._fleet = places, fleet
        self._told: dict[str, RosterDocument] | None = None
        self._mine: set[str] = set()

    def write(self, roster: list[Told]) -> None:
        """Have ingest follow these instances; raises `LedgerError`, `ConfigError` or `OSError`."""
        if self._told is None:
            self._told = dict(changed(RosterReader(self._places.log).after()))
        writer = RosterWriter(self._places.log)
        for one in roster:
            instance = one.instance
            name, wanted = instance.instance, self._document(one)
            held = self._told.get(name)
            self._mine.add(name)
            if held == wanted or (held is not None and held.ended) or (held is None and wanted.ended):
                continue
            if wanted.ended:
                writer.end(name)
            else:
                writer.put(name, wanted)
            self._told[name] = wanted
        for name in self._mine - {one.instance.instance for one in roster}:  # purged
            if name in self._told:
                writer.end(name)
                del self._told[name]
            self._mine.discard(name)

    def _document(self, told: Told) -> RosterDocument:
        instance = told.instance
        outline, ended = instance.outline, instance.state.has_whole_log
        channels = [one for one in outline.channels if one.id not in (DEAD_LETTERS, LATE)]
        sources = (*(source.id for source in outline.sources), *outline.gone)
        there = [] if ended else [device for device, state in told.assigned.items() if state != "left"]
        # Of what has gone each device may have more to send. Once it has gone over, its batches say so.
        devices = {
            d: (*members(instance, d, told.lacks.get(d, ()), told.reports.get(d)), *outline.gone)
            for d in there
        }
        came = {**outline.gone, **{source.id: source.since for source in outline.sources}}
        return RosterDocument(
            {one.id: RosterChannel(tuple(one.sources), one.schema, one.former) for one in channels},
            sources,
            devices,
            outline.bounded,
            self._fleet.join_timeout_s,
            self._fleet.idle_after_s,
            {one.id: one.partitioned_by for one in channels if one.partitioned_by},
            ended,
            instance.revision,
            {source: since for source, since in came.items() if since},
            instance.retain_s or None,
            instance.retain_bytes or None,
        )
