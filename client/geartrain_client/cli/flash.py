"""`gear flash`: from options to what is written.

Guarantees: no secret is an option. A wireless password comes from a file or from a prompt. Outputs are 0600.
All options are checked before anything is fetched.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from geartrain.adapters.configuration import read_toml
from geartrain.adapters.toml_text import to_toml
from geartrain.errors import MistakeError
from geartrain.printable import printable
from geartrain_client.cli.fleet import ask_join
from geartrain_client.errors import RefusedError
from geartrain_client.flash.base_image import prepare_image
from geartrain_client.flash.bytecode import can_compile
from geartrain_client.flash.card import Disks, write_card
from geartrain_client.flash.container import write_container
from geartrain_client.flash.image_build import ImageOptions, build_image, check_programs
from geartrain_client.flash.installer import Content, installer, write_output
from geartrain_client.flash.settings import Address, DeviceSettings, Wifi
from geartrain_client.flash.target import Target
from geartrain_client.flash.wheels import collect
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import notices, results

_PASSWORD_BYTES_MAX = 1024

Joining = Callable[[], bytes]
"""Gives the device's join file; called once its wheels are there, as a token is not good for long."""


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
    """What is asked for: the kind of machine, its wheels, what it joins by, and its network."""

    arch: str
    python: str
    extras: tuple[str, ...] = ()
    lock: Path | None = None
    wheels: Path | None = None
    join: Joining | None = None
    network: Network = Network()

    def content(self) -> Content:
        """All that the device gets; fetches its wheels. Raises `GeartrainError`."""
        target = Target.of(self.arch, self.python)
        settings = self.network.settings()
        notices().print(f"fetching wheels for {target.arch}, Python {target.python}")
        locked = self.lock if self.lock is not None and self.lock.exists() else None
        with tempfile.TemporaryDirectory(prefix="gear-flash-") as work:
            wheels = collect(target, self.extras, Path(work), own=self.wheels, lock=locked)
        if self.lock is not None and locked is None:
            write_output(self.lock, wheels.requirements)
        return Content(target, wheels, None if self.join is None else self.join(), settings)


@dataclass(frozen=True, slots=True)
class OwnImage:
    """What an image of our own is built with: Debian's kernel package and mirror, MiB for data."""

    kernel: str = ""
    mirror: str = ""
    data_mib: int = 256


@dataclass(frozen=True, slots=True)
class Outputs:
    """What to make: an installer, an image (of a base or our own, in a file or on a card) or a container."""

    installer: Path | None = None
    image: Path | None = None
    output: Path | None = None
    card: Path | None = None
    container: Path | None = None
    base: Path | None = None
    own: OwnImage | None = None

    def check(self) -> None:
        """Raise `MistakeError` unless it is one thing, whole, and no file is replaced by it."""
        if sum(one is not None for one in (self.installer, self.image, self.container, self.own)) != 1:
            raise MistakeError(
                "say what to make: --installer FILE.tar.gz, --image BASE.img or --build with --output "
                "FILE.img or --to /dev/sdX, or --container FILE.tar"
            )
        makes_image, goes = self.image is not None or self.own is not None, self.output is not None
        if makes_image and not goes and self.card is None:
            raise MistakeError("say where the image goes, by --output FILE.img or --to /dev/sdX")
        if not makes_image and (goes or self.card is not None):
            raise MistakeError("--output and --to belong to --image and --build")
        if (self.container is None) != (self.base is None):
            raise MistakeError(
                "--container needs --base ROOT.tar, a root file system with Python, such as mmdebstrap "
                "--variant=minbase --include=python3,ca-certificates bookworm root.tar makes"
            )
        for option, path in (
            ("installer", self.installer),
            ("output", self.output),
            ("container", self.container),
        ):
            if path is not None and path.exists():
                raise MistakeError(f"--{option} {path} is there already: name another file, or remove it")
        if self.card is not None:
            Disks().check(self.card, 0)


