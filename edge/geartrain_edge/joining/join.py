"""To join a platform, and to renew what one got there, as steps that may be cut off anywhere.

In short-lived processes beside the parent of the agents. Guarantees: the key is made on the device and stays
there. Killed at any step, a device is joined, or joins when this is run again, with the key that it began
with. The token is left in no file once the device has joined.
"""

from __future__ import annotations

import hashlib
import time
import tomllib
from pathlib import Path
from typing import Any, Protocol

import msgspec

from geartrain.adapters.configuration import host_and_port, read_toml
from geartrain.adapters.toml_text import to_toml
from geartrain.errors import ConfigError, GeartrainError
from geartrain.wire.topics import check_name
from geartrain_edge.errors import own_clock
from geartrain_edge.identity import Identity, Term, identity_text
from geartrain_edge.joining.errors import JoinError
from geartrain_edge.joining.keys import end_of, new_key, request_for


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device joins with, as `gear device add` prints it and a file for `--from` holds it."""

    url: str
    token: str
    ca_fingerprint: str


class Place(msgspec.Struct, frozen=True):
    """Where a device keeps what it gets. device: its file; source: the file with the invitation, if any."""

    device: Path
    state: Path
    source: Path | None = None


class Asked(Protocol):
    """The platform, as `asking.Platform` is one."""

    url: str

    def authority(self, fingerprint: str) -> str:
        """The authority's certificate, PEM, where it has this fingerprint."""
        ...

    def post(
        self, path: str, body: dict[str, str], authority: str, identity: Path | None = None
    ) -> dict[str, Any]:
        """What the platform answers."""
        ...


class Disk(Protocol):
    """The disk, as `Files` is one."""

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file, durably."""
        ...

    def remove(self, path: Path) -> None:
        """Have no such file, durably."""
        ...


def join(place: Place, invitation: Invitation, platform: Asked, files: Disk) -> str:
    """Join, or finish what was begun; the device's name. Raises `JoinError`, `NotYetError` or `DiskError`."""
    identity = Identity(place.state)
    key = _key_begun(identity, invitation.token)
    if key and (device := _joined(place, identity, key)):
        return _tidied(place, identity, files, device)
    if not key:
        key = new_key()
        files.write(identity.key, _head(invitation.token) + key)
    authority = platform.authority(invitation.ca_fingerprint)
    body = {"token": invitation.token, "request": request_for(key)}
    answer = platform.post("/v1/join", body, authority)
    device, broker = _checked(answer)
    content = _device_file(place, identity, device, broker, platform.url)
    text = _identity(answer, key, device)
    files.write(identity.authority, authority.encode())
    files.write(place.device, content.encode())
    files.write(identity.file, text)  # the last one: with it the device has joined
    return _tidied(place, identity, files, device)


def renew(device: str, identity: Identity, platform: Asked, files: Disk) -> Term:
    """Another key and certificate in the place of those before; raises as `join`."""
    try:
        authority = identity.authority.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise JoinError(f"{identity.authority} cannot be read: {error}") from None
    if identity.term().expires_s <= time.time():
        raise JoinError(
            f"{own_clock()} the certificate of {device} has ended: set the clock if it is wrong, "
            f"or else join anew, with gear device token {device}"
        )
    key = new_key()
    answer = platform.post("/v1/renew", {"request": request_for(key)}, authority, identity.file)
    files.write(identity.file, _identity(answer, key, device))
    return identity.term()


def _head(token: str) -> bytes:
    """What stands before a key that is for one token: a digest of it."""
    return f"Token: {hashlib.sha256(token.encode(errors='surrogateescape')).hexdigest()}\n".encode()


def _key_begun(identity: Identity, token: str) -> bytes:
    """The key with which the device has begun to join by this token; empty where it has not."""
    try:
        found, head = identity.key.read_bytes(), _head(token)
        return found.removeprefix(head) if found.startswith(head) else b""
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise JoinError(f"{identity.key} cannot be read: {error.strerror or error}") from None


def _joined(place: Place, identity: Identity, key: bytes) -> str:
    """The device that this one has become with the key; empty where it has not come so far."""
    try:
        named = tomllib.loads(place.device.read_text(encoding="utf-8"))
        has_key = key in identity.file.read_bytes()
    except (OSError, ValueError):
        return ""
    return str(named.get("device", "")) if has_key else ""


def _tidied(place: Place, identity: Identity, files: Disk, device: str) -> str:
    if place.source is not None:
        files.remove(place.source)
    files.remove(identity.key)
    return device


def _checked(answer: dict[str, Any]) -> tuple[str, str]:
    """The device's name and the broker's address."""
    try:
        device, broker = str(answer.get("device")), str(answer.get("broker"))
        check_name("device", device)
        host_and_port(broker)
    except GeartrainError as error:
        raise JoinError(f"the platform sent what this device does not know: {error}") from None
    return device, broker


def _identity(answer: dict[str, Any], key: bytes, device: str) -> bytes:
    certificate = str(answer.get("certificate"))
    term = Term(time.time(), end_of(certificate, key, device))
    return identity_text(term, key, certificate)


def _device_file(place: Place, identity: Identity, device: str, broker: str, url: str) -> str:
    """What the device's file holds from now on; what a person wrote into it besides stays.

    Raises `JoinError` where it is the file of another device.
    """
    known: dict[str, Any] = read_toml(place.device) if place.device.exists() else {}
    if known.get("device", device) != device:
        raise JoinError(
            f"{place.device} is that of device {known['device']}, and the token is for {device}: name other "
            "places with --device and --state, or remove that file"
        )
    ours = {"device": device, "state": str(identity.state), "platform": url}
    tls = {"ca": str(identity.authority), "certificate": str(identity.file), "key": str(identity.file)}
    try:
        return to_toml({**known, **ours, "broker": {"address": broker, "tls": True, **tls}})
    except TypeError as error:
        raise ConfigError(f"{place.device}: {error}: remove what is no text, number or list") from None
