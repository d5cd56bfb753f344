"""The secrets of apps: what is kept of them, and which device is to have which.

Between REST and the control lane. Guarantees: values lie encrypted, and leave only sealed for one device, or
as private files of a device of this machine. The version of a secret goes up with each value, also after it
was removed. What a device is told of secrets changes together with its serial.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.secret_shelf import Place, SecretShelf
from geartrain.control.codec import decode_reported
from geartrain.control.limits import LANE_LIMITS
from geartrain.control.sealed import SPARK_PROCESS, binding
from geartrain.control.states import SECRETS, Reported, SealedSecret
from geartrain.fleet.labels import shown
from geartrain.printable import printable
from geartrain.revision import Revision
from geartrain_cloud.control_store.database import ControlDatabase
from geartrain_cloud.control_store.desired import Desired
from geartrain_cloud.control_store.errors import ConflictError, NotFoundError, StoreError
from geartrain_cloud.control_store.reports import Reports
from geartrain_cloud.control_store.sealing import KeptKey, seal
from geartrain_cloud.errors import CertificateError
from geartrain_cloud.sinks.secrets import ASKING

_LOG = logging.getLogger("geartrain.control")

OF_APP_MAX = 16
SECRETS_MAX = 10_000
"""Of all apps, with those that were removed, of which the version is kept."""
OF_DEVICE_BYTES_MAX = 64 << 10
"""All values of one device: its desired state has to hold them, sealed."""
WHY_CHARS_MAX = 400
DEVICES_A_ROUND = 50
"""For so many devices are secrets sealed at a time."""
LOOK_S, RETRY_S = 1.0, 60.0
"""Seconds between two looks at what is wanted, and between two tries of what could not be sealed."""
NO_ROOM = (
    f"the device's apps have more than {LANE_LIMITS.secrets_max} secrets, or {OF_DEVICE_BYTES_MAX:,} bytes "
    "of them"
)

NOT_SEALED = "the platform cannot seal it for this device: its log says why"

_WANTED = """
SELECT DISTINCT assignments.device, secrets.app, secrets.name, secrets.version, length(value), local,
    ifnull(certificate, x'')
FROM secrets JOIN instances ON instances.name = secrets.app JOIN assignments USING (instance)
JOIN devices USING (device) LEFT JOIN certificates USING (device)
WHERE assignments.state != 'left' AND NOT retired AND length(value) > 0
"""


_WANTED_HERE = """
SELECT DISTINCT secrets.app, secrets.name, secrets.version, length(value), outline
FROM secrets JOIN instances ON instances.name = secrets.app WHERE state != 'ended' AND length(value) > 0
ORDER BY secrets.app, secrets.name
"""


class Secret(msgspec.Struct, frozen=True):
    """A secret without its value. set_us: when, on the platform's wall clock."""

    app: str
    name: str
    version: int
    set_us: int


class HeldBy(msgspec.Struct, frozen=True):
    """A device that is to have a secret. version: that it has, 0 for none; why: it has not the newest one."""

    device: str
    version: int
    why: str


class _Wanted(msgspec.Struct, frozen=True):
    """What a device is to have: as a row of `_WANTED`."""

    device: str
    app: str
    name: str
    version: int
    length: int
    local: bool
    certificate: bytes

    @property
    def place(self) -> Place:
        return self.app, self.name

    @property
    def shown(self) -> bytes:
        """What stands for the certificate, empty for none."""
        return hashlib.sha256(self.certificate).digest() if self.certificate else b""


class _Told(msgspec.Struct, frozen=True):
    """What a device is told of a secret. certificate: a digest of the one that it is for; is_sealed: whether
    the value is there.
    """

    version: int
    certificate: bytes
    is_sealed: bool


_NEVER = _Told(0, b"", is_sealed=False)


