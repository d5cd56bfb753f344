"""The devices that this machine runs itself, as control sees them.

Between the reconciler and `gear up`, which starts the parent of the agents of each; what these run, they hear
over the control lane, as all devices do. Guarantees: what is written is a function of the store alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from geartrain_cloud.platform.places import PlatformPlaces, write_report


def write_local(places: PlatformPlaces, devices: Iterable[str]) -> None:
    """Have `gear up` run these devices; raises `OSError`."""
    write_report(places.agents_wanted, {"devices": {device: {} for device in devices}})
