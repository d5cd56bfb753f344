"""The commands of `gear` that ask a platform over REST, and their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from geartrain.errors import ConfigError, GeartrainError
from geartrain_client.rest.door import find_door
from geartrain_client.rest.platform import Platform, items_of, segment
from geartrain_client.terminal.settings import parse_seconds, parse_set

COMPLETION_S = 2.0
_NAMES_MAX = 200


def platform_at(url: str | None, state: Path | None) -> Platform:
    """The platform that is meant; raises `GeartrainError`. A token that others can read is warned of."""
    door = find_door(url, state)
    if door.shows_its_token:
        typer.echo(f"gear: {door.url} is not encrypted: others on the way can read the token", err=True)
    return Platform(door)


def _completed(context: typer.Context, path: str, field: str, begun: str) -> list[str]:
    """Names for the shell to choose from; none where the platform does not answer at once."""
    try:
        given = context.params
        platform = Platform(find_door(given.get("url"), given.get("state")), attempts=1)
        found = items_of(platform.get(path, timeout_s=COMPLETION_S))
    except GeartrainError:
        return []
    names = [one[field] for one in found if isinstance(one, dict) and isinstance(one.get(field), str)]
    return [name for name in names if name.startswith(begun) and name.isprintable()][:_NAMES_MAX]


def _apps(ctx: typer.Context, incomplete: str) -> list[str]:
    return _completed(ctx, "/apps", "name", incomplete)


def _devices(ctx: typer.Context, incomplete: str) -> list[str]:
    return _completed(ctx, "/devices", "name", incomplete)


def _tables(ctx: typer.Context, incomplete: str) -> list[str]:
    app = ctx.params.get("app")
    return _completed(ctx, f"/apps/{segment(app)}/tables", "name", incomplete) if app else []


Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The platform. Default GEARTRAIN_URL, or that of --state."),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="The folder of a platform that gear up started here. Has a default."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
AppName = Annotated[
    str, typer.Argument(metavar="APP", help="The app, as list shows it.", autocompletion=_apps)
]
DeviceName = Annotated[
    str, typer.Argument(metavar="DEVICE", help="The device, as ls shows it.", autocompletion=_devices)
]
JoinFile = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FILE", help="Write it there, mode 0600, for gear flash or join --from."
    ),
]
Expires = Annotated[
    str, typer.Option("--expires", metavar="TIME", help="How long the line is good, such as 24h or 7d.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it runs.")]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="Wait at most so long, such as 30s or 5m.")
]


class Isolation(StrEnum):
    """Whether a flow shares a query of Spark with others."""

    SHARED = "shared"
    OWN = "own"


Isolated = Annotated[
    Isolation, typer.Option(help="Of the data centre's part: share a query of Spark, or have one of its own.")
]

SigningKey = Annotated[
    str | None,
    typer.Option("--key", metavar="AUTHOR", help="Whose keys sign the code; needed where several are here."),
]

platform_app = typer.Typer(rich_markup_mode=None)
device_app = typer.Typer(help="The devices of a platform.", no_args_is_help=True, rich_markup_mode=None)


@platform_app.command("submit", short_help="Run a flow on a platform, under a name.")
def submit(
    flow: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FLOW|FOLDER", help="The flow, such as my_flows.stocks:flow, or its project."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="APP", help="The app's name. Default the flow's.")
    ] = None,
    devices: Annotated[
        str,
        typer.Option(
            metavar="SELECTOR", help="Which devices: kind=truck,site!=north, a device's name, or all."
        ),
    ] = "all",
    cut: Annotated[
        str, typer.Option(metavar="auto|edge|cloud|STEP,...", help="Where to cut, as for gear plan.")
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STEP.OPTION=VALUE", help="Set an option of a step; may be repeated."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            "--device-set", metavar="DEVICE:STEP.OPTION=VALUE", help="The same, for one device; over --set."
        ),
    ] = None,
    isolation: Isolated = Isolation.SHARED,
    key: SigningKey = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not load the flow here: run what is installed there.")
    ] = False,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Run a flow on a platform, under a name: on the devices that a selector means, and in the data centre.

    It is loaded and planned here first; nothing is sent of a flow that cannot run. Devices that are out of
    contact start it when they come. Where gear key new has made keys, the code is signed and sent along, so
    that devices on other machines get it. Paths among the settings are those of the devices. A folder has a
    pyproject.toml that names its flow under [tool.geartrain], or just one flow in its package.

    \b
    Examples:
      gear submit my_flow:flow
      gear submit ./my-project
      gear submit my_flow:flow --name heat --devices kind=truck,site!=north --set readings.path=/var/heat.csv
      gear submit my_flow:flow --device-set truck-1:readings.path=/var/one.csv --no-wait
    """
    from geartrain_client.cli.submitting import SubmitWishes, submit_flow

    seconds = parse_seconds("--timeout", timeout) if wait else None
    given = (parse_set(settings or []), _own_settings(own or []))
    wishes = SubmitWishes(name, devices, cut, *given, unchecked, seconds, json, isolation.value, key)
    submit_flow(platform_at(url, state), flow, wishes)


