"""A demo's app on a platform of its own: its devices are added, it is submitted, and followed to its end.

Around the record's path; all of it goes by the platform's REST, as a person's commands do. Guarantees: each
step may be done again after a kill at any moment. It is done only when the app has ended and its accounts are
even. A platform whose processes die again and again is given up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from geartrain.adapters.files import write_private
from geartrain.adapters.toml_text import to_toml
from geartrain_client.cli.submitting import SubmitWishes, body_of
from geartrain_client.errors import FailedError, RefusedError, UnreachableError
from geartrain_client.rest.answers import ENDED, FAILED, RUNNING, AppInfo, answer_as
from geartrain_client.rest.door import find_door
from geartrain_client.rest.platform import NOT_FOUND, SUBMIT_TIMEOUT_S, Platform, segment
from geartrain_cloud.cli.demo_move import StepMove, throttled
from geartrain_cloud.cli.demos import DemoApp
from geartrain_cloud.cli.hops import Accounts, Hops, read_accounts, read_hops
from geartrain_cloud.errors import SupervisorError
from geartrain_cloud.platform.config import CONFIG_FILE
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.supervisor.child import Child, ChildState, last_lines, unwritable

ASK_EVERY_S = 0.4
DEATHS_MAX, DEATHS_WINDOW_S = 5, 300.0
"""A process that dies more often within the time is not waited for: Spark takes ten seconds to start."""
SETTLE_S = 20.0
"""How long the last reports of agents may take once the app has ended."""

Show = Callable[[Hops], None]


def write_platform(
    places: PlatformPlaces,
    app: DemoApp,
    paced: Mapping[str, Mapping[str, str]],
    broker: str,
    certs: Path | None,
    master: str,
    throttle: int = 0,
) -> None:
    """Write the configuration of the demo's platform; raises `SupervisorError`.

    paced: how each source is slowed down, its options; throttle: of each device's link, bytes a second, 0 for
    none.
    """
    content = {
        "broker": broker,
        **({} if certs is None else {"broker_certs": str(certs.absolute())}),
        "spark": {"master": master},
        "local": {
            **(throttled(throttle) if throttle else {}),
            "apps": {app.name: {"sources": paced}},
        },
    }
    path = places.folder / CONFIG_FILE
    try:
        write_private(path, to_toml(content))
    except OSError as error:
        raise unwritable(path, error) from None


class DemoRun:
    """The work of `bring_up`; `accounts` are those of the end."""

    def __init__(
        self, app: DemoApp, places: PlatformPlaces, show: Show, move: StepMove | None = None
    ) -> None:
        """`show` gets how far it is, a few times a second; `move`: of a step, while it runs."""
        self.accounts: list[Accounts] = []
        self._app, self._places, self._show, self._move = app, places, show, move
        self._is_submitted, self._ask_s, self._settled_by_s = False, 0.0, 0.0

    def __call__(self, url: str, children: Mapping[str, Child]) -> bool:
        """A turn; raises `SupervisorError`, `FailedError` for an app that failed; what planning raises."""
        check_processes(children)
        if time.monotonic() < self._ask_s:
            return False
        self._ask_s = time.monotonic() + ASK_EVERY_S
        hops = read_hops(self._places, self._app.instance, self._app.devices)
        self._show(hops)
        try:
            if not url or not (self._is_submitted or self._move is None or self._move.may_begin(children)):
                return False
            return self._is_done(hops, Platform(find_door(None, self._places.folder, {}), attempts=1))
        except UnreachableError:  # control was killed, or begins just now
            return False

    def _is_done(self, hops: Hops, platform: Platform) -> bool:
        app = self._app
        if not self._is_submitted:
            self._submit(platform)
            self._is_submitted = True
        found = answer_as(AppInfo, platform.get(f"/apps/{segment(app.name)}"))
        if found.instance != app.instance:
            raise FailedError(
                f"{self._places.folder} holds {found.instance} and not {app.instance}, which the demo "
                "submitted: name a new state folder"
            )
        if found.state == FAILED:
            raise FailedError(f"{app.instance} failed: {found.why}")
        if self._move is not None:
            self._move.turn(platform, hops, time.monotonic(), runs=found.state == RUNNING)
        return found.state == ENDED and self._is_settled()

    def _submit(self, platform: Platform) -> None:
        """Add the devices and submit the app, where a former run has not."""
        app = self._app
        try:
            platform.get(f"/apps/{segment(app.name)}")
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
        else:
            return
        there = {device["name"] for device in platform.items("/devices")}
        for device in app.devices:
            if device not in there:
                platform.change("POST", "/devices", {"name": device, "local": True})
        cuts = [] if self._move is None else [self._move.planned]
        wishes = SubmitWishes(app.name, cut=app.cut, settings=app.steps, own=app.devices, device_cuts=cuts)
        platform.change("POST", "/apps", body_of(app.flow, wishes), SUBMIT_TIMEOUT_S)

    def _is_settled(self) -> bool:
        """Whether the accounts are even; raises `SupervisorError` where they stay uneven."""
        self.accounts = read_accounts(self._places, self._app.instance, self._app.devices)
        self._settled_by_s = self._settled_by_s or time.monotonic() + SETTLE_S
        is_settled = are_even(self.accounts, self._places, self._settled_by_s)
        if is_settled:
            hops = read_hops(self._places, self._app.instance, self._app.devices)
            self._show(replace(hops, logged=self.accounts[-1].before))  # ingest has let go of the app
        return is_settled


def are_even(accounts: Sequence[Accounts], places: PlatformPlaces, settled_by_s: float) -> bool:
    """Whether nothing was lost and nothing doubled.

    settled_by_s: of the monotonic clock, from when on `SupervisorError` is raised where something was.
    """
    uneven = [one for one in accounts if not one.is_even]
    if uneven and time.monotonic() >= settled_by_s:
        first = uneven[0]
        raise SupervisorError(
            f"{first.place}: {first.before:,} rows went in and {first.after:,} came out, so the results "
            f"are not to be trusted: keep {places.folder} and its logs to find out why"
        )
    return not uneven


def check_processes(children: Mapping[str, Child]) -> None:
    """Raise `SupervisorError` for a process that refuses to run, or dies again and again."""
    now_s = time.monotonic()
    for name, child in children.items():
        recent = sum(now_s - death_s <= DEATHS_WINDOW_S for death_s in child.deaths)
        if child.state is ChildState.FAILED or recent > DEATHS_MAX:
            how = "does not run" if child.state is ChildState.FAILED else f"ended {recent} times"
            log = child.spec.log
            raise SupervisorError(f"{name} {how}; its log {log} ends with:\n{last_lines(log)}")
