"""The control store: what is wanted and what was reported, in one SQLite file.

It stands behind REST and the reconciler, and beside every record's path. Guarantees: each change is one
durable transaction, together with the answer that its idempotency key stands for. The number of an instance
is never used again. A device's serial goes up whenever what it is to run changes, and only then. Every list
is read in pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain.control.limits import LANE_LIMITS
from geartrain.fleet.labels import check_device, check_labels
from geartrain.fleet.selectors import parse_selector
from geartrain_cloud.control.errors import ConflictError, NotFoundError, StoreError
from geartrain_cloud.control.model import (
    Device,
    Instance,
    Mode,
    Outline,
    Report,
    State,
    Submission,
    Wanted,
)
from geartrain_cloud.control.names import check_app, instance_name
from geartrain_cloud.control.sources import after_label, not_for, on_device
from geartrain_cloud.hosting.wanted import SHARED_STAGES

VERSION = 1
BUSY_S = 10.0
ANSWERS_MAX = 10_000
"""Idempotency keys that are remembered, the newest."""
PAGE_MAX = 1_000
DEVICES_MAX = 100_000
INSTANCES_MAX = 10_000
PURGES_MAX = 10_000
"""Purged instances that a device has not been told of; a purge that needs more is refused."""

_CREATE = """
CREATE TABLE apps (name TEXT PRIMARY KEY, numbers INTEGER NOT NULL, instance TEXT NOT NULL);
CREATE TABLE instances (instance TEXT PRIMARY KEY, name TEXT NOT NULL, flow TEXT NOT NULL, cut TEXT NOT NULL,
    selector TEXT NOT NULL, options TEXT NOT NULL, device_options TEXT NOT NULL, outline TEXT NOT NULL,
    wanted TEXT NOT NULL, state TEXT NOT NULL, mode TEXT NOT NULL, purge INTEGER NOT NULL, why TEXT NOT NULL,
    run INTEGER NOT NULL, attempt INTEGER NOT NULL, submitted_us INTEGER NOT NULL,
    changed_us INTEGER NOT NULL, isolation TEXT NOT NULL);
CREATE TABLE devices (device TEXT PRIMARY KEY, labels TEXT NOT NULL, local INTEGER NOT NULL,
    retired INTEGER NOT NULL, serial INTEGER NOT NULL, applied INTEGER NOT NULL, seen_us INTEGER NOT NULL);
CREATE TABLE assignments (instance TEXT NOT NULL, device TEXT NOT NULL, state TEXT NOT NULL,
    lacks TEXT NOT NULL, PRIMARY KEY (instance, device)) WITHOUT ROWID;
CREATE INDEX assignments_of ON assignments (device, instance);
CREATE TABLE reports (device TEXT NOT NULL, instance TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL,
    version TEXT NOT NULL, serial INTEGER NOT NULL, lacks TEXT NOT NULL,
    PRIMARY KEY (instance, device)) WITHOUT ROWID;
