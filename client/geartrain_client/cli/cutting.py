"""`gear cut` and `gear move`: devices of an app go on with another cut.

Guarantees: what would move is shown before it moves, and a change that is only asked about changes nothing.
What waits for a device that is out of contact says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from geartrain.control.app_reasons import AppCode, has_code
from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain_client.cli.kept import kept_words
from geartrain_client.cli.waiting import until_in_force, until_runs, wait_until
from geartrain_client.errors import FailedError, RefusedError
from geartrain_client.rest.answers import AppInfo, answer_as
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform, segment
from geartrain_client.terminal.screen import notices, print_json, results, table_of

_TIERS = {"edge": "the devices", "cloud": "the data centre"}
_DEVICES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class CutWishes:
    """What the user asked for. devices: a selector; dry_run: only to be told what would move; seconds: how
    long to wait until it is done, None for not at all; capacity: the share of one core that the app may
    take of a device, None for what the platform takes.
    """

    devices: str = "all"
    dry_run: bool = False
    seconds: float | None = None
    as_json: bool = False
    capacity: float | None = None


class _Move(msgspec.Struct, frozen=True):
    step: str
    to: str
    keeps: bool = False
    devices: int = 0
    cells: int | None = None
    bytes: int | None = None
    at_most: bool = False
    unsaid: int = 0


class _Device(msgspec.Struct, frozen=True):
    device: str
    before: str = ""
    cut: str = ""
    why: str = ""


class _Recut(msgspec.Struct, frozen=True):
    name: str
    instance: str
    number: int = 1
    revises: bool = False
    count: int = 0
    devices: list[_Device] = []
    moves: list[_Move] = []
    micro_batches: int = 0
    behind_entries: int = 0
    pause_ms: int = 0
    refusals: list[str] = []


def cut_app(platform: Platform, name: str, spec: str, wishes: CutWishes) -> None:
    """Have devices of the app go on with the cut `spec`; raises `GeartrainError`."""
    has_capacity = wishes.capacity is not None
    if has_capacity and spec not in ("auto", "adaptive"):
        raise ConfigError(
            f"--capacity is for auto and adaptive, which fit each device: leave it out for {spec}"
        )
    body = {"cut": spec} | ({"capacity": wishes.capacity} if has_capacity else {})
    _change(platform, name, "cut", body, wishes)


def move_step(platform: Platform, name: str, step: str, to: str, wishes: CutWishes) -> None:
    """Move a step of devices of the app to the tier `to`; raises `GeartrainError`."""
    _change(platform, name, "move", {"step": step, "to": to}, wishes)


def _change(platform: Platform, name: str, verb: str, body: dict[str, Any], wishes: CutWishes) -> None:
    asked = body | {"devices": wishes.devices} | ({"dry_run": True} if wishes.dry_run else {})
    answer = platform.change("POST", f"/apps/{segment(name)}/{verb}", asked, SUBMIT_TIMEOUT_S)
    made = answer_as(_Recut, answer)
    if not wishes.as_json and not made.refusals:
        _show(made)
    if wishes.dry_run:
        if wishes.as_json:
            print_json(answer)
        if made.refusals:
            raise RefusedError(f"{made.instance} would keep its cuts: {'; '.join(made.refusals)}")
        if not wishes.as_json:
            by = f", with revision {made.number} of the data centre's part" if made.revises else ""
            results().print(
                printable(f"nothing was changed; {_devices(made)} would get another cut{by}"), soft_wrap=True
            )
        return
    if wishes.seconds is not None:
        done = until_in_force(made.instance, made.number, until_cut(until_runs(made.instance)))
        wait_until(platform, name, done, wishes.seconds)
    if wishes.as_json:
        print_json(answer)
        return
    if wishes.seconds is None:
        words = f"{made.instance}: {_devices(made)} will get another cut"
    else:
        info = answer_as(AppInfo, platform.get(f"/apps/{segment(name)}"))
        words = f"{made.instance}: {_applied(info)}"
    results().print(printable(f"{words}: see gear info {made.name}"), soft_wrap=True)


def until_cut(then: Callable[[AppInfo | None], str]) -> Callable[[AppInfo | None], str]:
    """Until devices are told the cuts for which they wait, and what `then` waits for. Raises `FailedError`
    for a device that does not take the state of what comes to it, unless it has said so from the first.
    """
    known: set[str] | None = None

    def done(found: AppInfo | None) -> str:
        nonlocal known
        applied = [] if found is None else found.applied
        stay = {one.device: one.why for one in applied if has_code(one.reasons, AppCode.STATE_STAYS)}
        known = set(stay) if known is None else known & stay.keys()
        for device in sorted(stay.keys() - known):
            raise FailedError(f"device {device} {stay[device]}")
        if found is not None and found.cut_change is not None:
            return f"{found.cut_change.count:,} devices wait for revision {found.cut_change.number}"
        return then(found)

    return done


def _applied(info: AppInfo) -> str:
    wanted, applied = (sum(getattr(one, what) for one in info.cuts) for what in ("devices", "applied"))
    away = wanted - applied
    said = f"applied by {applied:,} of {wanted:,} devices"
    return f"{said}; {away:,} out of contact: these get it when they come" if away else said


def _devices(made: _Recut) -> str:
    return f"{made.count:,} device{'' if made.count == 1 else 's'}"


def _kept(one: _Move) -> str:
    """How much state goes with a step."""
    kept = kept_words(one.cells, one.bytes)
    if one.cells is not None and one.at_most:
        kept = f"at most {kept}, which are those of all devices"
    if one.unsaid:
        kept += f" ({one.unsaid:,} of {one.devices:,} devices have not said)" if one.cells is not None else ""
    return kept


def _pause(made: _Recut) -> str:
    """How long steps that keep something will pause."""
    many = f"{made.micro_batches} micro-batch{'' if made.micro_batches == 1 else 'es'}"
    one = made.behind_entries == 1
    entries = f" behind {made.behind_entries:,} entr{'y' if one else 'ies'} of the log"
    behind = entries if made.behind_entries else ""
    now = f", about {made.pause_ms / 1_000:.1f} s as they take now" if made.pause_ms else ""
    return f"steps with state pause for {many}{behind}{now}, and for as long as their state is on the link"


def _show(made: _Recut) -> None:
    """Print which steps move, and which devices get which cut."""
    for one in made.moves:
        along = f", with what it keeps: {_kept(one)}" if one.keeps else ""
        words = f"step {one.step} moves to {_TIERS.get(one.to, one.to)}{along}"
        notices().print(printable(words), soft_wrap=True)
    if made.micro_batches:
        notices().print(printable(_pause(made)), soft_wrap=True)
    if made.devices:
        shown = made.devices[:_DEVICES_SHOWN]
        heads = ["device", "cut", "was", *(["why"] if any(one.why for one in shown) else [])]
        lines = [[one.device, one.cut, one.before, one.why][: len(heads)] for one in shown]
        results().print(table_of("", heads, lines))
        count = max(made.count, len(made.devices))
        if count > len(shown):
            notices().print(f"and {count - len(shown):,} devices more", soft_wrap=True)
