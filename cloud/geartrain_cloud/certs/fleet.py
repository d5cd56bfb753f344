"""A fleet's certificates in a folder: the authority, what it issued, and what it revoked.

The folder holds `ca.pem`, `ca.key`, `crl.pem`, `issued.json` and `<kind>/<name>.pem` and `.key`. Guarantees:

- All files are 0600 and appear whole.
- No key is ever overwritten: a key is linked into its place, which fails where there is one.
- A certificate is in `issued.json` before it is in a file, so that each can be revoked.
- One program at a time changes the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from cryptography.x509 import Certificate

from geartrain.adapters.file_lock import open_lock
from geartrain.adapters.files import write_durable, write_private
from geartrain_cloud.certs import authority as pki
from geartrain_cloud.certs.names import CLOUD, DEVICE, KINDS, SERVER, check, check_host, common_name
from geartrain_cloud.errors import CertificateError

__all__ = ["CLOUD", "DEVICE", "KINDS", "SERVER", "Fleet", "Issued", "Signed"]

CA_DAYS = 3_650
LEAF_DAYS = 730
ENDED_KEPT = timedelta(days=30)
"""How long the register still names what has ended, where devices renew their certificates by themselves."""


class Issued(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One certificate: its serial in hexadecimal, whom it is for, its end and its revocation in UTC."""

    serial: str
    kind: str
    name: str
    not_after: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a certificate and its key are."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate (PEM) that was asked for, its entry, and the digest of the key that it is for."""

    entry: Issued
    certificate: bytes
    key: str


