"""Has devices whose cut is `adaptive` go to another one when what they measure says so.

Beside REST, by the same change of cuts that a person makes. Guarantees: an app goes over to one thing at a
time, and few of its devices at once; the next ones move when those have. Each move has an event with its
reason, and an entry of the audit log. What is remembered of a device lasts as long as control runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from geartrain.control.states import ADAPTIVE
from geartrain.errors import GeartrainError
from geartrain.ports import Clock
from geartrain.printable import printable
from geartrain_cloud.changes.adapting import Memory, Move, next_move
from geartrain_cloud.changes.cut_checking import CutWish
from geartrain_cloud.changes.fitting import Ladder
from geartrain_cloud.control.cutting import Cuts, DeviceWish, own_cut, shown_cut
from geartrain_cloud.control_store.bearers import Bearer
from geartrain_cloud.control_store.desired import rule_of
from geartrain_cloud.control_store.errors import StoreError
from geartrain_cloud.control_store.model import ONLINE_US, CutRule, Instance, State, Wanted
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.rest.audit import AuditLog

_LOG = logging.getLogger("geartrain.control")

EVERY_S = 30.0
SHARE_AT_ONCE, AT_ONCE_MAX = 0.1, 20
"""Of an app's devices with this cut; one at the least."""
WAIT_S = 300.0
"""So long a device that has moved is waited for until it says what the app takes with its new cut."""
_WHO = Bearer(ADAPTIVE, "operator")
_Place = tuple[str, str]
"""An instance and a device."""


class AdaptiveRounds:
    """One for a control store."""

    def __init__(
        self, store: ControlStore, cuts: Cuts, audit: AuditLog, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """`changed`: called after each change."""
        self._store, self._cuts, self._audit, self._clock = store, cuts, audit, clock
        self._changed = changed
        self._memory: dict[_Place, Memory] = {}
        self._ladders: dict[str, tuple[int, Ladder]] = {}

    async def run(self) -> None:
        """One round after another, until it is cancelled; raises `StoreError`."""
        while True:
            await self._clock.sleep(EVERY_S)
            await self.round()

    async def round(self) -> None:
        """Look at every app once; raises `StoreError`. What else is in the way is said, and tried again."""
        places = set[_Place]()
        for instance in self._store.apps.instances():
            if instance.wanted is not Wanted.RUNNING or instance.state is not State.RUNNING:
                continue
            members = self._members(instance)
            places |= {(instance.instance, device) for device in members}
            try:
                await self._look(instance, members)
            except StoreError:
                raise
            except GeartrainError as error:
                _LOG.warning("adaptive cuts of %s: %s", instance.instance, printable(str(error)))
        self._memory = {place: one for place, one in self._memory.items() if place in places}
        names = {instance for instance, _ in places}
        self._ladders = {name: one for name, one in self._ladders.items() if name in names}

    def _members(self, instance: Instance) -> dict[str, tuple[str, CutRule]]:
        """The devices whose cut is adaptive and that are in contact, with the cut and the rule of each."""
        if not any(rule.adaptive for rule in instance.cut_rules):
            return {}
        found, since_us = dict[str, tuple[str, CutRule]](), self._clock.now_us() - ONLINE_US
        for name, cut in self._store.desired.cuts(instance.instance).items():
            device = self._store.devices.get(name)
            rule = rule_of(instance.cut_rules, device)
            if rule is not None and rule.adaptive and device.seen_us >= since_us and not device.retired:
                found[name] = (cut, rule)
        return found

    async def _look(self, instance: Instance, members: Mapping[str, tuple[str, CutRule]]) -> None:
        if not members or self._cuts.is_changing(instance):
            return
        ladder, now_s = await self._ladder(instance), self._clock.monotonic_s()
        moves, waits = dict[str, Move](), False
        for name, (cut, rule) in members.items():
            place = (instance.instance, name)
            memory = self._memory.get(place, Memory())
            measured = self._cuts.measured(instance, name, cut)
            if measured is None:
                waits = waits or now_s - memory.moved_s < WAIT_S
                continue
            memory = self._memory[place] = memory.learn(cut, measured)
            move = next_move(ladder, cut, measured, memory, now_s, rule.capacity)
            if move is not None:
                moves[name] = move
        if moves and not waits:
            most = max(1, min(AT_ONCE_MAX, int(SHARE_AT_ONCE * len(members))))
            first = sorted(moves, key=lambda name: (moves[name].direction != "down", name))[:most]
            await self._move(instance, members, {name: moves[name] for name in first}, now_s)

    async def _ladder(self, instance: Instance) -> Ladder:
        number, known = self._ladders.get(instance.instance, (0, None))
        if known is None or number != instance.revision:
            known = await self._cuts.ladder(instance)
            self._ladders[instance.instance] = (instance.revision, known)
        return known

    async def _move(
        self,
        instance: Instance,
        members: Mapping[str, tuple[str, CutRule]],
        moves: Mapping[str, Move],
        now_s: float,
    ) -> None:
        """Have devices go over; those that cannot now are left alone for as long as if they had."""
        name = instance.name
        for device, move in moves.items():
            place = (instance.instance, device)
            self._memory[place] = self._memory[place].moves(move.direction, now_s)
        wanted = {
            device: DeviceWish(CutWish(members[device][0], move.fit.cut or own_cut(instance)), move.fit.why)
            for device, move in moves.items()
        }
        proposal = await self._cuts.propose(instance, wanted)
        if proposal.refusals:
            _LOG.warning(
                "adaptive cuts of %s: %s", instance.instance, printable("; ".join(proposal.refusals))
            )
            return
        number = self._audit.begin(_WHO, "POST", f"/api/v1/apps/{name}/cut", (name, ""), "")
        with self._store.database.change():
            self._cuts.take(proposal)
            for device in proposal.cuts:
                self._store.events.note("moved", name, device, self._said(instance, members, moves, device))
        asked: dict[str, Any] = {"cut": ADAPTIVE, "devices": list(proposal.cuts)}
        self._audit.end(number, 202, "ok", asked | {"why": [moves[one].fit.why for one in proposal.cuts]})
        for device in proposal.cuts:
            cut, why = shown_cut(instance, proposal.cuts[device]), moves[device].fit.why
            _LOG.info("%s: device %s gets the cut %s: %s", instance.instance, device, cut, why)
        self._changed()

    def _said(
        self,
        instance: Instance,
        members: Mapping[str, tuple[str, CutRule]],
        moves: Mapping[str, Move],
        device: str,
    ) -> dict[str, Any]:
        before, after = members[device][0], moves[device].fit
        return {
            "instance": instance.instance,
            "before": shown_cut(instance, before),
            "cut": shown_cut(instance, after.cut),
            "why": after.why,
        }
