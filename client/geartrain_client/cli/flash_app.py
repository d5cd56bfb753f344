"""`gear flash` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

flash_app = typer.Typer(rich_markup_mode=None)


@flash_app.command("flash", short_help="Put the agent onto a device: make an installer for it.")
def flash(
    installer: Annotated[
        Path | None,
        typer.Option(metavar="FILE.tar.gz", help="Make an installer for any Linux with systemd."),
    ] = None,
    join: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="The file by which the device joins. Default: joined by hand."
        ),
    ] = None,
    arch: Annotated[str, typer.Option(metavar="arm64|amd64", help="The device's architecture.")] = "arm64",
    python: Annotated[str, typer.Option(metavar="3.11", help="The Python that the device has.")] = "3.11",
    extras: Annotated[
        str, typer.Option("--with", metavar="SOURCE,...", help="Sources with packages of their own.")
    ] = "",
    lock: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The wheels by their hashes. Written where it is not there yet."),
    ] = None,
    wheels: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Wheels to look for before the package index.")
    ] = None,
    hostname: Annotated[str, typer.Option(metavar="NAME", help="The device's hostname.")] = "",
    ntp: Annotated[
        list[str] | None, typer.Option(metavar="SERVER", help="A time server; may be repeated.")
    ] = None,
    wifi: Annotated[
        str | None, typer.Option(metavar="SSID", help="A wireless network, whose password is asked for.")
    ] = None,
    wifi_password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read its password there instead.")
    ] = None,
    country: Annotated[str, typer.Option(metavar="DE", help="By whose rules it may send.")] = "",
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS/LENGTH", help="A fixed address, such as 10.0.0.5/24.")
    ] = None,
    gateway: Annotated[str, typer.Option(metavar="ADDRESS", help="The way out of its network.")] = "",
    dns: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="A name server; may be repeated.")
    ] = None,
) -> None:
    """Put the agent onto a device, which needs no package index for it.

    \b
    Examples:
      gear flash --installer agent.tar.gz --arch arm64 --join join.toml
      gear flash --installer agent.tar.gz --arch amd64 --python 3.13 --lock flash.lock
    """
    from geartrain_client.cli.flash import Network, Order, flash_device

    network = Network(
        hostname, tuple(ntp or ()), wifi, wifi_password_file, country, address, gateway, tuple(dns or ())
    )
    names = tuple(sorted({one.strip() for one in extras.split(",")} - {""}))
    flash_device(Order(arch, python, names, lock, wheels, join, network), installer)
