"""What tests write into the roster of a log, as control does: flows that ingest follows, and their devices.

Guarantees: what is written is a document that control could have written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain.planning import Plan
from geartrain_cloud.ingest.flow import SYSTEM_CHANNELS
from geartrain_cloud.log.roster import RosterChannel, RosterDocument, RosterWriter


def document(
    sources: Mapping[str, Sequence[str]],
    channels: Mapping[str, Sequence[str]] | None = None,
    devices: Sequence[str] = (),
    **changes: Any,
) -> RosterDocument:
    """A flow. sources: the devices that have each source; channels: the sources above each channel, None
    where each source is one; devices: those that have no source.
    """
    having = {device for several in sources.values() for device in several}
    return RosterDocument(
        {
            name: RosterChannel(tuple(above))
            for name, above in (channels or {s: (s,) for s in sources}).items()
        },
        tuple(sources),
        {
            device: tuple(source for source, several in sources.items() if device in several)
            for device in sorted({*having, *devices})
        },
        **changes,
    )


def document_of(plan: Plan, devices: Sequence[str], **changes: Any) -> RosterDocument:
    """The flow of a plan, all of whose sources each of these devices has."""
    sources = {step.id: devices for step in plan.graph.sources()}
    channels = {
        channel.id: sorted(channel.sources) for channel in plan.channels if channel.id not in SYSTEM_CHANNELS
    }
    return document(sources, channels, **changes)


def put_flow(log: Path, flow: str, told: RosterDocument) -> None:
    """Have ingest follow a flow so, whether it runs or begins; `log`: the folder of its log."""
    RosterWriter(log).put(flow, told)
