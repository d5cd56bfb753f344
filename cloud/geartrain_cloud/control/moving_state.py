"""How much state a change of an app would move: cells and bytes, by step, as devices and Spark have said.

Between what was reported and the answers of REST; it asks nobody and changes nothing. Guarantees: what nobody
has said is null, never 0. Of a step in the data centre only the whole is known, so a part of its devices is
told as a bound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from geartrain.control.codec import decode_reported
from geartrain.control.limits import LANE_LIMITS
from geartrain.control.states import Measured
from geartrain.ports import StateSize
from geartrain.revision.change import Change
from geartrain.state.moving import too_large
from geartrain_cloud.changes.cut_checking import CLOUD, StepMove
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control_store.store import ControlStore

Tier = Literal["edge", "cloud"]


class Kept(msgspec.Struct, frozen=True):
    """State of a step. cells: None where nobody has said; bytes: of the cells, without keys; at_most: of
    the cells those of other devices are in it; unsaid: devices that have not said how much they keep.
    """

    cells: int | None = None
    bytes: int | None = None
    at_most: bool = False
    unsaid: int = 0


class StateHere(msgspec.Struct, frozen=True):
    """State of a step that a change concerns, as `answers.StepState`."""

    step: str
    tier: Tier
    becomes: str
    cells: int | None
    bytes: int | None
    unsaid: int


class StateSizes:
    """What is kept of the steps of one instance."""

    def __init__(self, store: ControlStore, instance: str, host: HostReport) -> None:
        """`host`: what the Spark host says of it."""
        self._store, self._instance, self._host = store, instance, host
        self._measured: dict[str, Measured | None] = {}

    def moved(self, move: StepMove, devices: Sequence[str], everyone: int) -> Kept:
        """What goes with a step as these devices get or leave it; everyone: how many devices the app has."""
        if not move.keeps:
            return Kept(0, 0)
        if move.to == CLOUD:
            return self.on_devices(move.step, devices)
        return self.in_cloud(move.step, at_most=len(devices) < everyone)

    def changed(self, change: Change, tiers: Mapping[str, Tier], devices: Sequence[str]) -> list[StateHere]:
        """Of the steps that change and keep something; tiers: where each of them stands by the app's cut, so
        far; devices: that run the app, some with cuts of their own perhaps.
        """
        found = list[StateHere]()
        for one in change.steps:
            if not one.state or (one.what == "same" and one.state == "kept") or one.step not in tiers:
                continue
            here: tuple[tuple[Tier, Kept], ...] = (
                ("cloud", self.in_cloud(one.step)),
                ("edge", self.on_devices(one.step, devices)),
            )
            found += [
                StateHere(one.step, tier, one.state, kept.cells, kept.bytes, kept.unsaid)
                for tier, kept in here
                if kept.cells or tier == tiers[one.step]
            ]
        return found

    def too_large(self, device: str, steps: Collection[str], tier: Tier, *, alone: bool) -> str:
        """Why what these steps keep does not move to `tier` at once, for one device; "" where it does.

        It is "" as well where nobody has said how much that is. alone: the app has no other device, so that
        all that the data centre keeps of the steps is of this one.
        """
        if tier == CLOUD:
            kept = {step: self._of_device(step, device) for step in steps}
        elif alone and self._host.kept is not None:
            kept = {step: self._host.kept.get(step) for step in steps}
        else:
            return ""
        why = too_large({step: (one.cells, one.bytes) for step, one in kept.items() if one is not None})
        return f"device {device}: {why}" if why else ""

    def in_cloud(self, step: str, *, at_most: bool = False) -> Kept:
        """Of a step in the data centre; at_most: only a part of it is meant."""
        if self._host.kept is None:
            return Kept(at_most=at_most)
        found = self._host.kept.get(step, StateSize())
        return Kept(found.cells, found.bytes, at_most)

    def on_devices(self, step: str, devices: Collection[str]) -> Kept:
        """Of a step on these devices together."""
        said = [one for device in devices if (one := self._of_device(step, device)) is not None]
        unsaid = len(devices) - len(said)
        if devices and not said:
            return Kept(unsaid=unsaid)
        return Kept(sum(one.cells for one in said), sum(one.bytes for one in said), unsaid=unsaid)

    def _of_device(self, step: str, device: str) -> StateSize | None:
        if device not in self._measured:
            self._measured[device] = _measured_of(self._store, self._instance, device)
        measured = self._measured[device]
        if measured is None:
            return None
        found = next((one for one in measured.kept if one.step == step), None)
        if found is not None:
            return StateSize(found.cells, found.bytes)
        return StateSize() if len(measured.kept) < LANE_LIMITS.kept_max else None


def _measured_of(store: ControlStore, instance: str, device: str) -> Measured | None:
    report = store.reports.last(device)
    apps = decode_reported(report).apps if report else ()
    return next((app.measured for app in apps if app.instance == instance), None)
