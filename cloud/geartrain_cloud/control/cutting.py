"""The cuts of single devices: what is asked for, what moves by it, and what keeps it from being done.

Between REST, the short process that checks a cut, and the control store. Guarantees: a cut is for all devices
that a change means, or for none. No device is told of one before the data centre's part runs that takes what
the device then sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace

from geartrain.control.codec import decode_reported
from geartrain.control.states import (
    ADAPTIVE,
    Measured,
    reported_cut,
)
from geartrain.fleet.selectors import parse_selector
from geartrain.revision import in_short
from geartrain_cloud.changes.cut_checking import AUTO, CLOUD, EDGE, CutFound, CutWish, StepMove
from geartrain_cloud.changes.fitting import Ladder, fit
from geartrain_cloud.control.checking import Answer as Checked
from geartrain_cloud.control.checking import Question
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.moving_state import StateSizes
from geartrain_cloud.control.resting import under_way
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.apps import check_is_to_run, in_the_way
from geartrain_cloud.control_store.errors import ConflictError, UnavailableError, UnchangedError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import CutChange, CutRule, Device, Instance, Outline, Planned
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import CutBody, MoveBody, body_of, key_of
from geartrain_cloud.rest.routes import route

NAMED_MAX = 100
"""Devices that an answer names; it counts all."""
RULES_MAX = 100
"""Of an app."""
MICRO_BATCHES = {EDGE: 2, CLOUD: 1}
"""By where state goes, for about so many a step with state pauses: what a device claims is given by the one
that comes after the one under way; what devices leave is taken in by the next.
"""
_FOLLOWS = "its cut follows what is measured of it from now on"


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """What a device is to have; why: in one line, where it was chosen for it, else empty."""

    wish: CutWish
    why: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Other cuts for devices of an app, by device. refusals: why it cannot be, a sentence each; said: as an
    answer; found: what the wishes came to; planned: the revision that it needs, None for none.
    """

    instance: Instance
    cuts: dict[str, str]
    refusals: list[str]
    said: dict[str, Any]
    found: tuple[CutFound, ...]
    planned: Planned | None


