"""The commands of `gear` about apps, and their options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from geartrain.errors import ConfigError
from geartrain_client.cli.platform_options import Json, SigningKey, State, Url, completed, platform_at
from geartrain_client.rest.platform import segment
from geartrain_client.terminal.settings import parse_seconds, parse_set

apps_app = typer.Typer(rich_markup_mode=None)


def _apps(ctx: typer.Context, incomplete: str) -> list[str]:
    return completed(ctx, "/apps", "name", incomplete)


def _tables(ctx: typer.Context, incomplete: str) -> list[str]:
    app = ctx.params.get("app")
    return completed(ctx, f"/apps/{segment(app)}/tables", "name", incomplete) if app else []


class Isolation(StrEnum):
    """Whether a flow shares a query of Spark with others."""

    SHARED = "shared"
    OWN = "own"


Isolated = Annotated[
    Isolation, typer.Option(help="Of the data centre's part: share a query of Spark, or have one of its own.")
]
AppName = Annotated[
    str, typer.Argument(metavar="APP", help="The app, as list shows it.", autocompletion=_apps)
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it runs.")]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="Wait at most so long, such as 30s or 5m.")
]


@apps_app.command("submit", short_help="Run a flow on a platform, under a name.")
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


@apps_app.command("list", short_help="List the apps of a platform.")
def list_(url: Url = None, state: State = None, json: Json = False) -> None:
    """List the apps of a platform: what each has come to, and how many devices have applied it.

    \b
    Examples:
      gear list
      gear list --url http://127.0.0.1:8764 --json
    """
    from geartrain_client.cli.apps import list_apps

    list_apps(platform_at(url, state), as_json=json)


@apps_app.command("info", short_help="Show what is known of an app.")
def info(app: AppName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Show what is known of an app: its revision, devices, clocks, rates, and what it waits for.

    \b
    Example:
      gear info heat
    """
    from geartrain_client.cli.apps import show_app

    show_app(platform_at(url, state), app, as_json=json)


@apps_app.command("logs", short_help="Show what the processes of an app have printed.")
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


@apps_app.command("table", short_help="Show a table of an app, or list its tables.")
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


@apps_app.command("kill", short_help="End an app; its tables stay.")
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


@apps_app.command("replay", short_help="Run an app anew from the beginning of its log.")
def replay(app: AppName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Run the cloud's part of an app anew from the beginning of its log, and then swap the tables.

    \b
    Example:
      gear replay heat
    """
    from geartrain_client.cli.apps import replay_app

    replay_app(platform_at(url, state), app, as_json=json)


@apps_app.command("resume", short_help="Have an app that has failed go on.")
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


@apps_app.command("update", short_help="Have an app go on with other code.")
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


@apps_app.command("rollback", short_help="Have an app go on with the code before its update.")
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
