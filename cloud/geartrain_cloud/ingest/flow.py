"""A flow as ingest follows it: which devices have which source, and the sources above each channel.

Made of a document of the roster. Guarantees: what ingest asks of a flow is answered here, in one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, STATE
from geartrain.records.letters import Letter
from geartrain.schema import Schema, derive
from geartrain_cloud.log.retention import Retention
from geartrain_cloud.log.roster import RosterDocument
from geartrain_cloud.ports import NO_SOURCE

SYSTEM_CHANNELS = (DEAD_LETTERS, LATE)
"""Channels that every flow has, below all its sources, and that every device feeds."""

TIMELESS_CHANNELS = (*SYSTEM_CHANNELS, STATE, CLAIMS)
"""Channels whose rows may lie anywhere in time, so that no clock has passed them."""


@dataclass(frozen=True, slots=True)
class FollowedFlow:
    """One flow: `sources` gives the devices that have each source, `channels` the sources above each channel,
    the two system channels included.

    bounded: all its sources come to an end, so no device is ever excluded. Otherwise ingest excludes a device
    that does not join within join_timeout_s, or of which nothing is heard for idle_after_s. partitioned_by:
    of some channels the field of whose values each is said to live on one device; schemas: of channels, the
    id of the schema that they have to have; that of any other is the first that is announced; revision: the
    number of the one that the log is to bring next, or has brought; since: of sources that came with a later
    one its number; former: of channels, by its id each schema that devices have which have not gone over.
    """

    devices: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    channels: Mapping[str, tuple[str, ...]]
    bounded: bool = True
    join_timeout_s: float = 60.0
    idle_after_s: float = 30.0
    partitioned_by: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    revision: int = 1
    retention: Retention = field(default_factory=Retention)
    since: Mapping[str, int] = field(default_factory=dict)
    former: Mapping[str, Mapping[str, Schema]] = field(default_factory=dict)

    @staticmethod
    def of(document: RosterDocument) -> FollowedFlow:
        """The flow of a document of the roster; its system channels lie below all sources."""
        return FollowedFlow(
            tuple(sorted(document.devices)),
            {
                source: tuple(sorted(device for device, has in document.devices.items() if source in has))
                for source in document.sources
            },
            {
                **{channel: row.sources for channel, row in document.channels.items()},
                **dict.fromkeys(SYSTEM_CHANNELS, document.sources),
            },
            bounded=document.bounded,
            join_timeout_s=document.join_timeout_s,
            idle_after_s=document.idle_after_s,
            partitioned_by=document.partitioned_by,
            schemas={channel: row.schema for channel, row in document.channels.items() if row.schema},
            former={channel: row.former_schemas for channel, row in document.channels.items() if row.former},
            revision=document.revision,
            since=document.since,
            retention=Retention(document.retain_s, document.retain_bytes),
        )

    def takes(self, channel: str, schema_id: str) -> bool:
        """Whether somebody has named the schema of this id for a channel; those of letters are known."""
        if channel in SYSTEM_CHANNELS:
            return schema_id == derive(Letter).schema_id
        return schema_id == self.schemas.get(channel) or schema_id in self.former.get(channel, {})

    def sources_of(self, device: str) -> list[str]:
        """The sources that `device` has, sorted."""
        return sorted(source for source, devices in self.sources.items() if device in devices)

    def memberships(self) -> set[tuple[str, str]]:
        """Each (device, source) that the log is to name, with NO_SOURCE for a device that has none."""
        held = {(device, source) for source, devices in self.sources.items() for device in devices}
        having = {device for device, _ in held}
        return held | {(device, NO_SOURCE) for device in self.devices if device not in having}

    def is_to_come(self, source: str, revision: int) -> bool:
        """Whether a device that runs `revision` has a source only once it has gone over to a later one."""
        return revision < self.since.get(source, 0)

    def fed_by(self, device: str) -> list[str]:
        """The channels that `device` feeds: those below a source that it has, and the two of the system."""
        has = set(self.sources_of(device))
        return sorted(c for c, above in self.channels.items() if c in SYSTEM_CHANNELS or has & set(above))
