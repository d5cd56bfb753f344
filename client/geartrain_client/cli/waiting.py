"""Waiting for a platform to do what it has accepted: asks again and again, and shows how far it is.

Guarantees: it ends: when it is done, when it cannot be done any more, or when its time is up. A platform that
does not answer for a while is waited for as well. Ctrl-C ends the waiting only, and the sentence says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from geartrain_client.errors import FailedError, RefusedError, UnreachableError
from geartrain_client.rest.answers import ENDED, FAILED, RUNNING, AppInfo, Applied, answer_as
from geartrain_client.rest.platform import NOT_FOUND, Platform, segment
from geartrain_client.terminal.screen import ProgressLine, notices

INTERVAL_S = 0.25
WAITS_SHOWN = 3


def wait_until(platform: Platform, name: str, done: Callable[[AppInfo | None], str], seconds: float) -> None:
    """Ask for the app until `done` gives an empty text; what it gives says how far it is.

    None stands for an app that is not there any more. Raises `FailedError` when the time is up.
    """
    wait_for(name, lambda: done(_info(platform, name)), f"gear info {name}", seconds)


def wait_for(what: str, ask: Callable[[], str], see: str, seconds: float) -> None:
    """Ask until the answer is empty; what it says is how far it is.

    what: is waited for, in a sentence; see: the command that shows it. Raises `FailedError` when the time is
    up.
    """
    end_s = time.monotonic() + seconds
    try:
        with ProgressLine(notices()) as line:
            while True:
                try:
                    standing = ask()
                except UnreachableError as error:
                    standing = str(error)
                if not standing:
                    return
                if time.monotonic() >= end_s:
                    raise FailedError(
                        f"{what}: not done within {seconds:g} s ({standing}); it goes on by itself: see {see}"
                    )
                line.show(f"{what}: {standing}".__str__)
                time.sleep(INTERVAL_S)
    except KeyboardInterrupt:
        notices().print(f"gear waits no longer; the platform goes on: see {see}", soft_wrap=True)
        raise


def until_runs(instance: str) -> Callable[[AppInfo | None], str]:
    """Until an instance runs here and on all its devices that are in contact; raises `FailedError` for one
    that has failed or was replaced.
    """

    def done(found: AppInfo | None) -> str:
        if found is None or found.instance != instance:
            raise FailedError(f"{instance}: it was killed before it ran")
        if found.state == FAILED:
            raise FailedError(f"{instance} failed: {found.why or 'see gear logs ' + found.name}")
        if found.state == ENDED:
            return ""
        if found.state != RUNNING:
            return _said(found)
        left = min(found.devices.online, found.devices.assigned) - found.devices.applied
        if left <= 0:
            return ""
        said = next((f": device {one.device} {one.why}" for one in found.applied if _is_held(one)), "")
        return f"{left} of {found.devices.online} devices in contact have still to start it{said}"

    return done


def until_in_force(
    instance: str, number: int, then: Callable[[AppInfo | None], str]
) -> Callable[[AppInfo | None], str]:
    """Until an instance runs this revision, in the data centre and on devices in contact, and what `then`
    waits for. Raises `FailedError` for a revision that cannot be prepared or was given up.
    """

    def done(found: AppInfo | None) -> str:
        if found is None or found.instance != instance or found.state == FAILED:
            return then(found)
        if found.change is None:
            if found.number < number:
                raise FailedError(
                    f"{instance}: revision {number} was given up: see gear revisions {found.name}"
                )
            behind = found.crossing
            if behind is not None and behind.online and found.state == RUNNING:
                return f"{behind.count} of {behind.of} devices have not gone over to revision {behind.number}"
            return then(found)
        if found.change.why and found.change.stage == "being prepared":
            raise FailedError(
                f"{instance}: revision {found.change.number} cannot be prepared, and it runs as before: "
                f"{found.change.why}; update it to another one, or give this one up with gear rollback "
                f"{found.name}"
            )
        why = f": {found.change.why}" if found.change.why else ""
        return f"revision {found.change.number} is {found.change.stage}{why}"

    return done


def until_scaled(
    instance: str, slots: int, then: Callable[[AppInfo | None], str]
) -> Callable[[AppInfo | None], str]:
    """Until the keys of an instance are dealt over so many slots, and what `then` waits for; raises
    `FailedError` where other slots were asked for meanwhile.
    """

    def done(found: AppInfo | None) -> str:
        if found is None or found.instance != instance or found.state != RUNNING or found.slots_now == slots:
            return then(found)
        if found.slots != slots:
            raise FailedError(f"{instance}: {found.slots} slots were asked for meanwhile")
        return f"its keys are dealt over {found.slots_now} slots, and go over to {slots}"

    return done


def until_ended(instance: str) -> Callable[[AppInfo | None], str]:
    """Until nothing of an instance runs any more."""

    def done(found: AppInfo | None) -> str:
        if found is None or found.instance != instance or found.state == ENDED:
            return ""
        return _said(found)

    return done


def until_purged(instance: str) -> Callable[[AppInfo | None], str]:
    """Until nothing of an instance is kept any more: one that has ended is there until it is purged."""

    def done(found: AppInfo | None) -> str:
        if found is None or found.instance != instance:
            return ""
        return "its tables are removed" if found.state == ENDED else _said(found)

    return done


def _is_held(one: Applied) -> bool:
    """Whether a device in contact says why it does not run an app as it is told."""
    return bool(one.online and one.why and not one.cut_applied)


def _said(app: AppInfo) -> str:
    return "; ".join([f"it is {app.state}", *app.waits_for[:WAITS_SHOWN]])


def _info(platform: Platform, name: str) -> AppInfo | None:
    try:
        return answer_as(AppInfo, platform.get(f"/apps/{segment(name)}"))
    except RefusedError as error:
        if error.status != NOT_FOUND:
            raise
        return None