class Cuts:
    """Those of one platform."""

    def __init__(
        self,
        store: ControlStore,
        load: Callable[[Question], Awaitable[Checked]],
        trust: Trust,
        changed: Callable[[], None],
        host: Callable[[str], HostReport],
        now_us: Callable[[], int],
    ) -> None:
        """`load`: checks cuts in a process of its own; `changed`: called after each change; `host`: what
        the Spark host says of an instance; `now_us`: the wall clock.
        """
        self._store, self._load, self._trust, self._changed = store, load, trust, changed
        self._host, self._now_us = host, now_us

    @route("POST", "/apps/{name}/cut", "operator", answers.Recut, statuses=(200, 202), body=CutBody)
    async def cut(self, request: web.Request) -> Answer:
        """Give devices of an app another cut while it runs, or say what would move."""
        body, asked = await body_of(request, CutBody)
        return await self._change(request, body, asked)

    @route("POST", "/apps/{name}/move", "operator", answers.Recut, statuses=(200, 202), body=MoveBody)
    async def move(self, request: web.Request) -> Answer:
        """Move a step of devices to the other tier, with what must go along, or say what would move."""
        body, asked = await body_of(request, MoveBody)
        return await self._change(request, body, asked)

    async def _change(self, request: web.Request, body: CutBody | MoveBody, asked: str) -> Answer:
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        instance = self._store.apps.newest(request.match_info["name"])
        check_is_to_run(instance)
        held = self._meant(instance, body.devices)
        if isinstance(body, CutBody) and body.cut == ADAPTIVE:
            return self._follow(instance, held, body, key, asked)
        if isinstance(body, MoveBody):
            wanted = {
                device: DeviceWish(CutWish(cut, "", body.step, body.to)) for device, cut in held.items()
            }
        elif body.cut == AUTO:
            wanted = await self._fitting(instance, held, body.capacity)
        else:
            wanted = {device: DeviceWish(CutWish(cut, body.cut)) for device, cut in held.items()}
        proposal = await self.propose(instance, wanted)
        if body.dry_run:
            return 200, {**proposal.said, "refusals": proposal.refusals}
        if proposal.refusals:
            kind = ConflictError if proposal.cuts else UnchangedError
            raise kind(f"app {instance.name} keeps its cuts: {in_short(proposal.refusals)}")
        has_rule = isinstance(body, CutBody) and body.cut != AUTO
        rules = rules_of([(body.devices, False)], proposal.found[:1]) if has_rule else ()

        def work() -> Answer:
            self.take(proposal, rules)
            return 202, proposal.said

        return self._once(key, asked, work)

    def _follow(
        self, instance: Instance, held: Mapping[str, str], body: CutBody, key: str, asked: str
    ) -> Answer:
        """Have the cuts of devices follow what is measured of them from now on."""
        refusals = self._busy(instance)
        wanted = {device: DeviceWish(CutWish(cut), _FOLLOWS) for device, cut in held.items()}
        found = {device: CutFound(cut) for device, cut in held.items()}
        said = {**self._said(instance, wanted, found, Checked(is_same=True)), "count": len(held)}
        if body.dry_run:
            return 200, {**said, "refusals": refusals}
        if refusals:
            raise ConflictError(f"app {instance.name} keeps its cuts: {in_short(refusals)}")
        rule = CutRule(str(parse_selector(body.devices)), "", adaptive=True, capacity=body.capacity)
        change = CutChange(instance.instance, instance.revision, {}, (rule,))

        def work() -> Answer:
            self._store.apps.recut(instance, change, None)
            return 202, said

        return self._once(key, asked, work)

    def _once(self, key: str, asked: str, work: Callable[[], Answer]) -> Answer:
        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer

    async def propose(self, instance: Instance, wanted: Mapping[str, DeviceWish]) -> Proposal:
        """What it comes to that these devices get what is wanted for each; raises `ControlError`."""
        wishes = tuple(dict.fromkeys(one.wish for one in wanted.values()))
        checked, outline = await self._check(instance, wishes)
        made = dict(zip(wishes, checked.found, strict=True))
        if any(one.why for one in wanted.values()):  # who has no wish of its own stays where it cannot move
            made = {wish: CutFound(wish.before) if one.refused else one for wish, one in made.items()}
        found = {device: made[one.wish] for device, one in wanted.items()}
        cuts = {device: one.cut for device, one in found.items() if one.cut != wanted[device].wish.before}
        refusals = [one.refused for one in made.values() if one.refused]
        refusals += [] if refusals else self._in_the_way(instance, checked, cuts)
        refusals += self._too_large(instance, {device: found[device].moves for device in cuts})
        said = self._said(instance, wanted, found, checked)
        planned = None if checked.is_same else self._planned(instance, outline, checked)
        return Proposal(instance, cuts, refusals, said, checked.found, planned)

    def _too_large(self, instance: Instance, moves: Mapping[str, Sequence[StepMove]]) -> list[str]:
        """The devices whose steps keep more than moves at once, each with that as a sentence."""
        sizes = StateSizes(self._store, instance.instance, self._host(instance.instance))
        alone, found = len(self._store.desired.cuts(instance.instance)) == 1, list[str]()
        for device, several in moves.items():
            for tier in ("edge", "cloud"):
                steps = [move.step for move in several if move.keeps and move.to == tier]
                found.append(sizes.too_large(device, steps, tier, alone=alone))
        return [why for why in found if why]

    def take(self, proposal: Proposal, rules: tuple[CutRule, ...] = ()) -> None:
        """Have devices go on so; rules: for those that get the app later. Raises `ConflictError`."""
        instance, number = proposal.instance, proposal.said["number"]
        change = CutChange(instance.instance, number, proposal.cuts, rules)
        self._store.apps.recut(instance, change, proposal.planned)

    async def _fitting(
        self, instance: Instance, held: Mapping[str, str], capacity: float
    ) -> dict[str, DeviceWish]:
        """The cut that fits each device, by what was measured of it."""
        ladder = await self.ladder(instance)
        wanted = dict[str, DeviceWish]()
        for device, before in held.items():
            found = fit(ladder, before, self.measured(instance, device, before), capacity)
            wanted[device] = DeviceWish(CutWish(before, found.cut or own_cut(instance)), found.why)
        return wanted

    async def ladder(self, instance: Instance) -> Ladder:
        """The cuts that devices of the app may climb; raises `ControlError`."""
        checked, _ = await self._check(instance, (), climbs=True)
        if checked.ladder is None:
            raise UnavailableError(f"flow {instance.flow!r} could not be checked: ask again")
        return checked.ladder

    def measured(self, instance: Instance, device: str, cut: str) -> Measured | None:
        """What the device has said that the app takes there with this cut, if it has."""
        report = self._store.reports.last(device)
        asked = reported_cut(cut or instance.cut)
        apps = decode_reported(report).apps if report else ()
        return next((a.measured for a in apps if (a.instance, a.cut) == (instance.instance, asked)), None)

    def _meant(self, instance: Instance, selector: str) -> dict[str, str]:
        """The devices of the app that a selector means, each with its cut; raises `ConflictError` for
        none.
        """
        meant, cuts = parse_selector(selector), self._store.desired.cuts(instance.instance)
        held = {name: cut for name, cut in cuts.items() if _matches(meant, self._store.devices.get(name))}
        if not held:
            raise ConflictError(
                f"no device of app {instance.name} matches {selector}: see gear info {instance.name} and "
                "gear device ls"
            )
        return held

    async def _check(
        self, instance: Instance, wishes: tuple[CutWish, ...], *, climbs: bool = False
    ) -> tuple[Checked, Outline]:
        """What the wishes come to, and the data centre's part that they need; climbs: the ladder is wanted,
        too. Raises `ControlError`.
        """
        outline = instance.outline
        checked = await self._load(
            Question(
                instance.flow,
                instance.cut,
                instance.options,
                instance.device_options,
                bundle=self._trust.folder_of(outline.code) if outline.bundled else "",
                running=outline.document,
                base=outline.base,
                cuts=outline.cuts,
                wishes=wishes,
                keeps_flow=True,
                without=outline.without,
                sent=tuple(outline.channels),
                climbs=climbs,
            )
        )
        made = checked.outline
        if made is None:
            raise UnavailableError(f"flow {instance.flow!r} could not be checked: ask again")
        if made.code != outline.code:
            raise ConflictError(
                f"app {instance.name} runs code {outline.code[:12]} of {instance.flow}, and the platform's "
                f"machine has {made.code[:12]}: install what it runs, or update it first"
            )
        return checked, made

    def _in_the_way(self, instance: Instance, checked: Checked, cuts: Mapping[str, str]) -> list[str]:
        """What keeps devices of an app from other cuts now, a sentence each."""
        if not cuts:
            return ["all these devices have this cut already"]
        found = self._busy(instance)
        if not checked.is_same and checked.change is not None:
            found += checked.change.refusals
        return found

    def is_changing(self, instance: Instance) -> bool:
        """Whether an app goes over to something, or does not run."""
        is_to_follow = self._store.revisions.next_of(instance) is not None
        is_waiting = self._store.cut_changes.of(instance.instance) is not None
        is_waiting = is_waiting or self._store.revisions.canary_of(instance) is not None
        return is_to_follow or is_waiting or bool(under_way(instance, self._host(instance.instance)))

    def _busy(self, instance: Instance) -> list[str]:
        """What keeps an app from other cuts now, whichever, a sentence each."""
        found = under_way(instance, self._host(instance.instance))
        if not found and self._store.revisions.canary_of(instance) is not None:
            found.append(in_the_way(instance.name))
        if not found and self._store.cut_changes.of(instance.instance) is not None:
            found.append("other cuts are under way: wait until devices have them, see gear info")
        if len(instance.cut_rules) >= RULES_MAX:
            found.append(
                f"app {instance.name} has {RULES_MAX} rules for the cuts of devices, which is all that it can"
            )
        return found

    def _planned(self, instance: Instance, outline: Outline, checked: Checked) -> Planned:
        """The revision that takes what devices send with these cuts."""
        return Planned(
            instance.instance,
            instance.revision + 1,
            instance.flow,
            instance.cut,
            instance.options,
            instance.device_options,
            replace(outline, former=instance.outline.former),
            checked.change.drops if checked.change else (),
            self._now_us(),
        )

    def _said(
        self,
        instance: Instance,
        wanted: Mapping[str, DeviceWish],
        found: Mapping[str, CutFound],
        checked: Checked,
    ) -> dict[str, Any]:
        """What a change comes to, as an answer. Of devices that get what fits them, also those are told that
        stay as they are, behind the others.
        """
        is_changed = {device: found[device].cut != one.wish.before for device, one in wanted.items()}
        changed = [device for device in wanted if is_changed[device]]
        stays = [device for device, one in wanted.items() if one.why and not is_changed[device]]
        moves = self._moves(instance, {device: found[device] for device in changed})
        host = self._host(instance.instance)
        micro_batches = max((MICRO_BATCHES[one["to"]] for one in moves if one["keeps"]), default=0)
        return {
            "name": instance.name,
            "instance": instance.instance,
            "number": instance.revision + (not checked.is_same),
            "revises": not checked.is_same,
            "count": len(changed),
            "devices": [
                {
                    "device": device,
                    "before": shown_cut(instance, wanted[device].wish.before),
                    "cut": shown_cut(instance, found[device].cut),
                    **({"why": wanted[device].why} if wanted[device].why else {}),
                }
                for device in (changed + stays)[:NAMED_MAX]
            ],
            "moves": moves,
            "micro_batches": micro_batches,
            **_pause(micro_batches, host, claims=any(one["to"] == EDGE and one["keeps"] for one in moves)),
        }

    def _moves(self, instance: Instance, found: Mapping[str, CutFound]) -> list[dict[str, Any]]:
        """The steps that go to another tier, each with its devices and the state that goes with it."""
        moved = dict[StepMove, list[str]]()
        for device, one in found.items():
            for move in one.moves:
                moved.setdefault(move, []).append(device)
        sizes = StateSizes(self._store, instance.instance, self._host(instance.instance))
        everyone = len(self._store.desired.cuts(instance.instance))
        return [
            {
                **msgspec.to_builtins(move),
                "devices": len(devices),
                **msgspec.to_builtins(sizes.moved(move, devices, everyone)),
            }
            for move, devices in moved.items()
        ]