CREATE TABLE lanes (device TEXT PRIMARY KEY, report BLOB NOT NULL, refused TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE answers (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE purges (number INTEGER PRIMARY KEY AUTOINCREMENT, device TEXT NOT NULL, instance TEXT NOT NULL,
    serial INTEGER NOT NULL);
CREATE INDEX purges_of ON purges (device, number);
"""
"""A purge's serial: that of the device's desired state which names the instance first; 0 while none does.
lacks: of an assignment, the sources that are not for the device; of a report, those that it does not have.
"""
_JSON = ("options", "device_options", "outline", "labels")

T = TypeVar("T", Instance, Device)

Answer = tuple[int, dict[str, Any]]
"""An HTTP status and a body."""


class ControlStore:
    """The file at `path`, held by one process; `now_us` tells the wall clock, microseconds. The columns of
    instances and devices are the fields of these, in their order.
    """

    def __init__(self, path: Path, now_us: Callable[[], int]) -> None:
        """Open or make it; raises `StoreError`."""
        self._subject, self._now_us = f"the control store {path}", now_us
        with translated(StoreError, self._subject):
            self._database = open_to_write(
                path, busy_s=BUSY_S, one_thread=True, settings=("locking_mode = EXCLUSIVE",)
            )
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                with transaction(self._database):
                    for statement in _CREATE.split(";\n"):
                        self._database.execute(statement)
                    self._database.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise StoreError(f"{self._subject} has format {version}, and this version knows {VERSION}")

    def close(self) -> None:
        """Let the file go."""
        self._database.close()

    # Changes

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction; a change within another is a part of it."""
        with translated(StoreError, self._subject):
            if self._database.in_transaction:
                yield self._database
                return
            with transaction(self._database):
                yield self._database

    def once(self, key: str, request: str, work: Callable[[], Answer]) -> Answer:
        """Do `work` and remember its answer under the idempotency key, in one transaction.

        request: what was asked, in a form that is equal for equal requests. A key that is known gives its
        answer again without work. Raises `ConflictError` where it came with another request.
        """
        with self._change() as database:
            if key and (known := self.recall(key, request)) is not None:
                return known
            status, body = work()
            if key:
                database.execute(
                    "INSERT INTO answers (key, request, status, body) VALUES (?, ?, ?, ?)",
                    (key, request, status, _text(body)),
                )
                database.execute(
                    "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?",
                    (ANSWERS_MAX,),
                )
            return status, body

    def recall(self, key: str, request: str) -> Answer | None:
        """The answer that the idempotency key stands for; raises `ConflictError` for another request."""
        with translated(StoreError, self._subject):
            found = self._database.execute(
                "SELECT request, status, body FROM answers WHERE key = ?", (key,)
            ).fetchone()
        if found is None:
            return None
        if found[0] != request:
            raise ConflictError("this Idempotency-Key came with another request before: take a new one")
        return int(found[1]), msgspec.json.decode(found[2])

    def add_device(self, name: str, labels: Mapping[str, str], *, local: bool = False) -> Device:
        """Add a device, or take one back that was retired; apps whose selector matches get it.

        Raises `SelectorError`, and `ConflictError` where it is there.
        """
        check_device(name)
        device = Device(name, check_labels(labels), local)
        with self._change() as database:
            known = self._device(name)
            if known is not None and not known.retired:
                raise ConflictError(f"device {name} is there already: see gear device show {name}")
            if known is None and self._count("devices") >= DEVICES_MAX:
                raise ConflictError(f"the platform has {DEVICES_MAX:,} devices, which is all that it takes")
            serial = 1 if known is None else known.serial + 1
            database.execute(
                "INSERT OR REPLACE INTO devices VALUES (?, ?, ?, 0, ?, ?, ?)",
                (name, _text(device.labels), local, serial, known.applied if known else 0, 0),
            )
            self._join(device)
        return self.device(name)

    def label_device(self, name: str, labels: Mapping[str, str | None]) -> Device:
        """Set labels, or take those away that are None; apps whose selector matches now get the device, and
        none loses it. Raises `SelectorError` and `NotFoundError`.
        """
        with self._change() as database:
            device = self.active_device(name)
            merged = {**device.labels, **{key: value for key, value in labels.items() if value is not None}}
            kept = {key: value for key, value in merged.items() if labels.get(key, "") is not None}
            database.execute(
                "UPDATE devices SET labels = ? WHERE device = ?", (_text(check_labels(kept)), name)
            )
            labelled = self.device(name)
            self._give_sources(labelled)
            self._join(labelled)
        return self.device(name)

    def _join(self, device: Device) -> None:
        """Assign the device to each instance whose selector matches it."""
        chosen = [
            instance
            for instance in self.instances(wanted=Wanted.RUNNING)
            if not (instance.state is State.FAILED or instance.state.has_whole_log)
            and parse_selector(instance.selector).matches(device.device, device.labels)
        ]
        for instance in chosen:
            self._assign(instance, [device])

    def _give_sources(self, device: Device) -> None:
        """Let the device have the sources that are for it now, where they may join the app that it runs."""
        for instance, draining in self.wanted_on(device.device):
            held = self.lacking(instance.instance).get(device.device, ())
            lacks = after_label(instance.outline, held, device)
            if not draining and lacks != held:
                self._database.execute(
                    "UPDATE assignments SET lacks = ? WHERE instance = ? AND device = ?",
                    (_text(lacks), instance.instance, device.device),
                )
                self._next_serial("SELECT ?", (device.device,))

    def retire_device(self, name: str) -> Device:
        """Take the device out of service and of all apps; raises `NotFoundError`."""
        with self._change() as database:
            self.active_device(name)
            database.execute("UPDATE assignments SET state = 'left' WHERE device = ?", (name,))
            database.execute("UPDATE devices SET retired = 1 WHERE device = ?", (name,))
            database.execute("DELETE FROM purges WHERE device = ? AND serial = 0", (name,))
            self._next_serial("SELECT ?", (name,))
        return self.device(name)

    def submit(self, asked: Submission, outline: Outline) -> Instance:
        """Make the next instance of the app and assign the devices that its selector matches.

        Raises `InvalidError`, `SelectorError`, and `ConflictError` where the app runs.
        """
        check_app(asked.name)
        selector, now_us = parse_selector(asked.selector), self._now_us()
        with self._change() as database:
            known = database.execute(
                "SELECT numbers, instance FROM apps WHERE name = ?", (asked.name,)
            ).fetchone()
            self.check_free(asked.name)
            number = 1 if known is None else int(known[0]) + 1
            instance = instance_name(asked.name, number)
            database.execute("INSERT OR REPLACE INTO apps VALUES (?, ?, ?)", (asked.name, number, instance))
            row = Instance(
                instance,
                asked.name,
                asked.flow,
                asked.cut,
                str(selector),
                asked.options,
                asked.device_options,
                outline,
                Wanted.RUNNING,
                State.SUBMITTED,
                Mode.DRAIN,
                purge=False,
                why="",
                run=1,
                attempt=1,
                submitted_us=now_us,
                changed_us=now_us,
                isolation="own" if outline.shuffles > SHARED_STAGES else asked.isolation,
            )
            values = msgspec.to_builtins(row)
            held = [_text(values[f]) if f in _JSON else values[f] for f in Instance.__struct_fields__]
            database.execute(f"INSERT INTO instances VALUES ({', '.join('?' * len(held))})", held)  # noqa: S608
            matching = [
                one
                for one in self.all_devices()
                if not one.retired and selector.matches(one.device, one.labels)
            ]
            self._assign(row, matching)
        return self.instance(instance)

    def check_free(self, name: str) -> None:
        """Raise `ConflictError` where the app of this name runs, or there is room for no more."""
        known = next(iter(self._rows("SELECT numbers, instance FROM apps WHERE name = ?", (name,))), None)
        if known is None and self._count("apps") >= INSTANCES_MAX:
            raise ConflictError(f"the platform has {INSTANCES_MAX:,} apps, which is all that it takes")
        if known is not None:
            former = self._instance(known[1])
            if former is not None and not former.state.is_over:
                raise ConflictError(
                    f"app {name} is {former.state} as {former.instance}: kill it first, or submit under "
                    "another --name"
                )

    def _assign(self, instance: Instance, devices: Iterable[Device]) -> None:
        for device in devices:
            lacks = _text(not_for(instance.outline, device))
            changed = self._database.execute(
                "INSERT INTO assignments VALUES (?1, ?2, 'wanted', ?3) ON CONFLICT (instance, device) "
                "DO UPDATE SET state = 'wanted', lacks = ?3 WHERE state != 'wanted'",
                (instance.instance, device.device, lacks),
            ).rowcount
            if changed:
                self._next_serial("SELECT ?", (device.device,))

    def kill(self, name: str, mode: Mode, *, purge: bool) -> Instance:
        """Note that the app is to end; a second kill may only make it quicker, or purge as well.

        One that has ended may be purged still, and the replay of one that has ended is given up. Raises
        `NotFoundError`, and `ConflictError` where it has ended and is not to be purged.
        """
        with self._change() as database:
            instance = self.app(name)
            if instance.state is State.REPLAYING:
                self.enter(instance.instance, State.ENDED)
                if not purge:
                    return self.instance(instance.instance)
            elif instance.state.is_over and not purge:
                raise ConflictError(f"app {name} has ended already, as {instance.instance}")
            if instance.state.has_whole_log:
                self._check_purges(instance.instance)
                database.execute(
                    "UPDATE instances SET wanted = ?, purge = 1, changed_us = ? WHERE instance = ?",
                    (Wanted.KILLED, self._now_us(), instance.instance),
                )
                return self.instance(instance.instance)
            if purge:
                self._check_purges(instance.instance)
            if instance.wanted is Wanted.KILLED and instance.mode is Mode.NOW:
                mode = Mode.NOW
            state = State.DRAINING
            database.execute(
                "UPDATE instances SET wanted = ?, state = ?, mode = ?, purge = ?, changed_us = ?, why = '' "
                "WHERE instance = ?",
                (
                    Wanted.KILLED,
                    state,
                    mode,
                    purge or instance.purge,
                    self._now_us(),
                    instance.instance,
                ),
            )
            self._move(instance.instance, "draining" if mode is Mode.DRAIN else "left")
        return self.instance(instance.instance)

    def _check_purges(self, instance: str) -> None:
        """Raise `ConflictError` where a device of the instance was not told of too many purges."""
        full = self._rows(
            "SELECT device FROM purges JOIN devices USING (device) WHERE NOT retired AND device IN (SELECT "
            "device FROM assignments WHERE instance = ?) GROUP BY device HAVING count(*) >= ? LIMIT 1",
            (instance, PURGES_MAX),
        )
        if full:
            raise ConflictError(
                f"device {full[0][0]} has {PURGES_MAX:,} purges that it was not told of, which is all that "
                "the platform keeps: bring it back, or retire it"
            )

    def _move(self, instance: str, state: str) -> None:
        """Bring the instance's assignments to `state`, and each device's serial up by one that changes."""
        there = "SELECT device FROM assignments WHERE instance = ? AND state NOT IN (?, 'left')"
        self._next_serial(there, (instance, state))
        self._database.execute(
            "UPDATE assignments SET state = ? WHERE instance = ? AND state != 'left'", (state, instance)
        )

    def _next_serial(self, devices: str, values: tuple[Any, ...]) -> None:
        """Bring the serial of the devices that the question gives up by one; inside a change.

        What a desired state says of purges changes only here, so that one serial has one content: what the
        device has reported to have applied is no longer named, and up to `apps_max` others are.
        """
        execute = self._database.execute
        applied = "SELECT applied FROM devices WHERE devices.device = purges.device"
        refused = "SELECT device FROM lanes WHERE refused != ''"
        execute(
            f"DELETE FROM purges WHERE device IN ({devices}) AND device NOT IN ({refused}) "  # noqa: S608
            f"AND serial BETWEEN 1 AND ({applied})",
            values,
        )
        execute(f"UPDATE devices SET serial = serial + 1 WHERE device IN ({devices})", values)  # noqa: S608
        places = "row_number() OVER (PARTITION BY device ORDER BY number) AS place"
        first = f"SELECT number, {places} FROM purges WHERE device IN ({devices})"  # noqa: S608
        serial = "SELECT serial FROM devices WHERE devices.device = purges.device"
        named = f"SELECT number FROM ({first}) WHERE place <= ?"  # noqa: S608
        execute(
            f"UPDATE purges SET serial = ({serial}) WHERE serial = 0 AND number IN ({named})",  # noqa: S608
            (*values, LANE_LIMITS.apps_max),
        )

    def leave(self, instance: str) -> None:
        """Take the instance from all of its devices: what they had to send is in the log, or is given up."""
        with self._change():
            self._move(instance, "left")

    def enter(self, instance: str, state: State, why: str = "") -> bool:
        """Note a state that the instance has come to; whether that is news. An instance that has ended, or is
        being killed, does not go back.
        """
        with self._change() as database:
            found = self._instance(instance)
            if found is None or (found.state, found.why) == (state, why) or found.state.is_over:
                return False
            if found.wanted is Wanted.KILLED and state not in (State.DRAINING, State.ENDED):
                return False
            database.execute(
                "UPDATE instances SET state = ?, why = ?, changed_us = ? WHERE instance = ?",
                (state, why, self._now_us(), instance),
            )
        return True

    def forget(self, instance: str) -> None:
        """Drop an instance that has ended, with its reports; its number stays used.

        The devices that it was ever given are told to remove what they keep of it, but for those that were
        retired.
        """
        with self._change() as database:
            its = "FROM assignments JOIN devices USING (device) WHERE instance = ? AND NOT retired"
            database.execute(
                f"INSERT INTO purges (device, instance, serial) SELECT device, instance, 0 {its}",
                (instance,),
            )
            self._next_serial(f"SELECT device {its}", (instance,))
            for table in ("reports", "assignments", "instances"):
                database.execute(f"DELETE FROM {table} WHERE instance = ?", (instance,))  # noqa: S608

    def replay(self, name: str) -> Instance:
        """Begin the app's next run; raises `NotFoundError`, and `ConflictError` where it was killed or sends
        to devices while it runs. One that has ended by itself is run again to its end.
        """
        with self._change() as database:
            instance = self.app(name)
            if instance.wanted is Wanted.KILLED:
                raise ConflictError(f"app {name} is {instance.state}: submit it again instead")
            if instance.outline.down and not instance.state.has_whole_log:
                raise ConflictError(
                    f"app {name} sends to devices, and a replay while it runs would send all of it twice: "
                    "replay it when it has ended, or submit the flow under another name"
                )
            database.execute(
                "UPDATE instances SET run = run + 1, state = ?, why = '', changed_us = ? WHERE instance = ?",
                (
                    State.REPLAYING if instance.state.has_whole_log else instance.state,
                    self._now_us(),
                    instance.instance,
                ),
            )
        return self.instance(instance.instance)

    def resume(self, name: str) -> Instance:
        """Have the app go on where the Spark host has put it out, or could not take it up.

        Raises `NotFoundError`, and `ConflictError` where it has not failed.
        """
        with self._change() as database:
            instance = self.app(name)
            if instance.state is not State.FAILED:
                raise ConflictError(f"app {name} is {instance.state}: only one that has failed is resumed")
            database.execute(
                "UPDATE instances SET attempt = attempt + 1, state = ?, why = '', changed_us = ? "
                "WHERE instance = ?",
                (State.STARTING, self._now_us(), instance.instance),
            )
        return self.instance(instance.instance)

    def update(self, name: str, instance: str, outline: Outline) -> Instance:
        """Have the app go on with this code, from its state; its devices are told. The outline that it had is
        the former one of `outline` from then on.

        Raises `NotFoundError`, and `ConflictError` where the app is another instance by now, or ends.
        """
        with self._change() as database:
            found = self.app(name)
            if found.instance != instance or found.wanted is Wanted.KILLED or found.state.has_whole_log:
                raise ConflictError(f"app {name} is {found.state}: only one that is to run is updated")
            kept = replace(outline, former=replace(found.outline, former=None))
            database.execute(
                "UPDATE instances SET outline = ?, attempt = attempt + 1, state = ?, why = '', "
                "changed_us = ? WHERE instance = ?",
                (_text(kept), State.STARTING, self._now_us(), instance),
            )
            database.execute("DELETE FROM reports WHERE instance = ?", (instance,))
            told = "SELECT device FROM assignments WHERE instance = ? AND state = 'wanted'"
            self._next_serial(told, (instance,))
        return self.instance(instance)

    def report(self, device: str, serial: int, reports: Iterable[Report]) -> None:
        """Note what a device says of itself; what it says of an older serial than before is dropped."""
        with self._change() as database:
            known = self._device(device)
            if known is None or known.retired or serial < known.applied:
                return
            database.execute(
                "UPDATE devices SET applied = ?, seen_us = ? WHERE device = ?",
                (min(serial, known.serial), self._now_us(), device),
            )
            self._tell_more(device)
            for one in reports:
                self._note_report(device, serial, one)

    def heard(self, device: str, report: bytes, serial: int, reports: Iterable[Report]) -> None:
        """Note a report of a device's control lane, newer than any before: as it came, the serial that is
        applied, and what it says of each instance.
        """
        with self._change() as database:
            known = self._device(device)
            if known is None or known.retired:
                return
            database.execute(
                "UPDATE devices SET applied = ?, seen_us = ? WHERE device = ?",
                (min(serial, known.serial), self._now_us(), device),
            )
            database.execute(
                "INSERT INTO lanes VALUES (?1, ?2, '') ON CONFLICT (device) DO UPDATE SET report = ?2",
                (device, report),
            )
            self._tell_more(device)
            for one in reports:
                self._note_report(device, serial, one)

    def _note_report(self, device: str, serial: int, one: Report) -> None:
        """Keep what a device says of an instance that it was given; inside a change."""
        if self._is_assigned(one.instance, device):
            self._database.execute(
                "INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?, ?, ?, ?)",
                (device, one.instance, one.state, one.why, one.version, serial, _text(one.lacks)),
            )

    def _tell_more(self, device: str) -> None:
        """Give the device its next desired state where purges wait for room that its report has made."""
        waiting = self._rows("SELECT 1 FROM purges WHERE device = ? AND serial = 0 LIMIT 1", (device,))
        done = self._rows(
            "SELECT 1 FROM purges JOIN devices USING (device) WHERE device = ? "
            "AND purges.serial BETWEEN 1 AND applied LIMIT 1",
            (device,),
        )
        if waiting and done:
            self._next_serial("SELECT ?", (device,))

    def refuse_device(self, device: str, why: str) -> None:
        """Send the device nothing until `accept_device`: it knows a later desired state than this store."""
        with self._change() as database:
            database.execute(
                "INSERT INTO lanes VALUES (?1, x'', ?2) ON CONFLICT (device) DO UPDATE SET refused = ?2",
                (device, why),
            )

    def accept_device(self, name: str, applied: int) -> Device:
        """Have a refused device take what this store wants, under a serial above `applied`, the one that it
        has reported. Raises `NotFoundError`.
        """
        with self._change() as database:
            device = self.active_device(name)
            database.execute("UPDATE lanes SET refused = '' WHERE device = ?", (name,))
            serial = max(device.serial, applied) + 1
            database.execute("UPDATE devices SET serial = ? WHERE device = ?", (serial, name))
            database.execute("UPDATE purges SET serial = ? WHERE device = ? AND serial > 0", (serial, name))
        return self.device(name)

    def lanes(self) -> dict[str, tuple[int, str]]:
        """By device the serial of what it is to run, and why it is refused, empty for no reason."""
        question = "SELECT device, serial, ifnull(refused, '') FROM devices LEFT JOIN lanes USING (device)"
        return {row[0]: (row[1], row[2]) for row in self._rows(question)}

    def refusal(self, device: str) -> str:
        """Why the device is sent nothing, empty for no reason."""
        rows = self._rows("SELECT refused FROM lanes WHERE device = ?", (device,))
        return str(rows[0][0]) if rows else ""

    def last_report(self, device: str) -> bytes:
        """The newest report of the device's lane as it came, empty for none."""
        rows = self._rows("SELECT report FROM lanes WHERE device = ?", (device,))
        return bytes(rows[0][0]) if rows else b""

    @property
    def changes(self) -> int:
        """Goes up with each change of anything, as long as the store is open."""
        return self._database.total_changes

    def _is_assigned(self, instance: str, device: str) -> bool:
        found = self._database.execute(
            "SELECT 1 FROM assignments WHERE instance = ? AND device = ?", (instance, device)
        )
        return found.fetchone() is not None

    # Questions

    def app(self, name: str) -> Instance:
        """The app's newest instance; raises `NotFoundError`."""
        with translated(StoreError, self._subject):
            row = self._database.execute("SELECT instance FROM apps WHERE name = ?", (name,)).fetchone()
        found = None if row is None else self._instance(row[0])
        if found is None:
            raise NotFoundError(f"there is no app {name}: see gear list")
        return found

    def instance(self, instance: str) -> Instance:
        """The instance of this name; raises `NotFoundError`."""
        found = self._instance(instance)
        if found is None:
            raise NotFoundError(f"there is no instance {instance}: see gear list")
        return found

    def _instance(self, instance: str) -> Instance | None:
        rows = self._rows("SELECT * FROM instances WHERE instance = ?", (instance,))
        return next((_read(Instance, row) for row in rows), None)

    def instances(self, wanted: Wanted | None = None) -> list[Instance]:
        """All instances that have not ended or are to be purged, by name; or those with this wanted."""
        rows = self._rows(
            "SELECT * FROM instances WHERE (state != 'ended' OR purge) AND wanted = ifnull(?, wanted) "
            "ORDER BY instance",
            (wanted,),
        )
        return [_read(Instance, row) for row in rows]

    def every_instance(self) -> list[Instance]:
        """All instances, those that have ended among them, by name."""
        return [_read(Instance, row) for row in self._rows("SELECT * FROM instances ORDER BY instance")]

    def apps(self, limit: int, after: str) -> tuple[list[Instance], str | None]:
        """The newest instance of each app, by the app's name, from behind `after`; and where to go on."""
        rows = self._rows(
            "SELECT instances.* FROM apps JOIN instances USING (instance) WHERE apps.name > ? "
            "ORDER BY apps.name LIMIT ?",
            (after, limit + 1),
        )
        found = [_read(Instance, row) for row in rows]
        return found[:limit], found[limit - 1].name if len(found) > limit else None

    def device(self, name: str) -> Device:
        """The device of this name, one that was retired, too; raises `NotFoundError`."""
        found = self._device(name)
        if found is None:
            raise NotFoundError(f"there is no device {name}: see gear device ls")
        return found

    def active_device(self, name: str) -> Device:
        """The device of this name; raises `NotFoundError`, also for one that was retired."""
        found = self.device(name)
        if found.retired:
            raise NotFoundError(f"device {name} was retired: gear device add {name} takes it back")
        return found

    def _device(self, name: str) -> Device | None:
        rows = self._rows("SELECT * FROM devices WHERE device = ?", (name,))
        return next((_read(Device, row) for row in rows), None)

    def devices(self, limit: int, after: str, selector: str = "all") -> tuple[list[Device], str | None]:
        """Devices that the selector matches, by name, from behind `after`; and where to go on."""
        chosen, found = parse_selector(selector), list[Device]()
        for device in self.all_devices(after):
            if chosen.matches(device.device, device.labels):
                found.append(device)
            if len(found) > limit:
                return found[:limit], found[limit - 1].device
        return found, None

    def all_devices(self, after: str = "") -> Iterator[Device]:
        """Every device by name, from behind `after`."""
        while rows := self._rows(
            "SELECT * FROM devices WHERE device > ? ORDER BY device LIMIT ?", (after, PAGE_MAX)
        ):
            for row in rows:
                yield _read(Device, row)
            after = rows[-1][0]

    def assigned(self, instance: str) -> dict[str, str]:
        """The devices that an instance was ever given, each with `wanted`, `draining` or `left`."""
        rows = self._rows(
            "SELECT device, state FROM assignments WHERE instance = ? ORDER BY device", (instance,)
        )
        return dict(rows)

    def lacking(self, instance: str) -> dict[str, tuple[str, ...]]:
        """By device the sources of the instance that are not for it, where there are such."""
        rows = self._rows(
            "SELECT device, lacks FROM assignments WHERE instance = ? AND lacks != '[]'", (instance,)
        )
        return {device: tuple(msgspec.json.decode(lacks)) for device, lacks in rows}

    def wanted_on(self, device: str) -> list[tuple[Instance, bool]]:
        """What a device is to run, by instance and as the device is told it, and whether it is only to be
        drained.
        """
        rows = self._rows(
            "SELECT instances.*, assignments.lacks, assignments.state FROM assignments "
            "JOIN instances USING (instance) WHERE device = ? AND assignments.state != 'left' "
            "ORDER BY instance",
            (device,),
        )
        return [
            (on_device(_read(Instance, row), device, msgspec.json.decode(lacks)), state == "draining")
            for *row, lacks, state in rows
        ]

    def purged_on(self, device: str) -> list[str]:
        """The purged instances that the device's desired state names: it removes what it keeps of them."""
        rows = self._rows(
            "SELECT instance FROM purges WHERE device = ? AND serial > 0 ORDER BY number", (device,)
        )
        return [row[0] for row in rows]

    def reports(self, instance: str) -> dict[str, Report]:
        """What devices have said of the instance, by device."""
        rows = self._rows(
            "SELECT device, instance, state, why, version, serial, lacks FROM reports WHERE instance = ?",
            (instance,),
        )
        return {
            device: Report(device, name, state, why, version, serial, tuple(msgspec.json.decode(lacks)))
            for device, name, state, why, version, serial, lacks in rows
        }

    def _rows(self, question: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with translated(StoreError, self._subject):
            return self._database.execute(question, values).fetchall()

    def _count(self, table: str) -> int:
        return int(self._rows(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _read(kind: type[T], row: Sequence[Any]) -> T:
    fields = dict(zip(kind.__struct_fields__, row, strict=True))
    for name in _JSON:
        if name in fields:
            fields[name] = msgspec.json.decode(fields[name])
    return msgspec.convert(fields, kind, strict=False)
