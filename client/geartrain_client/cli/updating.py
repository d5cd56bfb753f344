"""`gear update`, `attach`, `replace`, `remove`, `rollback` and `revisions`: an app goes on with other code or
steps.

Guarantees: what cannot be loaded is refused before anything is sent. The code is signed where there are keys,
before the platform is asked to run it. What is lost by a change is shown; a change that is only asked about
changes nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.printable import printable
from geartrain.records.event_time import format_time, parse_time
from geartrain.revision import code_of
from geartrain.revision.change import Change, StepChange
from geartrain_client.cli.kept import kept_words
from geartrain_client.cli.submitting import sign_where_keys
from geartrain_client.cli.waiting import until_in_force, until_runs, wait_until
from geartrain_client.errors import RefusedError
from geartrain_client.flow_folder import flow_of
from geartrain_client.rest.answers import AppInfo, answer_as
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform, items_of, segment
from geartrain_client.terminal.screen import print_json, reports, results, table_of
from geartrain_client.terminal.settings import parse_seconds

DEVICES_SHOWN = 3
_STATES = {"": "", "kept": "kept", "dropped": "dropped", "refused": "cannot be kept"}


@dataclass(frozen=True, slots=True)
class ChangeWishes:
    """What the user asked for. drop: the steps that are to keep nothing; only: what may become of steps, all
    where it names nothing; steps: which alone may change, all where it names none; drain: steps that lose
    their state put out first what they hold; cut: the app's, with new steps on the devices, "" for none;
    begin: where new steps begin to read the log: `now`, `earliest` or a time;
    canary: a selector of the devices that run it first, "" for none; looks: how long these are looked at, ""
    for as long as the platform does; dry_run: only to be told what would change; seconds: how long to wait
    until it is done, None for not at all; dead_letter_old: records of a former type that cannot be upgraded
    become dead letters.
    """

    drop: tuple[str, ...] = ()
    dry_run: bool = False
    seconds: float | None = None
    as_json: bool = False
    only: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    drain: bool = False
    cut: str = ""
    begin: str = "now"
    canary: str = ""
    looks: str = ""
    dead_letter_old: bool = False


class _State(msgspec.Struct, frozen=True):
    step: str
    tier: str = ""
    cells: int | None = None
    bytes: int | None = None
    unsaid: int = 0


class _Updated(msgspec.Struct, frozen=True):
    name: str
    instance: str
    code: str = ""
    former: str = ""
    devices: list[str] = []
    number: int = 1
    change: Change = Change()
    state: list[_State] = []
    refusals: list[str] = []
    given_up: int = 0
    canary: list[str] = []


class _Revision(msgspec.Struct, frozen=True):
    number: int
    made_us: int = 0
    flow: str = ""
    code: str = ""
    code_before: str = ""
    state: str = ""
    drops: list[str] = []
    behind: list[str] = []
    behind_count: int = 0


def update_app(platform: Platform, name: str, flow: str, key: str | None, wishes: ChangeWishes) -> None:
    """Have the app go on with the flow as it is here; raises `GeartrainError`."""
    begin = wishes.begin
    if not flow:
        raise ConfigError(f"gear update {name}: name the flow or its project, or write --promote")
    if wishes.looks and not wishes.canary:
        raise ConfigError("--for is how long a canary is looked at: write --canary SELECTOR, too")
    looks = {"for_s": parse_seconds("--for", wishes.looks)} if wishes.looks else {}
    if begin not in ("now", "earliest"):
        try:
            parse_time(begin)
        except ValueError as error:
            raise ConfigError(f"--from {begin}: write now, earliest or a time: {error}") from None
    spec = flow_of(flow)
    load_flow(spec).graph()
    platform.get(f"/apps/{segment(name)}")  # nothing is signed for an app that is not there
    sign_where_keys(platform, spec, name, key)
    _change(platform, name, "update", {"flow": spec, "code": code_of(spec).hash, **looks}, wishes)


def promote_app(platform: Platform, name: str, flow: str, wishes: ChangeWishes) -> None:
    """Have all devices of the app follow its canary, which has the flow: that is "" here. Raises
    `GeartrainError`.
    """
    if flow or wishes != ChangeWishes(dry_run=wishes.dry_run, seconds=wishes.seconds, as_json=wishes.as_json):
        raise ConfigError(
            f"gear update {name} --promote: the app's canary says what is to run, so leave the flow and all "
            "other options out"
        )
    _change(platform, name, "promote", {}, wishes)


def remove_steps(platform: Platform, name: str, steps: tuple[str, ...], wishes: ChangeWishes) -> None:
    """Have the app go on without steps, and with no other code; raises `GeartrainError`."""
    runs = answer_as(AppInfo, platform.get(f"/apps/{segment(name)}"))
    body = {"flow": runs.flow, "code": runs.code, "without": list(steps)}
    _change(platform, name, "update", body, wishes)


def rollback_app(platform: Platform, name: str, wishes: ChangeWishes) -> None:
    """Have the app go on with what it ran before its last update; raises `GeartrainError`."""
    _change(platform, name, "rollback", {}, wishes)


def show_revisions(platform: Platform, name: str, *, as_json: bool) -> None:
    """Print the revisions of an app, the newest first; raises `GeartrainError`."""
    found = items_of(platform.get(f"/apps/{segment(name)}/revisions"))
    if as_json:
        print_json(found)
        return
    heads = ["revision", "state", "since", "flow", "code", "in place of", "state dropped", "not on"]
    lines = [
        [
            *(str(one.number), one.state, format_time(one.made_us), one.flow, one.code[:12]),
            *(one.code_before[:12], ", ".join(one.drops), _behind(one)),
        ]
        for one in (answer_as(_Revision, item) for item in found)
    ]
    results().print(table_of("", heads, lines, numbers=(0,)))


def _behind(one: _Revision) -> str:
    """The devices that have not gone over, the first of them by name."""
    return _named(one.behind, one.behind_count)


def _named(devices: list[str], count: int | None = None) -> str:
    """The first of so many devices by name."""
    more = (len(devices) if count is None else count) - DEVICES_SHOWN
    return ", ".join(devices[:DEVICES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _said(wishes: ChangeWishes) -> dict[str, Any]:
    """What the wishes add to a request: those that were written."""
    asked = {
        "drop_state": list(wishes.drop),
        "only": list(wishes.only),
        "drain": wishes.drain,
        "dead_letter_old": wishes.dead_letter_old,
        "cut": wishes.cut,
        "canary": wishes.canary,
        "from": "" if wishes.begin == "now" else wishes.begin,
        "steps": list(wishes.steps),
    }
    return {name: value for name, value in asked.items() if value}


def _change(platform: Platform, name: str, verb: str, body: dict[str, Any], wishes: ChangeWishes) -> None:
    asked = body | _said(wishes) | ({"dry_run": True} if wishes.dry_run else {})
    answer = platform.change("POST", f"/apps/{segment(name)}/{verb}", asked, SUBMIT_TIMEOUT_S)
    made = answer_as(_Updated, answer)
    if not wishes.as_json:
        _show(made, drain=wishes.drain)
    if wishes.dry_run:
        _tell(made, answer, wishes)
        return
    if wishes.seconds is not None:
        done = until_runs(made.instance)
        wait_until(platform, name, until_in_force(made.instance, made.number, done), wishes.seconds)
    if wishes.as_json:
        print_json(answer)
        return
    results().print(
        printable(_done(made, waited=wishes.seconds is not None, ends=verb != "update")), soft_wrap=True
    )


def _show(made: _Updated, *, drain: bool) -> None:
    """Print what becomes of steps, tables and files, where something does."""
    change, report = made.change, reports()
    if any(one.what != "same" or one.state == "dropped" for one in change.steps):
        lines = [_line(one, made.state, drain=drain) for one in change.steps]
        report.print(table_of("", ["step", "change", "state", "how much", "what differs"], lines))
    for table in change.tables:
        report.print(printable("; ".join([f"table {table.table}: {_TABLES[table.what]}", *table.says])))
    for channel, says in change.upgrades.items():
        until = f"rows that {_named(made.devices)} send until they have gone over are upgraded"
        report.print(printable(f"channel {channel}: {says}; {until}"))
    for channel, says in change.letters.items():
        until = f"records that {_named(made.devices)} send until they have gone over become dead letters"
        report.print(printable(f"channel {channel}: {says}; {until}"))
    if change.code:
        reports(sys.stderr).print(printable(f"code: {'; '.join(change.code)}"))


_TABLES = {
    "new": "is made with the first row",
    "stays": "stays as it is, and gets no more rows",
    "changes": "its columns change",
}


_TIERS = {"edge": "on devices", "cloud": "in the data centre"}


def _line(one: StepChange, kept: list[_State], *, drain: bool) -> list[str]:
    state = "put out, then dropped" if drain and one.state == "dropped" else _STATES[one.state]
    sizes = "; ".join(_size(here) for here in kept if here.step == one.step)
    return [one.step, one.what, state, sizes, "; ".join(one.says)]


def _size(here: _State) -> str:
    more = f" ({here.unsaid:,} have not said)" if here.unsaid and here.cells is not None else ""
    return f"{_TIERS.get(here.tier, here.tier)}: {kept_words(here.cells, here.bytes)}{more}"


def _tell(made: _Updated, answer: Any, wishes: ChangeWishes) -> None:
    """Say what an update that was only asked about would do; raises `RefusedError` where it is refused."""
    if wishes.as_json:
        print_json(answer)
    if made.refusals:
        raise RefusedError(f"{made.instance} would not go over: {'; '.join(made.refusals)}")
    if not wishes.as_json:
        reports().print(printable(f"nothing was changed; {_would(made)}"))


def _would(made: _Updated) -> str:
    if made.given_up:
        return f"revision {made.given_up} of {made.instance} would be given up"
    return f"{made.instance} would run code {made.code[:12]} as revision {made.number}"


def _done(made: _Updated, *, waited: bool, ends: bool) -> str:
    if made.given_up:
        return f"{made.instance} stays at revision {made.number}; revision {made.given_up} is given up"
    words = "runs" if waited else "will run"
    if made.canary and not ends:
        there = f"{len(made.canary):,} of {len(made.devices):,} devices"
        return (
            f"{made.instance} {words} code {made.code[:12]} on {there} as revision {made.number}, and the "
            f"others follow if these do well: see gear info {made.name}"
        )
    noun = "device" if len(made.devices) == 1 else "devices"
    number = f" as revision {made.number}" if made.number > 1 else ""
    return (
        f"{made.instance} {words} code {made.code[:12]} in place of {made.former[:12]}{number}, for "
        f"{len(made.devices):,} {noun}: see gear info {made.name}"
    )
