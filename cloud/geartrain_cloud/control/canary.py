"""Which devices run an update before the others do, and which updates may be tried so.

Between REST and the control store. Guarantees: the data centre's part stays as it is while a canary runs, so
the update differs on devices alone. What steps keep there stays both on the way to it and on the way back.
Anything else is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from geartrain.fleet.selectors import is_cloud_device, parse_selector
from geartrain.revision import Change, Revision, change_of, differences, in_short
from geartrain_cloud.control.checking import ran_by
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import Instance, Outline
from geartrain_cloud.control_store.store import ControlStore


def canaries_of(store: ControlStore, instance: Instance, selector: str) -> tuple[str, ...]:
    """The devices of an app that a selector means, some but not all; raises `ConflictError`."""
    meant = parse_selector(selector)
    assigned = store.desired.assigned(instance.instance)
    wanted = [store.devices.get(name) for name, state in assigned.items() if state == "wanted"]
    there = [one for one in wanted if not is_cloud_device(one.device, one.labels)]
    found = tuple(one.device for one in there if meant.matches(one.device, one.labels))
    if not found:
        raise ConflictError(
            f"no device of app {instance.name} matches {selector}: see gear info {instance.name} and gear "
            "device ls"
        )
    if len(found) == len(there):
        raise ConflictError(
            f"all devices of app {instance.name} match {selector}, so none would be left to follow: name "
            "fewer, or leave --canary out"
        )
    return found


def unfit(
    outlines: tuple[Outline, Outline], revisions: tuple[Revision, Revision], change: Change
) -> list[str]:
    """Why an update cannot be tried on some devices first, a sentence each. outlines and revisions: what the
    app runs, and what it would.
    """
    was, now = revisions
    found = list[str]()
    of_cloud = differences(replace(was.on("cloud"), code=now.code), now.on("cloud"))
    if of_cloud:
        found.append(
            f"--canary: the data centre's part would change for all devices ({in_short(of_cloud)}): leave "
            "--canary out, or make that another update"
        )
    if change.letters:
        found.append(
            f"--canary: what all other devices send meanwhile would be dead letters "
            f"({in_short(sorted(change.letters))}): leave --canary out"
        )
    if outlines[1].begin:
        found.append("--canary: new steps cannot read the log of before on some devices: leave --from out")
    if others := sorted({one.id for one in was.sources} ^ {one.id for one in now.sources}):
        found.append(
            f"--canary: a source that has gone does not come again ({in_short(others)}), so there would be "
            "no way back or on: leave --canary out"
        )
    if change.drops:
        found.append(
            f"--canary: what steps keep would be lost on the way back ({in_short(change.drops)}): leave "
            "--canary out"
        )
    back = change_of(now, was, on_devices=_on_devices(outlines, revisions))
    if back.refusals and not of_cloud:
        found.append(f"--canary: there would be no way back: {in_short(back.refusals)}")
    return found


def _on_devices(
    outlines: tuple[Outline, Outline], revisions: tuple[Revision, Revision]
) -> Collection[str] | None:
    """The steps that some device runs, None where all run the same."""
    if not any(outline.cuts for outline in outlines):
        return None
    cuts = {cut for outline in outlines for cut in (outline.base, *outline.cuts)}
    return frozenset[str]().union(*(ran_by(one, cut) for one in revisions for cut in cuts))
