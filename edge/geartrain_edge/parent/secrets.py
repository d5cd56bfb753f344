"""The secrets that the platform sends to a joined device: which are to be opened, and which are to go.

Beside the apps, told by the control lane. A short-lived process opens what is sealed and writes the files, so
that the library for it stays out of the parent. Guarantees: no value is in the parent's memory. What cannot
be opened is reported with a sentence, and tried again with growing pauses, or at once when a secret or the
device's certificate is another.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.util import find_spec

import msgspec

from geartrain.adapters.secret_shelf import Place, SecretShelf
from geartrain.control.states import SealedSecret, SecretReport
from geartrain.errors import ConfigError
from geartrain.ports import Clock
from geartrain.printable import printable
from geartrain_edge.identity import Identity
from geartrain_edge.parent.config import DeviceConfig
from geartrain_edge.parent.short_process import said_by
from geartrain_edge.settings import SECRETS_FOLDER

_LOG = logging.getLogger("geartrain.parent")

LOOK_S = 60.0
"""Between two looks at the files and at the certificate, which is renewed now and then."""
PAUSE_S, PAUSE_S_MAX = 5.0, 3_600.0
OPEN_S_MAX = 120.0
"""How long opening may take."""
_MODULE = "geartrain_edge.joining.unseal"


class OpenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the process is to open. identity: the PEM file of the device's key and certificate; folder: of the
    device's secrets; device: its name.
    """

    identity: str
    folder: str
    device: str
    secrets: tuple[SealedSecret, ...]


class Opened(msgspec.Struct, frozen=True):
    """What it answers, as a line of JSON: by the order of the request why one is not there, empty where it
    is.
    """

    whys: tuple[str, ...]


class PlatformSecrets:
    """`HeldSecrets` of one device; `run` ends when it is cancelled."""

    def __init__(
        self, config: DeviceConfig, turn: asyncio.Lock, changed: asyncio.Event, clock: Clock
    ) -> None:
        """turn: held while a short-lived process runs; changed: set when there is something to report."""
        self._device, self._folder = config.device, config.state / SECRETS_FOLDER
        self._shelf, self._identity = SecretShelf(self._folder), Identity(config.state)
        self._turn, self._changed, self._clock = turn, changed, clock
        self._wanted: tuple[SealedSecret, ...] | None = None
        self._told = asyncio.Event()
        self._reports, self._certificate = tuple[SecretReport, ...](), b""

    def want(self, secrets: tuple[SealedSecret, ...]) -> None:
        """As `HeldSecrets.want`."""
        self._wanted = secrets
        self._told.set()

    def reports(self) -> tuple[SecretReport, ...]:
        """As `HeldSecrets.reports`."""
        return self._reports

    def certificate(self) -> bytes:
        """As `HeldSecrets.certificate`."""
        return self._certificate

    async def run(self) -> None:
        """Open and remove what the newest desired state asks for, and look after it."""
        pause_s, tried, due_s = PAUSE_S, None, 0.0
        while True:
            self._told.clear()
            wanted = self._wanted
            if wanted is not None:
                attempt = (wanted, self._read_certificate())
                if attempt != tried:
                    pause_s, due_s = PAUSE_S, 0.0
                if self._clock.monotonic_s() >= due_s:
                    tried = attempt
                    if not await self._provide(wanted, attempt[1]):
                        due_s = self._clock.monotonic_s() + pause_s
                        pause_s = min(pause_s * 2, PAUSE_S_MAX)
            if not self._told.is_set():
                await self._rest(min(LOOK_S, pause_s) if wanted else LOOK_S)

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until something else is wanted."""
        sleeps = asyncio.create_task(self._clock.sleep(seconds))
        told = asyncio.create_task(self._told.wait())
        try:
            await asyncio.wait([sleeps, told], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeps.cancel()
            told.cancel()

    def _read_certificate(self) -> bytes:
        try:
            return self._identity.certificate()
        except ConfigError as error:  # a person is at it
            _LOG.warning("device %s: %s", self._device, error)
            return b""

    async def _provide(self, wanted: tuple[SealedSecret, ...], certificate: bytes) -> bool:
        """Have these secrets, and no others; whether all that is sealed is there."""
        whys: dict[Place, str] = {}
        try:
            for app, name in self._shelf.keep([(one.app, one.name) for one in wanted]):
                _LOG.info("device %s: removed secret %s of app %s", self._device, name, app)
            held = self._shelf.versions()
            due = tuple(one for one in wanted if one.sealed and held.get((one.app, one.name)) != one.version)
            if due:
                whys = await self._opened(due)
                held = self._shelf.versions()
        except OSError as error:
            held, why = {}, f"{self._folder} cannot be used: {error.strerror or error}"
            whys = {(one.app, one.name): why for one in wanted}
        self._say(wanted, held, whys, certificate)
        return not any(whys.values())

    async def _opened(self, due: tuple[SealedSecret, ...]) -> dict[Place, str]:
        """Have a process open these; by place why one is not there, empty where it is."""
        request = OpenRequest(str(self._identity.file), str(self._folder), self._device, due)
        said = b""
        try:
            async with self._turn:
                said = await said_by(_MODULE, msgspec.json.encode(request), OPEN_S_MAX)
            answer = msgspec.json.decode(said.splitlines()[-1], type=Opened)
            whys = dict(zip(((one.app, one.name) for one in due), answer.whys, strict=True))
        except TimeoutError:
            whys = _all(due, f"opening has taken longer than {OPEN_S_MAX:g} s")
        except (IndexError, ValueError, msgspec.DecodeError):
            needs = "" if find_spec("cryptography") is not None else ": install geartrain-edge[fleet]"
            whys = _all(due, f"the process that opens secrets broke down{needs}")
        for one in due:
            if why := whys[one.app, one.name]:
                _LOG.warning("device %s: secret %s of app %s: %s", self._device, one.name, one.app, why)
            else:
                _LOG.info(
                    "device %s: secret %s of app %s has version %d",
                    *(self._device, one.name, one.app, one.version),
                )
        return whys

    def _say(
        self,
        wanted: tuple[SealedSecret, ...],
        held: dict[Place, int],
        whys: dict[Place, str],
        certificate: bytes,
    ) -> None:
        reports = tuple(
            SecretReport(
                *(one.app, one.name, held.get((one.app, one.name), 0)),
                printable(whys.get((one.app, one.name), "")),
            )
            for one in wanted
        )
        said = (reports, certificate if wanted else b"")
        if said != (self._reports, self._certificate):
            self._reports, self._certificate = said
            self._changed.set()


def _all(due: tuple[SealedSecret, ...], why: str) -> dict[Place, str]:
    return {(one.app, one.name): why for one in due}
