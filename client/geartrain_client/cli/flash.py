"""`gear flash`: from options to what is written.

Guarantees: no secret is an option. A wireless password comes from a file or from a prompt. Outputs are 0600.
All options are checked before anything is fetched.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from geartrain.adapters.configuration import read_toml
from geartrain.printable import printable
from geartrain_client.errors import MistakeError
from geartrain_client.flash.installer import Content, installer, write_output
from geartrain_client.flash.settings import Address, DeviceSettings, Wifi
from geartrain_client.flash.target import Target
from geartrain_client.flash.wheels import collect
from geartrain_client.terminal.screen import notices, results

_PASSWORD_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Network:
    """What the device is told beside its platform, as the options say it."""

    hostname: str = ""
    ntp: tuple[str, ...] = ()
    wifi: str | None = None
    password_file: Path | None = None
    country: str = ""
    address: str | None = None
    gateway: str = ""
    servers: tuple[str, ...] = ()

    def settings(self) -> DeviceSettings:
        """The same, checked; asks for the wireless password. Raises `MistakeError`."""
        if self.address is None and (self.gateway or self.servers):
            raise MistakeError("--gateway and --dns belong to --address: without it the network tells them")
        if self.wifi is None and (self.password_file is not None or self.country):
            raise MistakeError("--wifi-password-file and --country belong to --wifi")
        address = None if self.address is None else Address.of(self.address, self.gateway, self.servers)
        checked = DeviceSettings(self.hostname, self.ntp, None, address)  # before a password is asked for
        if self.wifi is None:
            return checked
        if not self.country:
            raise MistakeError("--wifi needs --country, such as DE: a radio may not send before it is told")
        wifi = Wifi.of(self.wifi, _password(self.password_file, self.wifi), self.country)
        return DeviceSettings(self.hostname, self.ntp, wifi, address)


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for: the kind of machine, its wheels, its join file and its network."""

    arch: str
    python: str
    extras: tuple[str, ...] = ()
    lock: Path | None = None
    wheels: Path | None = None
    join: Path | None = None
    network: Network = Network()

    def content(self) -> Content:
        """All that the device gets; fetches its wheels. Raises `GeartrainError`."""
        target, join = Target.of(self.arch, self.python), _join_file(self.join)
        settings = self.network.settings()
        notices().print(f"fetching wheels for {target.arch}, Python {target.python}")
        locked = self.lock if self.lock is not None and self.lock.exists() else None
        with tempfile.TemporaryDirectory(prefix="gear-flash-") as work:
            wheels = collect(target, self.extras, Path(work), own=self.wheels, lock=locked)
        if self.lock is not None and locked is None:
            write_output(self.lock, wheels.requirements)
        return Content(target, wheels, join, settings)


def flash_device(order: Order, installer_file: Path | None) -> None:
    """Make what was asked for; raises `GeartrainError`."""
    if installer_file is None:
        raise MistakeError("say what to make: --installer FILE.tar.gz")
    if installer_file.exists():
        raise MistakeError(f"--installer {installer_file} is there already: name another file, or remove it")
    content = order.content()
    made = installer(content)
    write_output(installer_file, made)
    name = printable(str(installer_file))
    results().print(
        f"{name}: {len(made) / 1e6:.1f} MB for {order.arch}, Python {order.python}", soft_wrap=True
    )
    if content.join is not None:
        notices().print(
            "it holds a one-time token: keep it private until the device has joined", soft_wrap=True
        )
    notices().print(
        f"on the device: tar xzf {printable(installer_file.name)} && sudo sh geartrain-installer/install.sh",
        soft_wrap=True,
    )


def _join_file(path: Path | None) -> bytes | None:
    if path is None:
        return None
    read_toml(path)  # whose mistakes are better said here than on the device
    return path.read_bytes()


def _password(file: Path | None, ssid: str) -> str:
    if file is not None:
        try:
            with file.open("rb") as opened:
                return opened.read(_PASSWORD_BYTES_MAX).decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            raise MistakeError(f"--wifi-password-file {file} cannot be read") from None
    if not sys.stdin.isatty():
        raise MistakeError("--wifi: there is nobody to ask for its password: name a --wifi-password-file")
    from getpass import getpass

    return getpass(f"password of {printable(ssid)}: ")
