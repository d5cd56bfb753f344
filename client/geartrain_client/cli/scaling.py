"""`gear scale`: the keys of an app are dealt over more slots, or fewer, while it runs.

Guarantees: the pause is told before the change, and a change that is only asked about changes nothing.
"""

from __future__ import annotations

import msgspec

from geartrain.printable import printable
from geartrain_client.cli.waiting import until_runs, until_scaled, wait_until
from geartrain_client.errors import RefusedError
from geartrain_client.rest.answers import answer_as
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import notices, print_json, results


class _Scaled(msgspec.Struct, frozen=True):
    name: str
    instance: str
    slots: int
    former: int = 0
    micro_batches: int = 0
    pause_ms: int = 0
    state_bytes: int | None = None
    refusals: list[str] = []


def scale_app(
    platform: Platform, name: str, slots: int, *, dry_run: bool, seconds: float | None, as_json: bool
) -> None:
    """Have an app's keys be dealt over `slots` slots; raises `GeartrainError`.

    seconds: how long to wait until it is done, None for not at all.
    """
    body = {"slots": slots} | ({"dry_run": True} if dry_run else {})
    answer = platform.change("POST", f"/apps/{segment(name)}/scale", body)
    made = answer_as(_Scaled, answer)
    if not as_json and not made.refusals:
        notices().print(printable(_pause(made)), soft_wrap=True)
    if dry_run:
        if as_json:
            print_json(answer)
        if made.refusals:
            raise RefusedError(f"{made.instance} would keep its slots: {'; '.join(made.refusals)}")
        if not as_json:
            results().print(
                printable(
                    f"nothing was changed; {made.instance} would go from {made.former} slots to {slots}"
                ),
                soft_wrap=True,
            )
        return
    if seconds is not None:
        wait_until(platform, name, until_scaled(made.instance, slots, until_runs(made.instance)), seconds)
    if as_json:
        print_json(answer)
        return
    done = "has" if seconds is not None else "will have"
    results().print(printable(f"{made.instance} {done} {slots} slots: see gear info {name}"), soft_wrap=True)


def _pause(made: _Scaled) -> str:
    """How long the app will pause."""
    now = f", about {made.pause_ms / 1_000:.1f} s as they take now" if made.pause_ms else ""
    kept = made.state_bytes
    more = "with much state" if kept is None else f"for {kept / 1_000_000:,.1f} MB of state to move"
    return (
        f"{made.instance} pauses for {made.micro_batches} micro-batches{now}, and longer {more}; "
        "no other app waits for more than these"
    )