def _pause(micro_batches: int, host: HostReport, *, claims: bool) -> dict[str, int]:
    """How long steps with state pause: a claim waits for what the log has before it; claims: whether one is
    to come.
    """
    behind = host.lag if claims else 0
    behind_ms = round(1_000 * behind / host.entries_per_s) if host.entries_per_s else 0
    return {
        "behind_entries": behind,
        "pause_ms": micro_batches * round(host.micro_batch_ms or 0) + behind_ms,
    }


def _matches(selector: Any, device: Device) -> bool:
    return bool(not device.retired and selector.matches(device.device, device.labels))


def shown_cut(instance: Instance, cut: str) -> str:
    """The cut of a device as people are shown it; "" is the app's."""
    return cut or own_cut(instance)


def own_cut(instance: Instance) -> str:
    """The cut of an app."""
    return instance.outline.base or instance.cut


def rules_of(meant: Sequence[tuple[str, bool]], found: Sequence[CutFound]) -> tuple[CutRule, ...]:
    """What devices that a submit means get, in the order in which it says so.

    meant: selectors, each with whether the cut follows what is measured; found: the cuts of the others.
    """
    cuts = iter(found)
    return tuple(
        CutRule(str(parse_selector(selector)), "" if adaptive else next(cuts).cut, adaptive)
        for selector, adaptive in meant
    )
