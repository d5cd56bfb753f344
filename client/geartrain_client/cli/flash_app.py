"""`gear flash` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.platform_options import Expires, State, Url, platform_at
from geartrain_client.terminal.settings import parse_seconds

flash_app = typer.Typer(rich_markup_mode=None)

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The device: it is added, and joins by itself.")
]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label of NAME for selectors; may be repeated."),
]
Installer = Annotated[
    Path | None,
    typer.Option("--installer", metavar="FILE.tar.gz", help="Make an installer for any Linux with systemd."),
]
Image = Annotated[
    Path | None,
    typer.Option("--image", metavar="BASE.img", help="Put the installer into an image made by others."),
]
Build = Annotated[
    bool, typer.Option("--build", help="Build an image of our own: a small Debian, its root read-only.")
]
Kernel = Annotated[
    str, typer.Option("--kernel", metavar="PACKAGE", help="Of --build. Default: linux-image-cloud-ARCH.")
]
Mirror = Annotated[
    str, typer.Option("--mirror", metavar="URL", help="Of --build. Default: that of this machine.")
]
DataSize = Annotated[
    int, typer.Option("--data-size", metavar="MIB", min=16, help="Of the data partition of --build.")
]
Output = Annotated[Path | None, typer.Option("--output", metavar="FILE.img", help="Where that image goes.")]
To = Annotated[
    Path | None, typer.Option("--to", metavar="/dev/sdX", help="Write that image to a card, and compare.")
]
Container = Annotated[
    Path | None, typer.Option("--container", metavar="FILE.tar", help="Make a container image (OCI).")
]
Base = Annotated[
    Path | None, typer.Option("--base", metavar="ROOT.tar", help="The root file system under the container.")
]
Join = Annotated[
    Path | None,
    typer.Option("--join", metavar="FILE.toml", help="The file by which it joins, in the place of NAME."),
]
Arch = Annotated[str, typer.Option("--arch", metavar="arm64|amd64", help="The device's architecture.")]
Python = Annotated[str, typer.Option("--python", metavar="3.11", help="The Python that the device has.")]
With = Annotated[
    str, typer.Option("--with", metavar="SOURCE,...", help="Sources with packages of their own.")
]
Lock = Annotated[
    Path | None,
    typer.Option("--lock", metavar="FILE", help="The wheels by their hashes. Written if it is not there."),
]
WheelFolder = Annotated[
    Path | None, typer.Option("--wheels", metavar="DIR", help="Wheels to look for before the package index.")
]
Hostname = Annotated[str, typer.Option("--hostname", metavar="NAME", help="The device's hostname.")]
Ntp = Annotated[
    list[str] | None, typer.Option("--ntp", metavar="SERVER", help="A time server; may be repeated.")
]
WifiName = Annotated[
    str | None,
    typer.Option("--wifi", metavar="SSID", help="A wireless network, whose password is asked for."),
]
PasswordFile = Annotated[
    Path | None, typer.Option("--wifi-password-file", metavar="FILE", help="Read its password there instead.")
]
Country = Annotated[str, typer.Option("--country", metavar="DE", help="By whose rules it may send.")]
FixedAddress = Annotated[
    str | None,
    typer.Option("--address", metavar="ADDRESS/LENGTH", help="A fixed address, such as 10.0.0.5/24."),
]
Gateway = Annotated[str, typer.Option("--gateway", metavar="ADDRESS", help="The way out of its network.")]
Dns = Annotated[
    list[str] | None, typer.Option("--dns", metavar="ADDRESS", help="A name server; may be repeated.")
]


@flash_app.command("flash", short_help="Put the agent onto a device: an installer, a card or a container.")
def flash(
    name: Name = None,
    label: Label = None,
    expires: Expires = "24h",
    installer: Installer = None,
    image: Image = None,
    build: Build = False,
    output: Output = None,
    to: To = None,
    container: Container = None,
    base: Base = None,
    kernel: Kernel = "",
    mirror: Mirror = "",
    data_size: DataSize = 256,
    join: Join = None,
    arch: Arch = "arm64",
    python: Python = "3.11",
    extras: With = "",
    lock: Lock = None,
    wheels: WheelFolder = None,
    hostname: Hostname = "",
    ntp: Ntp = None,
    wifi: WifiName = None,
    wifi_password_file: PasswordFile = None,
    country: Country = "",
    address: FixedAddress = None,
    gateway: Gateway = "",
    dns: Dns = None,
    url: Url = None,
    state: State = None,
) -> None:
    """Put the agent onto a device, which needs no package index for it.

    \b
    Examples:
      gear flash --installer agent.tar.gz --arch amd64 --python 3.13
      gear flash truck-1 --label kind=truck --image raspios.img.xz --to /dev/sdX
      gear flash --build --output device.img
    """
    from geartrain_client.cli.flash import Network, Order, Outputs, OwnImage, flash_device, joining
    from geartrain_client.cli.fleet import parse_labels

    asked = None if name is None else lambda: platform_at(url, state)
    given = joining(name, parse_labels(label or []), parse_seconds("--expires", expires), asked, join)
    network = Network(
        hostname, tuple(ntp or ()), wifi, wifi_password_file, country, address, gateway, tuple(dns or ())
    )
    sources = tuple(sorted({one.strip() for one in extras.split(",")} - {""}))
    own = OwnImage(kernel, mirror, data_size) if build else None
    order = Order(arch, python, sources, lock, wheels, given, network)
    flash_device(order, Outputs(installer, image, output, to, container, base, own))
