"""Faults planted where code is chosen: not kept, taken back after a commit, or let go too soon."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from geartrain_edge.bundles import choice as choosing
from geartrain_edge.parent import bundled
from geartrain_edge.parent.bundled import BundledApps
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.bundle_fleet import BundleFleet


def _run(seed: int) -> object:
    return BundleFleet(seed).run()


def _choice_not_kept(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def keep(apps: BundledApps, instance: str, choice: Any) -> None:
            apps._choices[instance] = choice

        return keep

    patches.replace(BundledApps, "_keep", make)


def _commit_not_heard(patches: Patches) -> None:
    def make(right: Any) -> Any:
        return lambda choice, mark: choice if choice.proved is not None else right(choice, mark)

    patches.replace(choosing, "marked", make)


def _never_given_up(patches: Patches) -> None:
    patches.replace(bundled, "failed", lambda right: lambda choice, *rest, **more: choice)


def _tried_again(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def choose(choice: Any, wanted: Any, *rest: Any) -> Any:
            return right(replace(choice, refused=""), wanted, *rest)

        return choose

    patches.replace(bundled, "choose", make)


def _started_before_it_is_here(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def starting(apps: BundledApps, app: Any) -> None:
            apps._bundles.has = lambda code: True  # type: ignore[method-assign]
            await right(apps, app)

        return starting

    patches.replace(BundledApps, "starting", make)


def _former_let_go(patches: Patches) -> None:
    def make(right: Any) -> Any:
        return lambda apps: frozenset(app.code for app in apps._state.apps) if apps._state else frozenset()

    patches.replace(BundledApps, "_needed", make)


def _ended_for_what_is_not_here(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def choose(choice: Any, wanted: Any, is_here: Any, mark: str) -> Any:
            chosen = right(choice, wanted, is_here, mark)
            return chosen if is_here(wanted.code) else replace(chosen, run=None)

        return choose

    patches.replace(bundled, "choose", make)


def _not_rehearsed(patches: Patches) -> None:
    """Whatever its rehearsal shows, code takes the place of what runs."""

    def make(right: Any) -> Any:
        async def may_follow(apps: BundledApps, app: Any, process: Any) -> bool:
            await apps._rehearse(app, process)
            return apps._is_chosen(app)

        return may_follow

    patches.replace(BundledApps, "may_follow", make)


def _fetched_once(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def fetch(apps: BundledApps, code: str) -> None:
            await right(apps, code)
            if code in apps._fetches:
                apps._fetches[code].due_s = float("inf")

        return fetch

    patches.replace(BundledApps, "_fetch", make)


OF_BUNDLES = [
    Mutant("choice of code not kept", _choice_not_kept, _run),
    Mutant("commit of new code not heard", _commit_not_heard, _run),
    Mutant("code that fails never given up", _never_given_up, _run),
    Mutant("code that went back tried again", _tried_again, _run),
    Mutant("code started before it is there", _started_before_it_is_here, _run),
    Mutant("former code let go while it is needed", _former_let_go, _run),
    Mutant("app ended for code that is not there", _ended_for_what_is_not_here, _run),
    Mutant("code started whose rehearsal has failed", _not_rehearsed, _run),
    Mutant("bundle asked for once", _fetched_once, _run),
]
