"""Which devices of an app have gone over to its newest revision with other steps for them.

Between what devices report and those that change or show an app. Guarantees: a device that has ended, or was
retired, counts as one that has gone over.
"""

from __future__ import annotations

from collections.abc import Collection

from geartrain.control.codec import decode_reported
from geartrain.control.states import AppReport, AppState
from geartrain_cloud.control_store.model import Instance
from geartrain_cloud.control_store.store import ControlStore

_RUNS = (AppState.RUNNING, AppState.DRAINING)


def laggards(store: ControlStore, instance: Instance) -> list[str]:
    """The devices that have not gone over to the newest revision that was in force and changed what they run;
    none where there was no such. Those of a canary are not counted while that is not over.
    """
    told, canary = store.revisions.in_force(instance), store.revisions.canary_of(instance)
    ran = [(one.number, one.outline) for one in store.revisions.in_force_before(told)]
    ran.append((told.revision, told.outline))
    first = next((number for number, outline in reversed(ran) if outline.crosses), 0)
    if not first:
        return []
    known = {outline.revision for number, outline in ran if number >= first}
    assigned = store.desired.assigned(instance.instance)
    apart = canary.devices if canary is not None and canary.began_us else ()
    return [
        device
        for device, state in assigned.items()
        if state == "wanted" and device not in apart and not has_crossed(store, device, instance, known)
    ]


def has_crossed(store: ControlStore, device: str, instance: Instance, known: Collection[str]) -> bool:
    """Whether a device says that it runs one of the revisions `known`, by their hashes, or has ended."""
    report = report_of(store, device, instance.instance)
    if report is None:
        return False
    return report.state is AppState.ENDED or (report.state in _RUNS and report.revision in known)


def report_of(store: ControlStore, device: str, instance: str) -> AppReport | None:
    """What a device has said last of an instance, None where it has said nothing."""
    said = store.reports.last(device)
    apps = decode_reported(said).apps if said else ()
    return next((app for app in apps if app.instance == instance), None)
