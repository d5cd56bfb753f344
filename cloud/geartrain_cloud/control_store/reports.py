"""What devices say: the reports of their control lanes, and which lanes are refused.

Between the control lane and the store. Guarantees: only what a device says of an instance that it was given
is kept. A lane that is refused stays so until a person accepts the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from geartrain.errors.reason import Reason
from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.desired import Desired
from geartrain_cloud.control_store.devices import Devices
from geartrain_cloud.control_store.model import Device, Report

_OF = """
WITH outlines AS (
    SELECT revision AS number, outline FROM instances WHERE instance = ?1
    UNION ALL SELECT number, outline FROM revisions WHERE instance = ?1
    UNION ALL SELECT number, json_extract(runs, '$.outline') FROM canaries WHERE instance = ?1),
ran AS (
    SELECT value AS revision, max(number) AS number
    FROM outlines, json_each(json_extract(outline, '$.revision', '$.former.revision'))
    GROUP BY value)
SELECT device, instance, state, why, version, serial, lacks, cut, revision, reasons, ifnull(number, 0)
FROM reports LEFT JOIN ran USING (revision) WHERE instance = ?1
"""
"""Reports of an instance; ran: by their hashes, the numbers of its revisions, also as they were before they
got other code.
"""


_decode_reasons = msgspec.json.Decoder(tuple[Reason, ...]).decode


class Reports:
    """Those of all devices; `now_us` tells the wall clock, microseconds."""

    def __init__(
        self, database: ControlDatabase, devices: Devices, desired: Desired, now_us: Callable[[], int]
    ) -> None:
        self._database, self._devices, self._desired, self._now_us = database, devices, desired, now_us

    # Changes

    def heard(self, device: str, report: bytes, serial: int, reports: Iterable[Report]) -> None:
        """Note a report of a device's control lane, newer than any before: as it came, the serial that is
        applied, and what it says of each instance.
        """
        with self._database.change() as database:
            known = self._devices.find(device)
            if known is None:
                return
            if known.retired:  # all that it may still say is that it removed what it was told to
                database.execute(
                    "UPDATE devices SET applied = ?1 WHERE device = ?2 AND applied < ?1 "
                    "AND EXISTS (SELECT 1 FROM purges WHERE device = ?2)",
                    (min(serial, known.serial), device),
                )
                self._desired.go_on(device)
                return
            database.execute(
                "UPDATE devices SET applied = ?, seen_us = ? WHERE device = ?",
                (min(serial, known.serial), self._now_us(), device),
            )
            database.execute(
                "INSERT INTO lanes VALUES (?1, ?2, '') ON CONFLICT (device) DO UPDATE SET report = ?2",
                (device, report),
            )
            self._desired.go_on(device)
            for one in reports:
                if self._desired.is_assigned(one.instance, device):
                    database.execute(
                        "INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (
                            *(device, one.instance, one.state, one.why, one.version, serial),
                            *(as_text(one.lacks), one.cut, one.revision, as_text(one.reasons)),
                        ),
                    )

    def refuse(self, device: str, why: str) -> None:
        """Send the device nothing until `accept`: it knows a later desired state than this store."""
        with self._database.change() as database:
            database.execute(
                "INSERT INTO lanes VALUES (?1, x'', ?2) ON CONFLICT (device) DO UPDATE SET refused = ?2",
                (device, why),
            )

    def accept(self, name: str, applied: int) -> Device:
        """Have a refused device take what this store wants, under a serial above `applied`, the one that it
        has reported. Raises `NotFoundError`.
        """
        with self._database.change() as database:
            device = self._devices.active(name)
            database.execute("UPDATE lanes SET refused = '' WHERE device = ?", (name,))
            self._desired.lift(name, max(device.serial, applied) + 1)
        return self._devices.get(name)

    def drop(self, instance: str) -> None:
        """Forget what devices have said of the instance."""
        with self._database.change() as database:
            database.execute("DELETE FROM reports WHERE instance = ?", (instance,))

    # Questions

    def lanes(self) -> dict[str, tuple[int, str]]:
        """By device the serial of what it is to run, and why it is refused, empty for no reason."""
        question = "SELECT device, serial, ifnull(refused, '') FROM devices LEFT JOIN lanes USING (device)"
        return {row[0]: (row[1], row[2]) for row in self._database.rows(question)}

    def refusal(self, device: str) -> str:
        """Why the device is sent nothing, empty for no reason."""
        rows = self._database.rows("SELECT refused FROM lanes WHERE device = ?", (device,))
        return str(rows[0][0]) if rows else ""

    def last(self, device: str) -> bytes:
        """The newest report of the device's lane as it came, empty for none."""
        rows = self._database.rows("SELECT report FROM lanes WHERE device = ?", (device,))
        return bytes(rows[0][0]) if rows else b""

    def of(self, instance: str) -> dict[str, Report]:
        """What devices have said of the instance, by device."""
        rows = self._database.rows(_OF, (instance,))
        return {
            device: Report(
                *(device, name, state, why, version, serial),
                lacks=tuple(msgspec.json.decode(lacks)),
                cut=cut,
                revision=revision,
                number=number,
                reasons=_decode_reasons(reasons),
            )
            for device, name, state, why, version, serial, lacks, cut, revision, reasons, number in rows
        }
