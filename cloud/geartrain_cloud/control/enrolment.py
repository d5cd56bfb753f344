"""Enrolment: devices on other machines get certificates, renew them, and lose them.

Between REST and the device listener on one side, and the fleet's authority and its tokens on the other.
Guarantees: a certificate goes to whoever has a token that is good, and to no second one. A device that was
killed in the midst asks again with its key. What was revoked is on the list before the request is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

from geartrain_cloud.broker.open_broker import open_fleet
from geartrain_cloud.certs import DEVICE, Issued
from geartrain_cloud.certs.authority import key_digest, requested_key
from geartrain_cloud.control_store.devices import Devices
from geartrain_cloud.control_store.errors import NotFoundError, RefusedError
from geartrain_cloud.control_store.sealing import recipient
from geartrain_cloud.control_store.tokens import Tokens
from geartrain_cloud.errors import CertificateError
from geartrain_cloud.platform.config import PlatformConfig

_LOG = logging.getLogger("geartrain.control")

RETIRED_US = 5_000_000
"""After so long a retired device loses its certificate: till then it can hear that it runs nothing."""
Telling = Callable[[str, str], AbstractContextManager[object]]
LIVE_MAX = 8
"""Certificates of one device that are good at a time: more is no renewal any more."""


class Enrolment:
    """The devices of an open platform; `now_us` tells the wall clock, microseconds."""

    def __init__(
        self,
        config: PlatformConfig,
        devices: Devices,
        now_us: Callable[[], int],
        tell: Telling = lambda what, device: nullcontext(),
    ) -> None:
        """tell: a block in which a device's right to be one changes: `invited`, `issued` or `revoked`.

        Raises `CertificateError` where there is no authority, and `StoreError`.
        """
        self._tell = tell
        self.fleet = open_fleet(config)
        self._config, self._devices, self._now_us = config, devices, now_us
        self._tokens = Tokens(config.places.joins, now_us)
        self._fingerprint = self.fleet.fingerprint()
        self._seen, self._unrevoked = (0, 0), dict[str, dict[int, Issued]]()
        self._leaving = {name: 0 for name in self._issued() if self._is_retired(name)}

    def close(self) -> None:
        """Let the files go."""
        self._tokens.close()

    # What a person asks for

    def invite(self, device: str, life_s: float) -> dict[str, Any]:
        """What a device needs to join, for `life_s` seconds; raises `NotFoundError` for an unknown one."""
        self._devices.active(device)
        with self._tell("invited", device):
            token, expires_us = self._tokens.make(device, life_s)
        return {
            "url": self._config.device_url,
            "token": token,
            "ca_fingerprint": self._fingerprint,
            "expires_us": expires_us,
        }

    def revoke(self, device: str) -> int:
        """End the device's certificates and its token; how many certificates were good till now."""
        self._tokens.drop(device)
        good = len(self._good(device))
        if good:
            with self._tell("revoked", device):
                self.fleet.revoke(DEVICE, device)
            _LOG.warning("device %s: its certificates are revoked", device)
        return good

    @property
    def broker_note(self) -> str:
        """What a person has to do at a broker that `gear up` does not run, empty for nothing."""
        if self._config.broker_certs is None:
            return ""
        return (
            f"run gear broker config with --certs {self._config.broker_certs}, and start your broker anew: "
            "till then connections that are open go on"
        )

    def retire(self, device: str) -> None:
        """Have a device that was retired lose its certificate, once it had the time to hear of it."""
        self._tokens.drop(device)
        self._leaving[device] = self._now_us() + RETIRED_US

    def round(self) -> None:
        """Do what is due; called every so often."""
        for device, due_us in list(self._leaving.items()):
            if self._now_us() >= due_us:
                if self._devices.is_to_hear(device, self._now_us()):
                    continue
                del self._leaving[device]
                if self._is_retired(device):
                    self.revoke(device)

    def has_joined(self, device: str) -> bool:
        """Whether the device runs elsewhere and came by a token, so that it runs signed bundles alone."""
        token = self._tokens.of(device)
        return token is not None and bool(token.key)

    def standing(self, device: str) -> dict[str, Any]:
        """Until when a device's newest certificate is good, and the token with which it may join."""
        ends = [one.not_after for one in self._good(device).values()]
        token = self._tokens.of(device)
        waits = token is not None and not token.key and token.expires_us > self._now_us()
        return {
            "certificate_until_us": round(max(ends).timestamp() * 1e6) if ends else None,
            "joins_until_us": token.expires_us if token is not None and waits else None,
        }

    # What a device asks for

    def join(self, token: str, request: bytes) -> dict[str, Any]:
        """A certificate for who has the token; raises `RefusedError`, and `CertificateError` for a request
        that cannot be signed. Whoever had the name before loses it.
        """
        key = key_digest(requested_key(request))
        found = self._tokens.look(token, key)
        try:
            self._devices.active(found.device)
        except NotFoundError as error:
            raise RefusedError(str(error)) from None
        if not found.key:
            if self._good(found.device):
                with self._tell("revoked", found.device):
                    self.fleet.revoke(DEVICE, found.device)
            self._tokens.use(found.device, key)  # behind the above: one that is killed between does it again
        answer = self._signed(found.device, request)
        _LOG.info("device %s has joined", found.device)
        return answer

    def renew(self, device: str, request: bytes) -> dict[str, Any]:
        """Another certificate for a device that has a good one; raises as `join`."""
        return self._signed(device, request)

    def check(self, device: str, serial: int) -> None:
        """Raise `RefusedError` unless the certificate of this serial is a good one of the device."""
        if serial not in self._good(device) or self._is_retired(device):
            raise RefusedError(f"the certificate of device {device} is good no longer: it has to join anew")

    def _signed(self, device: str, request: bytes) -> dict[str, Any]:
        if len(self._good(device)) >= LIVE_MAX:
            raise RefusedError(
                f"device {device} has {LIVE_MAX} good certificates: it gets another once one has ended"
            )
        life = timedelta(days=self._config.fleet.certificate_days)
        with self._tell("issued", device):
            made = self.fleet.sign(device, request, life)
        return {
            "device": device,
            "broker": self._config.device_broker,
            "certificate": made.certificate.decode(),
        }

    def point_of(self, device: str, certificate: bytes) -> bytes:
        """The key of the certificate (DER) that a device shows, as a point to which secrets are sealed.

        Raises `CertificateError` unless it is a good one of the device.
        """
        serial, point = recipient(certificate, self.fleet.authority(), device)
        if serial not in self._good(device):
            raise CertificateError(f"the certificate of device {device} is good no longer")
        return point

    # What is known

    def _good(self, device: str) -> dict[int, Issued]:
        """The certificates of a device by serial, without those that are revoked or at their end."""
        now = datetime.fromtimestamp(self._now_us() / 1e6, UTC)
        return {n: one for n, one in self._issued().get(device, {}).items() if one.not_after > now}

    def _issued(self) -> dict[str, dict[int, Issued]]:
        """By device and serial, what is in the register and is not revoked."""
        found = self.fleet.register.stat()
        if self._seen != (seen := (found.st_mtime_ns, found.st_ino)):
            self._seen, self._unrevoked = seen, {}
            for one in self.fleet.issued():
                if one.kind == DEVICE and one.revoked_at is None:
                    self._unrevoked.setdefault(one.name, {})[int(one.serial, 16)] = one
        return self._unrevoked

    def _is_retired(self, device: str) -> bool:
        try:
            return self._devices.get(device).retired
        except NotFoundError:
            return False  # one that was given its certificate by hand
