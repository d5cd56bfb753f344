"""`gear device` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.platform_options import Expires, Json, State, Url, completed, platform_at
from geartrain_client.terminal.settings import parse_seconds

device_app = typer.Typer(help="The devices of a platform.", no_args_is_help=True, rich_markup_mode=None)


def _devices(ctx: typer.Context, incomplete: str) -> list[str]:
    return completed(ctx, "/devices", "name", incomplete)


DeviceName = Annotated[
    str, typer.Argument(metavar="DEVICE", help="The device, as ls shows it.", autocompletion=_devices)
]
JoinFile = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FILE", help="Write it there, mode 0600, for gear flash or join --from."
    ),
]


@device_app.command("add", short_help="Add a device to a platform, and print the line by which it joins.")
def device_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the device is called.")],
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="A label for selectors; may be repeated."),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="gear up runs it, on the platform's own machine.")
    ] = False,
    as_file: Annotated[
        bool, typer.Option("--file", help="Print the device's file instead of a line to join by.")
    ] = False,
    output: JoinFile = None,
    expires: Expires = "24h",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Add a device to a platform, and print the line by which it joins.

    The line holds a token that is good once. A platform without [fleet] address is for this machine only: the
    file that gear-agent needs is printed instead.

    \b
    Examples:
      gear device add truck-1 --label kind=truck
      gear device add truck-2 --expires 7d --output join.toml
      gear device add here --local
    """
    from geartrain_client.cli.fleet import NewDevice, add_device, parse_labels

    seconds, labels = parse_seconds("--expires", expires), parse_labels(label or [])
    wanted = NewDevice(name, labels, output, as_file, local, seconds)
    add_device(platform_at(url, state), wanted, as_json=json)


@device_app.command("token", short_help="Print a new line by which a device joins.")
def device_token(
    device: DeviceName,
    output: JoinFile = None,
    expires: Expires = "24h",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Print a new line by which a device joins; who joins by it takes the name from whoever had it before.

    \b
    Example:
      gear device token truck-1 --expires 1h
    """
    from geartrain_client.cli.fleet import show_join_line

    seconds = parse_seconds("--expires", expires)
    show_join_line(platform_at(url, state), device, seconds, output, as_json=json)


@device_app.command("ls")
def device_ls(
    selector: Annotated[
        str | None, typer.Option("--label", metavar="SELECTOR", help="Only these: kind=truck,site!=north.")
    ] = None,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """List the devices of a platform.

    \b
    Examples:
      gear device ls
      gear device ls --label kind=truck --json
    """
    from geartrain_client.cli.fleet import list_devices

    list_devices(platform_at(url, state), selector, as_json=json)


@device_app.command("show")
def device_show(device: DeviceName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Show what is known of a device.

    \b
    Example:
      gear device show truck-1
    """
    from geartrain_client.cli.fleet import show_device

    show_device(platform_at(url, state), device, as_json=json)


@device_app.command("label", short_help="Set labels of a device, or take them away.")
def device_label(
    device: DeviceName,
    labels: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE|KEY-...", help="Labels to set, or to take away.")
    ],
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Set labels of a device, or take them away; apps whose selectors match now come at once, and none goes.

    \b
    Examples:
      gear device label truck-1 site=north
      gear device label truck-1 site-
    """
    from geartrain_client.cli.fleet import label_device, parse_labels

    label_device(platform_at(url, state), device, parse_labels(labels, may_go=True), as_json=json)


@device_app.command("retire", short_help="Retire a device: no clock waits for it.")
def device_retire(device: DeviceName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Retire a device: no clock waits for it any more, and it runs nothing.

    \b
    Example:
      gear device retire truck-1
    """
    from geartrain_client.cli.fleet import retire_device

    retire_device(platform_at(url, state), device, as_json=json)


@device_app.command("purge", short_help="Erase what a device has sent, and retire it.")
def device_purge(
    device: DeviceName,
    leave: Annotated[
        list[str] | None,
        typer.Option("--leave", metavar="APP", help="This app stays as it is; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")] = True,
    timeout: Annotated[str, typer.Option(metavar="SECONDS", help="How long to wait.")] = "30m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Erase what a device has sent from a running platform, and retire the device.

    Ingest and Spark stop for the seconds in which files are written anew; devices keep what they have. Then
    each app makes its tables anew without the device. There is no way back.

    \b
    Examples:
      gear device purge truck-1 --dry-run
      gear device purge truck-1 --yes
      gear device purge truck-1 --leave alarms
    """
    from geartrain_client.cli.purging import purge_device

    seconds = parse_seconds("--timeout", timeout) if wait else None
    purge_device(
        platform_at(url, state), device, leave or [], dry_run=dry_run, yes=yes, wait_s=seconds, as_json=json
    )


@device_app.command("revoke", short_help="End the certificates of a device, and its connections.")
def device_revoke(device: DeviceName, url: Url = None, state: State = None, json: Json = False) -> None:
    """End the certificates of a device, and the connections that it has made with them.

    The device stays, with its apps: gear device token has it join anew.

    \b
    Example:
      gear device revoke truck-1
    """
    from geartrain_client.cli.fleet import revoke_device

    revoke_device(platform_at(url, state), device, as_json=json)


@device_app.command("accept", short_help="Have a refused device take what is wanted now.")
def device_accept(device: DeviceName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Have a device take what the platform wants of it now, though it has applied something later.

    A platform refuses such a device: its control store was restored from a copy. Look at what runs there
    first.

    \b
    Example:
      gear device accept truck-1
    """
    from geartrain_client.cli.fleet import accept_device

    accept_device(platform_at(url, state), device, as_json=json)