class Secrets:
    """Those of one platform."""

    def __init__(
        self,
        database: ControlDatabase,
        desired: Desired,
        reports: Reports,
        key_file: Path,
        now_us: Callable[[], int],
    ) -> None:
        """key_file: of the values; now_us: the wall clock, microseconds."""
        self._database, self._desired, self._reports, self._now_us = database, desired, reports, now_us
        self._key = KeptKey(key_file)

    # What a person asks for

    def digest(self, value: str) -> str:
        """What stands for a value among the answers that are kept; raises `StoreError`."""
        self._key.make()
        return self._key.digest(value.encode())

    def set(self, app: str, name: str, value: str) -> Secret:
        """Have this value from now on; raises `ConflictError` for too many secrets."""
        self._key.make()
        with self._database.change() as database:
            counts = database.execute(
                "SELECT count(*), total(app = ?1 AND length(value) > 0 AND name != ?2) FROM secrets",
                (app, name),
            ).fetchone()
            if counts[0] >= SECRETS_MAX or counts[1] >= OF_APP_MAX:
                raise ConflictError(
                    f"app {app} has {counts[1]:.0f} secrets and the platform {counts[0]:,}, which is all "
                    "that they may have: gear secret rm"
                )
            now_us = self._now_us()
            rows = self._database.rows("SELECT version FROM secrets WHERE app = ? AND name = ?", (app, name))
            # By the clock: a platform that was restored from a copy goes on above what devices have.
            version = max(now_us // 1_000_000, int(rows[0][0]) + 1 if rows else 1)
            kept = self._key.hide(value.encode(), app, name, version)
            database.execute(
                "INSERT OR REPLACE INTO secrets VALUES (?, ?, ?, ?, ?)", (app, name, version, now_us, kept)
            )
        return Secret(app, name, version, now_us)

    def remove(self, app: str, name: str) -> Secret:
        """Have no value any more, here and on devices; raises `NotFoundError`."""
        with self._database.change() as database:
            found = self._database.rows(
                "SELECT version, set_us FROM secrets WHERE app = ? AND name = ? AND length(value) > 0",
                (app, name),
            )
            if not found:
                raise NotFoundError(f"app {shown(app)} has no secret {shown(name)}: see gear secret ls")
            database.execute("UPDATE secrets SET value = x'' WHERE app = ? AND name = ?", (app, name))
        return Secret(app, name, *found[0])

    def page(self, limit: int, after: str, app: str) -> tuple[list[Secret], str | None]:
        """Secrets by app and name, from behind `after` (`app/name`), of one app where `app` names it; and
        where to go on.
        """
        behind = tuple(after.split("/", 1)) if "/" in after else (after, "")
        found = [
            Secret(*row)
            for row in self._database.rows(
                "SELECT app, name, version, set_us FROM secrets WHERE length(value) > 0 AND "
                "(app, name) > (?, ?) AND (?3 = '' OR app = ?3) ORDER BY app, name LIMIT ?4",
                (*behind, app, limit + 1),
            )
        ]
        last = found[limit - 1] if len(found) > limit else None
        return found[:limit], f"{last.app}/{last.name}" if last else None

    # Which device has what

    def heard(self, report: Reported) -> None:
        """Note with which certificate a device shows itself; in a change with its report."""
        if report.certificate:
            with self._database.change() as database:
                database.execute(
                    "INSERT INTO certificates VALUES (?1, ?2) ON CONFLICT (device) DO UPDATE "
                    "SET certificate = ?2 WHERE certificate != ?2",
                    (report.device, report.certificate),
                )

    def told(self, device: str) -> tuple[SealedSecret, ...]:
        """What a device's desired state says of secrets."""
        rows = self._database.rows(
            "SELECT app, name, version, sealed FROM sealed_secrets WHERE device = ? ORDER BY app, name",
            (device,),
        )
        return tuple(SealedSecret(*row) for row in rows)

    def wanted(self) -> dict[str, list[_Wanted]]:
        """What each device is to have, by device, in the order of their places."""
        found = defaultdict[str, list[_Wanted]](list)
        for row in self._database.rows(f"{_WANTED} ORDER BY device, secrets.app, secrets.name"):
            device, app, name, version, length, local, certificate = row
            found[device].append(_Wanted(device, app, name, version, length, bool(local), certificate))
        return found

    def wanted_here(self) -> list[_Wanted]:
        """What the Spark host is to have: the secrets of apps with sinks that may ask for some."""
        found = dict[Place, _Wanted]()
        for app, name, version, length, outline in self._database.rows(_WANTED_HERE):
            if _may_ask(outline):
                found[app, name] = _Wanted(SPARK_PROCESS, app, name, version, length, True, b"")
        return list(found.values())

    def sealed(self) -> dict[str, dict[Place, _Told]]:
        """What each device is told, by device and place."""
        found = defaultdict[str, dict[Place, _Told]](dict)
        for device, app, name, *rest in self._database.rows(
            "SELECT device, app, name, version, certificate, length(sealed) > 0 FROM sealed_secrets"
        ):
            found[device][app, name] = _Told(rest[0], rest[1], bool(rest[2]))
        return found

    def seal_for(
        self,
        device: str,
        wanted: list[_Wanted],
        known: Mapping[Place, _Told],
        point_of: Callable[[str, bytes], bytes],
    ) -> None:
        """Have a device be told of these secrets, and of no others.

        known: what it is told now; point_of: the key of a certificate that the device shows, raises
        `CertificateError`.
        """
        gone = known.keys() - {one.place for one in wanted}
        news = list[tuple[_Wanted, bytes]]()
        for one in wanted:
            is_other, lacks = _compared(one, known)
            if is_other or lacks:
                sealed = self._sealed(one, point_of)
                if is_other or sealed:
                    news.append((one, sealed))
        if not news and not gone:
            return
        with self._database.change() as database:
            for app, name in gone:
                database.execute(
                    "DELETE FROM sealed_secrets WHERE device = ? AND app = ? AND name = ?",
                    (device, app, name),
                )
            for one, sealed in news:
                database.execute(
                    "INSERT OR REPLACE INTO sealed_secrets VALUES (?, ?, ?, ?, ?, ?)",
                    (device, *one.place, one.version, one.shown, sealed),
                )
            self._desired.tell(device)

    def _sealed(self, one: _Wanted, point_of: Callable[[str, bytes], bytes]) -> bytes:
        """A value as the device gets it, empty where it cannot be sealed for it."""
        if not one.certificate:
            return b""
        try:
            point = point_of(one.device, one.certificate)
            return seal(self.value(one), point, binding(*one.place, one.device, one.version))
        except (CertificateError, StoreError) as error:
            _LOG.error(
                "secret %s of app %s is not sealed for device %s: %s", one.name, one.app, one.device, error
            )
            return b""

    def value(self, one: _Wanted) -> bytes:
        """What a secret is; raises `StoreError`."""
        rows = self._database.rows("SELECT value FROM secrets WHERE app = ? AND name = ?", one.place)
        return self._key.show(rows[0][0], *one.place, one.version)

    def held(self, secrets: Sequence[Secret], shelf: Callable[[str], SecretShelf]) -> list[list[HeldBy]]:
        """Of each secret, the devices that are to have it, those that have not the newest value first. shelf:
        of a device of this machine.
        """
        found: dict[Place, list[HeldBy]] = {(one.app, one.name): [] for one in secrets}
        every = self.wanted()
        if here := self.wanted_here():
            every[SPARK_PROCESS] = here
        for device, wanted in every.items():
            for one in wanted:
                if one.place in found:
                    found[one.place].append(self._held(device, one, wanted, shelf))
        return [
            sorted(found[one.app, one.name], key=lambda has: (has.version == one.version, has.device))
            for one in secrets
        ]

    def _held(
        self, device: str, one: _Wanted, wanted: list[_Wanted], shelf: Callable[[str], SecretShelf]
    ) -> HeldBy:
        if one.local:
            try:
                has = shelf(device).versions().get(one.place, 0)
            except OSError as error:
                return HeldBy(device, 0, f"its folder cannot be read: {error.strerror or error}")
            return HeldBy(device, has, "" if has == one.version else "control has not written it yet")
        raw = self._reports.last(device)
        report = decode_reported(raw) if raw else None
        if report is None:
            return HeldBy(device, 0, "it has not reported yet")
        said = next((s for s in report.secrets if (s.app, s.name) == one.place), None)
        if said is not None and said.version == one.version:
            return HeldBy(device, said.version, "")
        has, why = (said.version, said.why) if said else (0, "")
        if SECRETS not in report.can:
            why = (
                "its agent opens no secrets: it has not joined by a token, or is older: write the file there"
            )
        elif one not in fitting(wanted):
            why = NO_ROOM
        elif one.certificate and not any(s.sealed for s in self.told(device) if (s.app, s.name) == one.place):
            why = NOT_SEALED
        return HeldBy(device, has, printable(why, WHY_CHARS_MAX) or "it was not heard since")


@lru_cache(maxsize=1_000)
def _may_ask(outline: str) -> bool:
    """Whether an app, by its outline as the store keeps it, has sinks that may ask for secrets."""
    document = msgspec.json.decode(outline).get("document", "")
    steps = Revision.from_json(document).steps if document else ()
    return any(
        step.kind == "sink" and step.tier == "cloud" and step.options.get("sink") in ASKING for step in steps
    )


def fitting(wanted: list[_Wanted]) -> list[_Wanted]:
    """Those for which the desired state of one device has room: the first ones."""
    found, left = list[_Wanted](), OF_DEVICE_BYTES_MAX
    for one in wanted[: LANE_LIMITS.secrets_max]:
        left -= one.length
        if left < 0:
            break
        found.append(one)
    return found


def _compared(one: _Wanted, known: Mapping[Place, _Told]) -> tuple[bool, bool]:
    """Whether a device is to be told something else of a secret, and whether it could not be sealed yet."""
    told = known.get(one.place, _NEVER)
    is_other = (told.version, told.certificate) != (one.version, one.shown)
    return is_other, bool(one.shown) and not told.is_sealed


def _due(
    wanted: Mapping[str, list[_Wanted]], told: Mapping[str, dict[Place, _Told]], *, tries: bool
) -> tuple[list[str], bool]:
    """The devices that are to be told something else, and whether a secret of any could not be sealed.

    tries: those of which one could not be sealed are among them.
    """
    due, is_lacking = list[str](), False
    for device, ones in wanted.items():
        known = told.get(device, {})
        found = [_compared(one, known) for one in ones]
        lacks = any(lacking for _, lacking in found)
        is_lacking |= lacks
        is_other = any(other for other, _ in found) or known.keys() - {one.place for one in ones}
        if is_other or (tries and lacks):
            due.append(device)
    return due, is_lacking


class SecretRounds:
    """Brings the secrets that are wanted to devices; `round` is called every so often."""

    def __init__(
        self,
        secrets: Secrets,
        database: ControlDatabase,
        shelf: Callable[[str], SecretShelf],
        point_of: Callable[[str, bytes], bytes],
        monotonic_s: Callable[[], float],
    ) -> None:
        """shelf: of a device of this machine; point_of: as for `Secrets.seal_for`; monotonic_s: a clock."""
        self._secrets, self._database, self._shelf, self._point_of = secrets, database, shelf, point_of
        self._monotonic_s, self._changes = monotonic_s, -1
        self._again_s = self._retry_s = -math.inf
        self._on_shelves: dict[str, dict[Place, int]] = {}
        self._said: dict[str, str] = {}

    def round(self) -> None:
        """Do what is due, for some devices at a time; raises `StoreError`."""
        now_s, changes = self._monotonic_s(), self._database.changes
        if changes == self._changes or now_s < self._again_s:
            return
        wanted, told = self._secrets.wanted(), self._secrets.sealed()
        local = {device: ones for device, ones in wanted.items() if ones[0].local}
        done = [self._shelve(device, local.get(device, [])) for device in self._local_devices(local)]
        done.append(self._shelve(SPARK_PROCESS, self._secrets.wanted_here()))
        elsewhere = {device: fitting(wanted[device]) for device in sorted({*wanted, *told} - {*local})}
        tries = now_s >= self._retry_s
        if tries:
            self._retry_s = now_s + RETRY_S
        due, lacks = _due(elsewhere, told, tries=tries)
        with self._database.change():
            for device in due[:DEVICES_A_ROUND]:
                self._secrets.seal_for(device, elsewhere[device], told[device], self._point_of)
        self._again_s = now_s + (LOOK_S if len(due) <= DEVICES_A_ROUND else 0.0)
        self._changes = self._database.changes if all(done) and not due and not lacks else -1

    def _local_devices(self, local: dict[str, Any]) -> Iterator[str]:
        rows = self._database.rows("SELECT device FROM devices WHERE local ORDER BY device")
        yield from (row[0] for row in rows if row[0] in local or self._on_shelves.get(row[0], True))

    def _shelve(self, device: str, wanted: list[_Wanted]) -> bool:
        """Have a device of this machine have these and no others; whether it has."""
        versions = {one.place: one.version for one in wanted}
        if self._on_shelves.get(device) == versions:
            return True
        shelf, whys = self._shelf(device), list[str]()
        try:
            shelf.keep(versions)
            there = shelf.versions()
            for one in wanted:
                if there.get(one.place) != one.version:
                    whys.append(shelf.put(*one.place, one.version, self._secrets.value(one)))
        except (OSError, StoreError) as error:
            whys.append(str(error))
        why = next(filter(None, whys), "")
        if why and self._said.get(device) != why:
            _LOG.error("device %s: its secrets: %s", device, why)
        self._said[device] = why
        if not why:
            self._on_shelves[device] = versions
        return not why