def _own_settings(given: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Settings by device; raises `ConfigError` for another form."""
    by_device: dict[str, list[str]] = {}
    for text in given:
        device, colon, setting = text.partition(":")
        if not (colon and device and setting):
            raise ConfigError(f"--device-set {text}: write DEVICE:STEP.OPTION=VALUE")
        by_device.setdefault(device, []).append(setting)
    return {device: parse_set(settings) for device, settings in by_device.items()}


@platform_app.command("list", short_help="List the apps of a platform.")
def list_(url: Url = None, state: State = None, json: Json = False) -> None:
    """List the apps of a platform: what each has come to, and how many devices have applied it.

    \b
    Examples:
      gear list
      gear list --url http://127.0.0.1:8764 --json
    """
    from geartrain_client.cli.apps import list_apps

    list_apps(platform_at(url, state), as_json=json)


@platform_app.command("info", short_help="Show what is known of an app.")
def info(app: AppName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Show what is known of an app: its revision, devices, clocks, rates, and what it waits for.

    \b
    Example:
      gear info heat
    """
    from geartrain_client.cli.apps import show_app

    show_app(platform_at(url, state), app, as_json=json)


@platform_app.command("logs", short_help="Show what the processes of an app have printed.")
def logs(
    app: AppName,
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="Lines to show, the newest ones.")] = 100,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Show the last lines that the processes of an app have printed.

    \b
    Example:
      gear logs heat --lines 20
    """
    from geartrain_client.cli.apps import show_logs

    show_logs(platform_at(url, state), app, lines, as_json=json)


@platform_app.command("table", short_help="Show a table of an app, or list its tables.")
def table(
    app: AppName,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The table. Default all by name.", autocompletion=_tables),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROWS", help="Rows at the most. Default 50, for programs all."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, all rows.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with each row that appears or changes, until Ctrl-C.")
    ] = False,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Show a table of an app, or list its tables.

    \b
    Examples:
      gear table heat
      gear table heat highs --limit 1000
      gear table heat highs --csv
      gear table heat highs --follow
    """
    from geartrain_client.cli.tables import TableWishes, show_table

    if as_csv and (json or follow):
        raise ConfigError(
            "--csv goes with neither --json nor --follow, which prints CSV anyway: leave one out"
        )
    show_table(platform_at(url, state), app, name, TableWishes(limit, as_csv, follow, json))


@platform_app.command("kill", short_help="End an app; its tables stay.")
def kill(
    app: AppName,
    drain: Annotated[
        bool, typer.Option("--drain/--now", help="Take in what the devices hold first, or stop at once.")
    ] = True,
    purge: Annotated[bool, typer.Option("--purge", help="Remove its tables as well.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing of it runs.")] = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """End an app on all devices and in the data centre; its tables stay, unless they are purged.

    One that has ended by itself is purged the same way. Devices remove what they keep of it when they hear of
    that.

    \b
    Examples:
      gear kill heat
      gear kill heat --now --purge
    """
    from geartrain_client.cli.apps import kill_app

    seconds = parse_seconds("--timeout", timeout) if wait else None
    mode = "drain" if drain else "now"
    kill_app(platform_at(url, state), app, mode, purge=purge, seconds=seconds, as_json=json)


@platform_app.command("replay", short_help="Run an app anew from the beginning of its log.")
def replay(app: AppName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Run the cloud's part of an app anew from the beginning of its log, and then swap the tables.

    \b
    Example:
      gear replay heat
    """
    from geartrain_client.cli.apps import replay_app

    replay_app(platform_at(url, state), app, as_json=json)


@platform_app.command("resume", short_help="Have an app that has failed go on.")
def resume(
    app: AppName,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app that has failed go on, with its state and with the code that is installed now.

    \b
    Example:
      gear resume heat
    """
    from geartrain_client.cli.apps import resume_app

    seconds = parse_seconds("--timeout", timeout) if wait else None
    resume_app(platform_at(url, state), app, seconds=seconds, as_json=json)


@platform_app.command("update", short_help="Have an app go on with other code.")
def update(
    app: AppName,
    flow: Annotated[
        str,
        typer.Argument(metavar="MODULE:FLOW|FOLDER", help="The app's flow, or its project, as it is now."),
    ],
    key: SigningKey = None,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app go on with other code of the same flow, from its state; its name and its tables stay.

    The flow must have the same steps, types, options and channels; what differs is named, and nothing is
    changed. Devices that are out of contact get the code when they come.

    \b
    Examples:
      gear update heat ./my-project
      gear update heat my_flow:flow --key alice
    """
    from geartrain_client.cli.updating import update_app

    seconds = parse_seconds("--timeout", timeout) if wait else None
    update_app(platform_at(url, state), app, flow, key, seconds=seconds, as_json=json)


@platform_app.command("rollback", short_help="Have an app go on with the code before its update.")
def rollback(
    app: AppName,
    wait: Wait = True,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have an app go on with the code that it ran before its last update, from its state.

    \b
    Example:
      gear rollback heat
    """
    from geartrain_client.cli.updating import rollback_app

    seconds = parse_seconds("--timeout", timeout) if wait else None
    rollback_app(platform_at(url, state), app, seconds=seconds, as_json=json)


@platform_app.command("status", short_help="Show the processes of a platform.")
def status(url: Url = None, state: State = None, json: Json = False) -> None:
    """Show the processes of a platform: state, memory, restarts, and what each waits for.

    \b
    Examples:
      gear status
      gear status --json
    """
    from geartrain_client.cli.status import show_status

    show_status(platform_at(url, state), as_json=json)


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
