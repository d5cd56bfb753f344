"""Which program of the agent each device is to run, and which one it runs, as it says itself.

Beside apps: REST changes it, and the control lane tells devices. Guarantees: a device's serial goes up when
its wanted program changes, and only then. A wish for several devices is for all of them, or for none. Each
program that a device is to run, runs, or was to run before is in `used`, so that its archive stays.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from geartrain.control.states import INSTALLED_PROGRAM
from geartrain_cloud.control_store.database import ControlDatabase
from geartrain_cloud.control_store.desired import Desired
from geartrain_cloud.control_store.devices import Devices


class Program(msgspec.Struct, frozen=True):
    """Of one device. wanted: the hash of the program that it is to run, or `INSTALLED_PROGRAM`; empty to
    leave what it has; version: of Geartrain, in that program, empty for the installed one; former: what was
    wanted before; runs: what it says that it runs, empty for the program that it was installed with; serial:
    that of the first desired state which says `wanted`.
    """

    wanted: str = ""
    version: str = ""
    former: str = ""
    runs: str = ""
    serial: int = 0


class Programs:
    """Those of all devices."""

    def __init__(self, database: ControlDatabase, devices: Devices, desired: Desired) -> None:
        self._database, self._devices, self._desired = database, devices, desired

    # Changes

    def want(self, devices: Iterable[str], program: str, version: str) -> list[str]:
        """Have the devices run a program; those of which another one was wanted.

        program: its hash, or `INSTALLED_PROGRAM`; version: of Geartrain, for people. Raises `NotFoundError`,
        also for a device that was retired; then nothing has changed.
        """
        changed = []
        with self._database.change() as database:
            for name in sorted(set(devices)):
                self._devices.active(name)
                known = self.of(name)
                if known.wanted == program:
                    continue
                self._desired.tell(name)
                serial = self._devices.active(name).serial
                database.execute(
                    "INSERT INTO programs VALUES (?1, ?2, ?3, '', '', ?4) ON CONFLICT (device) DO UPDATE "
                    "SET former = wanted, wanted = ?2, version = ?3, serial = ?4",
                    (name, program, version, serial),
                )
                changed.append(name)
        return changed

    def heard(self, device: str, runs: str) -> None:
        """Note which program a device says that it runs."""
        if self.of(device).runs == runs:
            return
        with self._database.change() as database:
            database.execute(
                "INSERT INTO programs VALUES (?1, '', '', '', ?2, 0) ON CONFLICT (device) DO UPDATE "
                "SET runs = ?2",
                (device, runs),
            )

    # Questions

    def of(self, device: str) -> Program:
        """What is known of a device's program."""
        rows = self._database.rows(
            "SELECT wanted, version, former, runs, serial FROM programs WHERE device = ?", (device,)
        )
        return Program(*rows[0]) if rows else Program()

    def used(self) -> set[str]:
        """The programs that some device is to run, runs, or was to run before."""
        columns = (f"SELECT {name} FROM programs" for name in ("wanted", "former", "runs"))  # noqa: S608
        return {row[0] for row in self._database.rows(" UNION ".join(columns))} - {"", INSTALLED_PROGRAM}
