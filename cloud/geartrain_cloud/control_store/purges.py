"""What is to be erased of devices, and how far that is: the journal of purges in the control store.

Under `purging`, which does the work step by step. Guarantees: a purge begins in the transaction that retires
its device. One is under way at a time. Each step is durable before the next one begins, so that
whoever starts control again goes on with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.desired import Desired
from geartrain_cloud.control_store.devices import Devices
from geartrain_cloud.control_store.errors import ConflictError

Step = Literal["stopping", "replaying", "done", "failed"]
"""stopping: ingest and the Spark host end, and what the device sent is erased; replaying: apps make their
tables anew without it.
"""
OVER: tuple[Step, ...] = ("done", "failed")
_COLUMNS = "device, step, asked_us, done_us, asked_by, runs, kept, rows, quarantined, why"


class Purge(msgspec.Struct, frozen=True):
    """One of a device. asked_us, done_us: when it was asked for, and was over, 0 for not yet; asked_by: the
    name of the token; runs: by instance the run that makes its tables anew, 0 before it is begun; kept: the
    instances whose tables stay as they are; why: it failed.
    """

    device: str
    step: Step
    asked_us: int
    done_us: int
    asked_by: str
    runs: dict[str, int]
    kept: tuple[str, ...]
    rows: int
    quarantined: int
    why: str


class Purges:
    """Those of one control store."""

    def __init__(self, database: ControlDatabase, devices: Devices, desired: Desired) -> None:
        self._database, self._devices, self._desired = database, devices, desired

    def begin(self, wanted: Purge) -> Purge:
        """Retire the device, have it remove what it keeps of apps, and note the purge.

        Raises `NotFoundError`, and `ConflictError` while a purge is under way, or for the platform's own.
        """
        with self._database.change() as database:
            other = self.under_way()
            if other is not None:
                raise ConflictError(f"what device {other.device} sent is being erased: wait until it is done")
            if not self._devices.get(wanted.device).retired:
                self._devices.retire(wanted.device)
            self._desired.purge_device(wanted.device)
            values = (
                *(wanted.device, wanted.step, wanted.asked_us, wanted.done_us, wanted.asked_by),
                *(as_text(wanted.runs), as_text(wanted.kept), wanted.rows, wanted.quarantined, wanted.why),
            )
            database.execute(
                f"INSERT OR REPLACE INTO device_purges ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                values,
            )
        return wanted

    def enter(self, device: str, step: Step, *, done_us: int = 0, why: str = "") -> None:
        """Note the step to which the purge of a device has come."""
        with self._database.change() as database:
            database.execute(
                "UPDATE device_purges SET step = ?, done_us = ?, why = ? WHERE device = ?",
                (step, done_us, why, device),
            )

    def replays(self, device: str, runs: Mapping[str, int]) -> None:
        """Note the runs that make tables anew, and that nothing is left but these."""
        with self._database.change() as database:
            database.execute(
                "UPDATE device_purges SET step = 'replaying', runs = ? WHERE device = ?",
                (as_text(dict(runs)), device),
            )

    def forget_said(self, device: str, apps: Sequence[str]) -> None:
        """Forget the sentences that the device, and `apps`, have said: a value may stand in one."""
        with self._database.change() as database:
            database.execute("DELETE FROM reports WHERE device = ?", (device,))
            database.execute("UPDATE lanes SET report = x'' WHERE device = ?", (device,))
            database.execute(
                "UPDATE events SET said = json_set(said, '$.why', '') WHERE "
                "ifnull(json_extract(said, '$.why'), '') != '' "
                "AND (device = ? OR app IN (SELECT value FROM json_each(?)))",
                (device, as_text(list(apps))),
            )

    def has_heard(self, device: str) -> None:
        """Note that nothing of a device is left that it would have to remove itself."""
        with self._database.change() as database:
            database.execute("DELETE FROM purges WHERE device = ?", (device,))

    # Questions

    def under_way(self) -> Purge | None:
        """The one that is not over."""
        return self._one("step NOT IN (?, ?)", OVER)

    def of(self, device: str) -> Purge | None:
        """The last one of a device."""
        return self._one("device = ?", (device,))

    def _one(self, which: str, values: Sequence[Any]) -> Purge | None:
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM device_purges WHERE {which}", values)  # noqa: S608
        if not rows:
            return None
        fields = dict(zip(_COLUMNS.split(", "), rows[0], strict=True))
        for name in ("runs", "kept"):
            fields[name] = msgspec.json.decode(fields[name])
        return msgspec.convert(fields, Purge)


def device_of_purge(database: sqlite3.Connection) -> str:
    """The device of the purge that is under way in a control store of any release, "" for none."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'device_purges'").fetchone():
        return ""
    found = database.execute("SELECT device FROM device_purges WHERE step NOT IN (?, ?)", OVER).fetchone()
    return str(found[0]) if found else ""
