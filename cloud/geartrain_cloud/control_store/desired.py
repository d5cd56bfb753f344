"""What each device is to run: instances, what it is to remove, and the serial of both.

Under apps and devices, whose changes end here; the control lane sends what it gives. Guarantees: a device's
serial goes up whenever what it is to run changes, and only then. One serial has one content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import msgspec

from geartrain.control.limits import LANE_LIMITS
from geartrain.fleet.selectors import CLOUD_DEVICE, parse_selector
from geartrain_cloud.control_store.database import ControlDatabase, as_text, from_row
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import CutRule, Device, Instance, State, Wanted
from geartrain_cloud.control_store.revisions import Revisions
from geartrain_cloud.control_store.sources import (
    after_label,
    has_cloud_sources,
    not_for,
    on_device,
    takes_part,
)

PURGES_MAX = 10_000
"""Purged instances that a device has not been told of; a purge that needs more is refused."""


def cut_of(rules: Sequence[CutRule], device: Device) -> str:
    """The cut that a device gets with an app: that of the last rule that matches it, "" for the app's."""
    rule = rule_of(rules, device)
    return "" if rule is None else rule.cut


def rule_of(rules: Sequence[CutRule], device: Device) -> CutRule | None:
    """The last rule that matches the device, None for none."""
    fitting = (r for r in reversed(rules) if parse_selector(r.devices).matches(device.device, device.labels))
    return next(fitting, None)


