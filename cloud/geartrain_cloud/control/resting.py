"""Whether an app stands still enough to go over to other steps or cuts.

Between those that change an app and what its Spark host says of it. Guarantee: an app goes over to one thing
at a time.
"""

from __future__ import annotations

from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control_store.model import Instance, State


def at_end(instance: Instance) -> list[str]:
    """Why an app goes on with no other code, a sentence; none where it may."""
    return [] if instance.is_to_run else [f"it is {instance.state}: only an app that is to run is updated"]


def under_way(instance: Instance, host: HostReport, *, passes: bool = False) -> list[str]:
    """What an app must come to before it goes over, a sentence.

    host: what the Spark host says of it; passes: whether it goes over in place of its newest revision, which
    never came into force.
    """
    number, state = instance.revision, instance.state
    if state is not State.RUNNING:
        stands = f"has {state}" if state in (State.FAILED, State.ENDED) else f"is {state}"
        resume = ": gear resume it first" if state is State.FAILED else ""
        return [f"it {stands}, and only an app that runs goes over{resume}"]
    if host.revision < number and not passes:
        return [f"revision {number} is not in force yet: wait until it is, see gear info"]
    if instance.run > max(host.run, 1):
        return [f"its run {instance.run} is not served yet: wait until it is, see gear info"]
    if slots := host.slots_wanted:
        return [f"its keys are being dealt over {slots} slots: wait until that is done, see gear info"]
    return []
