"""The devices of a platform: added, labelled and retired; and read in pages.

Between REST and what devices are to run. Guarantees: a device that is labelled loses no app. One that was
retired runs nothing, and comes back under the same name with a later serial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from geartrain.fleet.labels import check_device, check_labels
from geartrain.fleet.selectors import (
    CLOUD_DEVICE,
    CLOUD_LABELS,
    IN_CLOUD,
    Selector,
    is_cloud_device,
    parse_selector,
)
from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.desired import Desired
from geartrain_cloud.control_store.errors import ConflictError, NotFoundError
from geartrain_cloud.control_store.model import Device

HEARS_US = 86_400_000_000
"""So long a device that was purged keeps its certificate, so that it can hear of it."""
DEVICES_MAX = 100_000
PAGE_MAX = 1_000


class Devices:
    """Those that were added."""

    def __init__(self, database: ControlDatabase, desired: Desired) -> None:
        self._database, self._desired = database, desired

    # Changes

    def add(self, name: str, labels: Mapping[str, str], *, local: bool = False) -> Device:
        """Add a device, or take one back that was retired; apps whose selector matches get it.

        Raises `SelectorError`, and `ConflictError` where it is there, or has the name or a label of the
        platform's own.
        """
        check_device(name)
        _check_not_cloud(name, labels)
        device = Device(name, check_labels(labels), local)
        with self._database.change():
            known = self.find(name)
            if known is not None and known.retired and self._desired.still_holds(name):
                raise ConflictError(
                    f"device {name} has not said that it removed what it was told to: let it hear that, or "
                    "add it under another name"
                )
            if known is not None and not known.retired:
                raise ConflictError(f"device {name} is there already: see gear device show {name}")
            if known is None and self._is_full():
                raise ConflictError(f"the platform has {DEVICES_MAX:,} devices, which is all that it takes")
            self._enter(device, known)
            self._desired.join(device)
        return self.get(name)

    def have_cloud(self) -> None:
        """Have the platform's own device, which this machine runs, from the first app on that needs it.

        Raises `ConflictError` where a device of the fleet has its name.
        """
        own = Device(CLOUD_DEVICE, dict(CLOUD_LABELS), local=True)
        with self._database.change():
            known = self.find(CLOUD_DEVICE)
            if known is not None and is_cloud_device(known.device, known.labels):
                return
            if known is not None and not known.retired:
                raise ConflictError(
                    f"device {CLOUD_DEVICE} of your fleet has the name of the platform's own, which reads "
                    "sources in the cloud: retire it, and add it under another name"
                )
            self._enter(own, known)

    def _enter(self, device: Device, known: Device | None) -> None:
        serial = 1 if known is None else known.serial + 1
        with self._database.change() as database:
            database.execute(
                "INSERT OR REPLACE INTO devices VALUES (?, ?, ?, 0, ?, ?, ?)",
                (
                    device.device,
                    as_text(device.labels),
                    device.local,
                    serial,
                    known.applied if known else 0,
                    0,
                ),
            )

    def label(self, name: str, labels: Mapping[str, str | None]) -> Device:
        """Set labels, or take those away that are None; apps whose selector matches now get the device, and
        none loses it. Raises `SelectorError`, `NotFoundError`, and `ConflictError` for the platform's own.
        """
        with self._database.change() as database:
            device = self.active(name)
            _check_not_cloud(name, labels)
            merged = {**device.labels, **{key: value for key, value in labels.items() if value is not None}}
            kept = {key: value for key, value in merged.items() if labels.get(key, "") is not None}
            database.execute(
                "UPDATE devices SET labels = ? WHERE device = ?", (as_text(check_labels(kept)), name)
            )
            labelled = self.get(name)
            self._desired.give_sources(labelled)
            self._desired.join(labelled)
        return self.get(name)

    def retire(self, name: str) -> Device:
        """Take the device out of service and of all apps; raises `NotFoundError`, and `ConflictError` for the
        platform's own.
        """
        with self._database.change() as database:
            device = self.active(name)
            if is_cloud_device(name, device.labels):
                raise ConflictError(f"{name} is the platform's own device: kill the apps that it reads for")
            database.execute("UPDATE devices SET retired = 1 WHERE device = ?", (name,))
            self._desired.clear(name)
        return self.get(name)

    def _is_full(self) -> bool:
        return bool(self._database.rows("SELECT count(*) >= ? FROM devices", (DEVICES_MAX,))[0][0])

    # Questions

    def get(self, name: str) -> Device:
        """The device of this name, one that was retired, too; raises `NotFoundError`."""
        found = self.find(name)
        if found is None:
            raise NotFoundError(f"there is no device {name}: see gear device ls")
        return found

    def active(self, name: str) -> Device:
        """The device of this name; raises `NotFoundError`, also for one that was retired."""
        found = self.get(name)
        if found.retired:
            raise NotFoundError(f"device {name} was retired: gear device add {name} takes it back")
        return found

    def is_to_hear(self, name: str, now_us: int) -> bool:
        """Whether a device that was retired has still to hear what it is to remove, and is given the time."""
        asked = self._database.rows(
            "SELECT 1 FROM device_purges WHERE device = ? AND asked_us > ?", (name, now_us - HEARS_US)
        )
        return bool(asked) and self._desired.still_holds(name)

    def find(self, name: str) -> Device | None:
        """The device of this name, one that was retired, too; None for none."""
        return next(
            iter(self._database.read(Device, "SELECT * FROM devices WHERE device = ?", (name,))), None
        )

    def page(self, limit: int, after: str, selector: str = "all") -> tuple[list[Device], str | None]:
        """Devices that the selector matches, by name, from behind `after`; and where to go on. `all`
        is all of them, with the platform's own.
        """
        chosen, found = parse_selector(selector), list[Device]()
        for device in self.every(after):
            if chosen == Selector() or chosen.matches(device.device, device.labels):
                found.append(device)
            if len(found) > limit:
                return found[:limit], found[limit - 1].device
        return found, None

    def every(self, after: str = "") -> Iterator[Device]:
        """Every device by name, from behind `after`."""
        question = "SELECT * FROM devices WHERE device > ? ORDER BY device LIMIT ?"
        while found := self._database.read(Device, question, (after, PAGE_MAX)):
            yield from found
            after = found[-1].device


def _check_not_cloud(name: str, labels: Mapping[str, str | None]) -> None:
    """Raise `ConflictError` for the platform's own device, and for its label."""
    if any(labels.get(key) == value for key, value in CLOUD_LABELS.items()):
        raise ConflictError(f"label {IN_CLOUD} is that of the platform's own device: use another")
    if name == CLOUD_DEVICE:
        raise ConflictError(f"{name} is the name of the platform's own device: use another")