class Desired:
    """The assignments of instances to devices, and the purges that devices are told of."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    # Changes

    def assign(self, instance: Instance, devices: Iterable[Device]) -> None:
        """Have the devices run the instance."""
        with self._database.change() as database:
            for device in devices:
                lacks = as_text(not_for(instance.outline, device))
                changed = database.execute(
                    "INSERT INTO assignments VALUES (?1, ?2, 'wanted', ?3, ?4) "
                    "ON CONFLICT (instance, device) DO UPDATE SET state = 'wanted', lacks = ?3 "
                    "WHERE state != 'wanted'",
                    (instance.instance, device.device, lacks, cut_of(instance.cut_rules, device)),
                ).rowcount
                if changed:
                    self.tell(device.device)

    def join(self, device: Device) -> None:
        """Have the device run each instance whose selector matches it."""
        running = self._database.read(
            Instance,
            "SELECT * FROM instances WHERE wanted = ? AND state != 'ended' ORDER BY instance",
            (Wanted.RUNNING,),
        )
        for instance in running:
            if instance.state is State.FAILED or instance.state.has_whole_log:
                continue
            if takes_part(instance.outline, parse_selector(instance.selector), device):
                self.assign(instance, [device])

    def give_sources(self, device: Device) -> None:
        """Let the device have the sources that are for it now, where they may join the app that it runs."""
        with self._database.change():
            for instance, draining in self.wanted_on(device.device):
                held = self.lacking(instance.instance).get(device.device, ())
                lacks = after_label(instance.outline, held, device)
                if not draining and lacks != held:
                    self._note_lacks(instance, device, lacks)
                    self.tell(device.device)

    def bring_sources(self, instance: Instance, new: Set[str], devices: Iterable[Device]) -> None:
        """Settle for which devices the sources `new` are, with which the instance goes over to a revision. A
        device that has something to do for it only from now on gets it.
        """
        selector, held = parse_selector(instance.selector), self.lacking(instance.instance)
        with self._database.change():
            there = self.assigned(instance.instance)
            for device in devices:
                if there.get(device.device) == "wanted":
                    without = new & set(not_for(instance.outline, device))
                    self._note_lacks(instance, device, sorted({*held.get(device.device, ()), *without}))
                elif takes_part(instance.outline, selector, device):
                    self.assign(instance, [device])

    def _note_lacks(self, instance: Instance, device: Device, lacks: Sequence[str]) -> None:
        """Note the sources that are not for a device which runs the instance."""
        with self._database.change() as database:
            database.execute(
                "UPDATE assignments SET lacks = ? WHERE instance = ? AND device = ?",
                (as_text(lacks), instance.instance, device.device),
            )

    def cut(self, instance: str, cuts: Mapping[str, str]) -> None:
        """Give devices that run the instance other cuts, "" for the app's own."""
        with self._database.change() as database:
            for device, cut in sorted(cuts.items()):
                changed = database.execute(
                    "UPDATE assignments SET cut = ?3 WHERE instance = ?1 AND device = ?2 AND cut != ?3 "
                    "AND state != 'left'",
                    (instance, device, cut),
                ).rowcount
                if changed:
                    self.tell(device)

    def drain(self, instance: str) -> None:
        """Have the devices of the instance only send what they hold of it."""
        self._move(instance, "draining")

    def leave(self, instance: str) -> None:
        """Take the instance from all of its devices: what they had to send is in the log, or is given up."""
        self._move(instance, "left")

    def _move(self, instance: str, state: str) -> None:
        """Bring the instance's assignments to `state`, and each device's serial up by one that changes."""
        with self._database.change() as database:
            there = "SELECT device FROM assignments WHERE instance = ? AND state NOT IN (?, 'left')"
            self._next_serial(there, (instance, state))
            database.execute(
                "UPDATE assignments SET state = ? WHERE instance = ? AND state != 'left'", (state, instance)
            )

    def tell_again(self, instance: str) -> None:
        """Bring the serial of the devices that run the instance up by one: it is not what it was."""
        with self._database.change():
            told = "SELECT device FROM assignments WHERE instance = ? AND state = 'wanted'"
            self._next_serial(told, (instance,))

    def tell(self, device: str) -> None:
        """Bring the device's serial up by one: what is wanted of it beside apps is not what it was."""
        with self._database.change():
            self._next_serial("SELECT ?", (device,))

    def clear(self, device: str) -> None:
        """Have the device run nothing, and whichever program it has."""
        with self._database.change() as database:
            database.execute("DELETE FROM programs WHERE device = ?", (device,))
            database.execute("UPDATE assignments SET state = 'left' WHERE device = ?", (device,))
            database.execute("DELETE FROM purges WHERE device = ? AND serial = 0", (device,))
            self.tell(device)

    def purge(self, instance: str) -> None:
        """Have the devices that were ever given the instance remove what they keep of it, but for those that
        were retired.
        """
        with self._database.change() as database:
            its = "FROM assignments JOIN devices USING (device) WHERE instance = ? AND NOT retired"
            database.execute(
                f"INSERT INTO purges (device, instance, serial) SELECT device, instance, 0 {its}",
                (instance,),
            )
            self._next_serial(f"SELECT device {its}", (instance,))
            database.execute("DELETE FROM assignments WHERE instance = ?", (instance,))

    def purge_device(self, device: str) -> None:
        """Have a device that was retired remove what it keeps of every instance that it was ever given."""
        with self._database.change() as database:
            database.execute(
                "INSERT INTO purges (device, instance, serial) "
                "SELECT device, instance, 0 FROM assignments WHERE device = ? ORDER BY instance",
                (device,),
            )
            self.tell(device)

    def go_on(self, device: str) -> None:
        """Give the device its next desired state where purges wait for room that its report has made."""
        with self._database.change():
            waiting = self._database.rows(
                "SELECT 1 FROM purges WHERE device = ? AND serial = 0 LIMIT 1", (device,)
            )
            done = self._database.rows(
                "SELECT 1 FROM purges JOIN devices USING (device) WHERE device = ? "
                "AND purges.serial BETWEEN 1 AND applied LIMIT 1",
                (device,),
            )
            if waiting and done:
                self.tell(device)

    def lift(self, device: str, serial: int) -> None:
        """Tell the device what it is told now under this serial, a later one."""
        with self._database.change() as database:
            database.execute("UPDATE devices SET serial = ? WHERE device = ?", (serial, device))
            database.execute("UPDATE purges SET serial = ? WHERE device = ? AND serial > 0", (serial, device))

    def _next_serial(self, devices: str, values: tuple[Any, ...]) -> None:
        """Bring the serial of the devices that the question gives up by one.

        What a desired state says of purges changes only here, so that one serial has one content: what the
        device has reported to have applied is no longer named, and up to `apps_max` others are.
        """
        with self._database.change() as database:
            applied = "SELECT applied FROM devices WHERE devices.device = purges.device"
            refused = "SELECT device FROM lanes WHERE refused != ''"
            database.execute(
                f"DELETE FROM purges WHERE device IN ({devices}) AND device NOT IN ({refused}) "  # noqa: S608
                f"AND serial BETWEEN 1 AND ({applied})",
                values,
            )
            database.execute(f"UPDATE devices SET serial = serial + 1 WHERE device IN ({devices})", values)  # noqa: S608
            places = "row_number() OVER (PARTITION BY device ORDER BY number) AS place"
            first = f"SELECT number, {places} FROM purges WHERE device IN ({devices})"  # noqa: S608
            serial = "SELECT serial FROM devices WHERE devices.device = purges.device"
            named = f"SELECT number FROM ({first}) WHERE place <= ?"  # noqa: S608
            database.execute(
                f"UPDATE purges SET serial = ({serial}) WHERE serial = 0 AND number IN ({named})",  # noqa: S608
                (*values, LANE_LIMITS.apps_max),
            )

    # Questions

    def still_holds(self, device: str) -> bool:
        """Whether the device has not said that it removed all that it was told to."""
        question = (
            "SELECT 1 FROM purges JOIN devices USING (device) WHERE device = ? "
            "AND (purges.serial = 0 OR purges.serial > applied) LIMIT 1"
        )
        return bool(self._database.rows(question, (device,)))

    def check_purges(self, instance: str) -> None:
        """Raise `ConflictError` where a device of the instance was not told of too many purges."""
        full = self._database.rows(
            "SELECT device FROM purges JOIN devices USING (device) WHERE NOT retired AND device IN (SELECT "
            "device FROM assignments WHERE instance = ?) GROUP BY device HAVING count(*) >= ? LIMIT 1",
            (instance, PURGES_MAX),
        )
        if full:
            raise ConflictError(
                f"device {full[0][0]} has {PURGES_MAX:,} purges that it was not told of, which is all that "
                "the platform keeps: bring it back, or retire it"
            )

    def assigned(self, instance: str) -> dict[str, str]:
        """The devices that an instance was ever given, each with `wanted`, `draining` or `left`."""
        rows = self._database.rows(
            "SELECT device, state FROM assignments WHERE instance = ? ORDER BY device", (instance,)
        )
        return dict(rows)

    def running(self, instance: str) -> list[str]:
        """The devices that an instance was given and has not left."""
        return [device for device, state in self.assigned(instance).items() if state != "left"]

    def is_assigned(self, instance: str, device: str) -> bool:
        """Whether the device was ever given the instance."""
        question = "SELECT 1 FROM assignments WHERE instance = ? AND device = ?"
        return bool(self._database.rows(question, (instance, device)))

    def lacking(self, instance: str) -> dict[str, tuple[str, ...]]:
        """By device the sources of the instance that are not for it, where there are such."""
        rows = self._database.rows(
            "SELECT device, lacks FROM assignments WHERE instance = ? AND lacks != '[]'", (instance,)
        )
        return {device: tuple(msgspec.json.decode(lacks)) for device, lacks in rows}

    def cuts(self, instance: str) -> dict[str, str]:
        """The cut of each device that an instance was given and that has not left it, "" for the app's."""
        rows = self._database.rows(
            "SELECT device, cut FROM assignments WHERE instance = ? AND state != 'left' ORDER BY device",
            (instance,),
        )
        return dict(rows)

    def own_cuts(self, device: str) -> dict[str, str]:
        """By instance the cut that is the device's own, where it has one."""
        question = "SELECT instance, cut FROM assignments WHERE device = ? AND cut != ''"
        return dict(self._database.rows(question, (device,)))

    def wanted_on(self, device: str) -> list[tuple[Instance, bool]]:
        """What a device is to run, by instance and as the device is told it, and whether it is only to be
        drained.
        """
        rows = self._database.rows(
            "SELECT instances.*, assignments.lacks, assignments.state FROM assignments "
            "JOIN instances USING (instance) WHERE device = ? AND assignments.state != 'left' "
            "ORDER BY instance",
            (device,),
        )
        told = Revisions(self._database).told
        found = [
            (told(from_row(Instance, row), device), msgspec.json.decode(lacks), state == "draining")
            for *row, lacks, state in rows
        ]
        return [
            (on_device(one, device, lacks), draining)
            for one, lacks, draining in found
            if device != CLOUD_DEVICE or has_cloud_sources(one.outline)
        ]  # the first of them may come with a revision that is not in force yet

    def purged_on(self, device: str) -> list[str]:
        """The purged instances that the device's desired state names: it removes what it keeps of them."""
        rows = self._database.rows(
            "SELECT instance FROM purges WHERE device = ? AND serial > 0 ORDER BY number", (device,)
        )
        return [row[0] for row in rows]
