"""What a joined device has on its disk: its key and certificate in one file, and the fleet's authority.

Written by the short-lived processes that join and renew, and read by the parent of the agents, which has no
library for certificates. Guarantees: key and certificate change together, in one step. Files are of mode
0600 and durable. Where root joins, they belong to the owner of the state folder, who runs the agent.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import msgspec

from geartrain.adapters.files import fsync_path, make_private_folder, write_durable
from geartrain.errors import ConfigError, DiskError

FOLDER = "identity"
"""Below the device's state folder."""
_RENEW_AT = 2 / 3
_RENEW_SPREAD = 1 / 12


class Term(msgspec.Struct, frozen=True):
    """How long a certificate is good, seconds since 1970: from when the device got it to its end."""

    issued_s: float
    expires_s: float

    def renewal_s(self, chance: float) -> float:
        """When it is to be renewed: at two thirds of its life and a little more, by `chance` from 0 to 1."""
        return self.issued_s + (self.expires_s - self.issued_s) * (_RENEW_AT + chance * _RENEW_SPREAD)


class Identity:
    """The files of the device whose state folder is `state`."""

    def __init__(self, state: Path) -> None:
        folder = state / FOLDER
        self.state, self.authority = state, folder / "ca.pem"
        self.file, self.key = folder / "identity.pem", folder / "joining.key"

    def term(self) -> Term:
        """Of the certificate that is there; raises `ConfigError` where there is none that we have written."""
        try:
            head = self.file.read_text(encoding="ascii").partition("-----BEGIN")[0]
            said = dict(line.split(": ", 1) for line in head.splitlines())
            return Term(float(said["Issued"]), float(said["Expires"]))
        except OSError as error:
            raise ConfigError(f"{self.file} cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError):
            raise ConfigError(f"{self.file} does not say when it ends: join anew") from None

    def certificate(self) -> bytes:
        """The certificate that is there, DER; raises `ConfigError` where none can be read."""
        try:
            text = self.file.read_text(encoding="ascii")
            return ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) :])
        except OSError as error:
            raise ConfigError(f"{self.file} cannot be read: {error.strerror or error}") from None
        except ValueError:
            raise ConfigError(f"{self.file} holds no certificate: join anew") from None


def identity_text(term: Term, key: bytes, certificate: str) -> bytes:
    """The content of an identity's file: what stands before the first PEM is for `Identity.term`."""
    head = f"Issued: {term.issued_s:.3f}\nExpires: {term.expires_s:.3f}\n"
    return head.encode() + key + certificate.encode()


class Files:
    """Writes what a device keeps. All methods raise `DiskError`."""

    def __init__(self, state: Path) -> None:
        """`state`: the folder whose owner gets the files."""
        self._state = state

    def write(self, path: Path, content: bytes) -> None:
        """Replace the file in one step, durably."""
        try:
            make_private_folder(path.parent)
            write_durable(path, content)
            self._give(path.parent, path)
        except OSError as error:
            raise DiskError(f"{path} cannot be written: {error.strerror or error}") from None

    def remove(self, path: Path) -> None:
        """Have no such file, durably."""
        try:
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                fsync_path(path.parent)
        except OSError as error:
            raise DiskError(f"{path} cannot be removed: {error.strerror or error}") from None

    def give(self, *paths: Path) -> None:
        """Have the owner of the state folder own these; one who was killed before may not have come to it."""
        try:
            self._give(*(path for path in paths if path.exists()))
        except OSError as error:
            raise DiskError(f"{paths[0]} cannot be given away: {error.strerror or error}") from None

    def _give(self, *paths: Path) -> None:
        if os.geteuid() != 0 or not self._state.is_dir():
            return
        owner = self._state.stat()
        for path in paths:
            if path.is_file() or self._state in path.parents:
                os.chown(path, owner.st_uid, owner.st_gid)