def flash_device(order: Order, outputs: Outputs) -> None:
    """Make what was asked for; raises `GeartrainError`."""
    outputs.check()
    if outputs.installer is not None:
        _installer(order, outputs.installer)
    elif outputs.container is not None and outputs.base is not None:
        content = order.content()
        write_container(content, outputs.base, outputs.container)
        _made(outputs.container, order)
        if not can_compile(order.python):
            notices().print(
                f"it has no bytecode, which only Python {order.python} makes: each start on a read-only root "
                "compiles; run gear with that Python",
                soft_wrap=True,
            )
    else:
        _image(order, outputs)
    if order.join is not None:
        notices().print(
            "it holds a one-time token: keep it private until the device has joined", soft_wrap=True
        )


def _installer(order: Order, path: Path) -> None:
    write_output(path, installer(order.content()))
    _made(path, order)
    notices().print(
        f"on the device: tar xzf {printable(path.name)} && sudo sh geartrain-installer/install.sh",
        soft_wrap=True,
    )


def _image(order: Order, outputs: Outputs) -> None:
    with tempfile.TemporaryDirectory(prefix="gear-flash-") as work:
        path = outputs.output or Path(work) / "device.img"
        if outputs.own is not None:
            own = outputs.own
            check_programs()
            wanted = ImageOptions(
                order.content(), path, own.mirror, own.kernel, data_bytes=own.data_mib << 20
            )
            build_image(wanted, lambda text: notices().print(text))
        elif outputs.image is not None:
            found = prepare_image(outputs.image, path, lambda: installer(order.content()))
            notices().print(f"{printable(str(outputs.image))} is {found.system}", soft_wrap=True)
        if outputs.output is not None:
            _made(outputs.output, order)
        if outputs.card is not None:
            write_card(path, outputs.card, Progress())
            results().print(f"{printable(str(outputs.card))}: written and compared", soft_wrap=True)


class Progress:
    """Says each tenth of what is done."""

    def __init__(self) -> None:
        self._said = ("", -1)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take a step of the work, in bytes."""
        tenth = 10 * done // max(total, 1)
        if (what, tenth) != self._said:
            self._said = (what, tenth)
            notices().print(f"{what}: {done >> 20} of {total >> 20} MiB")


def _made(path: Path, order: Order) -> None:
    size = path.stat().st_size / 1e6
    results().print(
        f"{printable(str(path))}: {size:.1f} MB for {order.arch}, Python {order.python}", soft_wrap=True
    )


def joining(
    name: str | None,
    labels: Mapping[str, str | None],
    expires_s: float,
    platform: Callable[[], Platform] | None,
    file: Path | None,
) -> Joining | None:
    """How the device comes by its join file: from a platform for `name`, or it is `file`; None: neither.

    expires_s: how long the token is good, seconds. Raises `GeartrainError` for a file that is none.
    """
    if name is None or platform is None:
        if labels:
            raise MistakeError("--label belongs to the NAME of a device")
        if file is None:
            return None
        read_toml(file)  # whose mistakes are better said here than on the device
        content = file.read_bytes()
        return lambda: content
    if file is not None:
        raise MistakeError("--join holds how a device joins, and so does its NAME: give one of them")
    asked = platform()
    return lambda: _invited(asked, name, labels, expires_s)


def _invited(platform: Platform, name: str, labels: Mapping[str, str | None], expires_s: float) -> bytes:
    """The join file of a device, which is added where the platform does not know it."""
    try:
        platform.get(f"/devices/{segment(name)}")
    except RefusedError as error:
        if error.status != 404:
            raise
        platform.change("POST", "/devices", {"name": name, "labels": dict(labels)})
    else:
        if labels:
            raise MistakeError(f"device {name} is there already: gear device label changes its labels")
    join = ask_join(platform, name, expires_s)
    given = {"url": join.url, "token": join.token, "ca_fingerprint": join.ca_fingerprint}
    return to_toml(given).encode()


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