class Fleet:
    """The certificates in `folder`. Every method raises `CertificateError` with a sentence."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.ca_key, self.crl = folder / "ca.pem", folder / "ca.key", folder / "crl.pem"
        self.register = folder / "issued.json"

    def paths(self, kind: str, name: str) -> Paths:
        """Where the certificate and key of `name` are, or would be."""
        check(kind, name)
        folder = self.folder / kind
        return Paths(folder / f"{name}.pem", folder / f"{name}.key")

    def broker_key(self, kind: str, name: str, address: str) -> dict[str, Any]:
        """The key `broker` in the configuration of `name`, whose broker is at `address`, `host:port`."""
        paths = self.paths(kind, name)
        for path in (self.ca, paths.certificate, paths.key):
            if not path.is_file():
                raise CertificateError(
                    f"{path} is not there: run gear certs issue {kind} {name} --certs {self.folder}"
                )
        files = {"ca": str(self.ca), "certificate": str(paths.certificate), "key": str(paths.key)}
        return {"address": address, "tls": True, **files}

    def init(self, name: str, days: int = CA_DAYS, now: datetime | None = None) -> Paths:
        """Make the authority of a fleet called `name`, valid for `days`."""
        if not 1 <= len(name) <= 64 or not name.isprintable():
            raise CertificateError(f"a fleet cannot be called {name[:80]!r}: use 1 to 64 that print")
        with self._alone():
            if self.ca.exists():
                raise CertificateError(f"{self.folder} has an authority already: it is never replaced")
            # A key without a certificate is what a run that was interrupted left behind.
            key = self._key(self.ca_key)
            when = now or datetime.now(UTC)
            signer = pki.Authority(pki.self_signed(key, name, when, days), key)
            self._write_crl(signer, when)
            write_durable(self.ca, pki.pem_of(signer.certificate))
        return Paths(self.ca, self.ca_key)

    def ensure(self, kind: str, name: str, hosts: Sequence[str] = ()) -> None:
        """Issue a certificate that lasts as long as the authority, where there is none: for the programs of
        the machine that has the authority's own key.
        """
        paths = self.paths(kind, name)
        if not (paths.certificate.exists() and paths.key.exists()):
            # A key without a certificate is what a run that was interrupted left behind.
            self.issue(kind, name, hosts, days=CA_DAYS, renew=paths.key.exists())

    def issue(
        self,
        kind: str,
        name: str,
        hosts: Sequence[str] = (),
        *,
        days: int = LEAF_DAYS,
        renew: bool = False,
        now: datetime | None = None,
    ) -> Issued:
        """Make a certificate, and its key where there is none; a broker is known by `name` and `hosts`.

        renew: for the key that is there already; its earlier certificate goes on to its end.
        """
        paths = self.paths(kind, name)
        known_as = _known_as(kind, name, hosts)
        with self._alone():
            signer, when = self._authority(), now or datetime.now(UTC)
            if paths.key.exists() and not renew:
                raise CertificateError(
                    f"{paths.key} is there already and is never overwritten: add --renew for a new "
                    f"certificate of the same key, or revoke {kind} {name} first"
                )
            if renew and not paths.key.exists():
                raise CertificateError(f"there is no {paths.key} to renew: leave --renew out")
            key = self._key(paths.key)
            known = common_name(kind, name)
            made = pki.signed(signer, key.public_key(), known, known_as, when, timedelta(days=days))
            entry = self._enter(kind, name, made, self.issued())
            write_private(paths.certificate, pki.pem_of(made))
        return entry

    def sign(
        self,
        name: str,
        request: bytes,
        life: timedelta,
        now: datetime | None = None,
        *,
        kind: str = DEVICE,
        hosts: Sequence[str] = (),
    ) -> Signed:
        """A certificate of `name` for the key of a signing request (PEM), which stays where it is.

        What has ended long ago leaves the register: certificates that renew themselves would fill it.
        """
        check(kind, name)
        known_as = _known_as(kind, name, hosts)
        key = pki.requested_key(request)
        with self._alone():
            when = now or datetime.now(UTC)
            known = common_name(kind, name)
            made = pki.signed(self._authority(), key, known, known_as, when, life)
            kept = [one for one in self.issued() if when - one.not_after < ENDED_KEPT]
            entry = self._enter(kind, name, made, kept)
        return Signed(entry, pki.pem_of(made), pki.key_digest(key))

    def fingerprint(self) -> str:
        """What tells the authority from others: `sha256:` and 64 hexadecimal digits."""
        return f"sha256:{pki.fingerprint(self.authority())}"

    def authority(self) -> Certificate:
        """The certificate of the authority."""
        return pki.load_certificate(self._read(self.ca), str(self.ca))

    def _enter(self, kind: str, name: str, made: Certificate, known: list[Issued]) -> Issued:
        """Note a certificate durably, before anybody has it."""
        entry = Issued(f"{made.serial_number:x}", kind, name, made.not_valid_after_utc)
        self._save([*known, entry])
        return entry

    def revoke(self, kind: str, name: str, now: datetime | None = None) -> list[Issued]:
        """Revoke all certificates of `name`, and set its files aside; returns those revoked by this call."""
        paths = self.paths(kind, name)
        with self._alone():
            signer, when, entries = self._authority(), now or datetime.now(UTC), self.issued()
            theirs = [one for one in entries if (one.kind, one.name) == (kind, name)]
            if not theirs:
                raise CertificateError(f"{self.folder} has issued nothing to {kind} {name}")
            fresh = [one for one in theirs if one.revoked_at is None]
            ended = {one.serial: msgspec.structs.replace(one, revoked_at=when) for one in fresh}
            self._save([ended.get(one.serial, one) for one in entries])
            self._write_crl(signer, when)
            for path in (paths.certificate, paths.key):
                if path.exists():
                    path.rename(path.with_name(f"{path.name}.revoked-{theirs[-1].serial}"))
        return list(ended.values())

    def issued(self) -> list[Issued]:
        """All that was ever issued, in order."""
        if not self.register.exists():
            return []
        try:
            return msgspec.json.decode(self.register.read_bytes(), type=list[Issued])
        except (OSError, msgspec.MsgspecError) as error:
            raise CertificateError(f"{self.register} cannot be read: {error}") from None

    def _authority(self) -> pki.Authority:
        if not self.ca.exists() or not self.ca_key.exists():
            raise CertificateError(f"there is no authority in {self.folder}: run gear certs init first")
        return pki.Authority(
            self.authority(),
            pki.load_key(self._read(self.ca_key), str(self.ca_key)),
        )

    def _write_crl(self, signer: pki.Authority, now: datetime) -> None:
        revoked = [(int(one.serial, 16), one.revoked_at) for one in self.issued() if one.revoked_at]
        write_durable(self.crl, pki.pem_of(pki.revoked_list(signer, revoked, now)))

    def _save(self, entries: list[Issued]) -> None:
        write_durable(self.register, msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")

    def _key(self, path: Path) -> pki.Key:
        """The key at `path`, made there if it is missing; the caller holds the folder."""
        if not path.exists():
            write_durable(path, pki.key_pem(pki.new_key()))
        return pki.load_key(self._read(path), str(path))

    @staticmethod
    def _read(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise CertificateError(f"{path} cannot be read: {error.strerror or error}") from None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            lock = open_lock(self.folder / "lock")
        except OSError as error:
            raise CertificateError(f"{self.folder} cannot be written: {error.strerror or error}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise CertificateError(f"{self.folder} cannot be written: {error.strerror or error}") from None
        finally:
            os.close(lock)


def _known_as(kind: str, name: str, hosts: Sequence[str]) -> list[str]:
    """The hosts of a certificate; raises `CertificateError` for hosts that it cannot have."""
    if hosts and kind != SERVER:
        raise CertificateError(f"a certificate of a {kind} has no hosts: only that of a server has")
    found = list(dict.fromkeys([name, *hosts])) if kind == SERVER else []
    for host in found:
        check_host(host)
    return found
