"""The commands of `gear` that submit apps, show them and end them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from geartrain.control.states import ADAPTIVE
from geartrain.errors import ConfigError
from geartrain.fleet.selectors import parse_selector
from geartrain_client.cli.app_options import AppName, Timeout, Wait, seconds_of
from geartrain_client.cli.platform_options import Json, SigningKey, State, Url, completed, platform_at
from geartrain_client.rest.platform import segment
from geartrain_client.terminal.settings import (
    parse_age,
    parse_device_set,
    parse_seconds,
    parse_set,
    parse_size,
)

apps_app = typer.Typer(rich_markup_mode=None)


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
DeviceSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--device-set", metavar="DEVICE:STEP.OPTION=VALUE", help="The same, for one device; over --set."
    ),
]
AppCut = Annotated[
    str,
    typer.Option(
        metavar="auto|adaptive|edge|cloud|STEP,...",
        help="Where to cut, as for gear plan. adaptive begins with auto, and follows each device.",
    ),
]
DeviceCuts = Annotated[
    list[str] | None,
    typer.Option(
        "--device-cut",
        metavar="SELECTOR:CUT",
        help="Another cut for some devices, or adaptive. May be repeated; the last for a device holds.",
    ),
]
SubmittedFlow = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FLOW|FOLDER", help="The flow, such as my_flows.stocks:flow, or its project."
    ),
]
RetainedAge = Annotated[
    str, typer.Option("--retain", metavar="TIME", help="How long rows stay in the log, such as 30d.")
]
RetainedSize = Annotated[
    str, typer.Option("--retain-bytes", metavar="SIZE", help="How many bytes of its log stay, such as 2GB.")
]
RetainedTables = Annotated[
    str, typer.Option("--retain-tables", metavar="TIME", help="How old rows of tables become, such as 90d.")
]


@apps_app.command("submit", short_help="Run a flow on a platform, under a name.")
def submit(
    flow: SubmittedFlow,
    name: Annotated[
        str | None, typer.Option("--name", metavar="APP", help="The app's name. Default the flow's.")
    ] = None,
    devices: Annotated[
        str,
        typer.Option(
            metavar="SELECTOR", help="Which devices: kind=truck,site!=north, a device's name, or all."
        ),
    ] = "all",
    cut: AppCut = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STEP.OPTION=VALUE", help="Set an option of a step; may be repeated."),
    ] = None,
    own: DeviceSettings = None,
    device_cuts: DeviceCuts = None,
    isolation: Isolated = Isolation.SHARED,
    retain: RetainedAge = "all",
    retain_bytes: RetainedSize = "all",
    retain_tables: RetainedTables = "all",
    allow_none: Annotated[
        bool, typer.Option("--allow-none", help="Take a selector that no device matches yet.")
    ] = False,
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
    contact start it when they come. A selector that no device matches is refused, but with --allow-none.
    Where gear key new has made keys, the code is signed and sent along, so that devices on other machines get
    it. Paths among the settings are those of the devices. A folder has a pyproject.toml that names its flow
    under [tool.geartrain], or just one flow in its package.

    \b
    Examples:
      gear submit my_flow:flow
      gear submit ./my-project
      gear submit my_flow:flow --name heat --devices kind=truck,site!=north --set readings.path=/var/heat.csv
      gear submit my_flow:flow --device-set truck-1:readings.path=/var/one.csv --no-wait
      gear submit my_flow:flow --cut edge --device-cut kind=old:cloud --device-cut truck-7:high,low
    """
    from geartrain_client.cli.submitting import SubmitWishes, submit_flow

    given = (parse_set(settings or []), parse_device_set(own or []), unchecked, seconds_of(wait, timeout))
    ages = (parse_age("--retain", retain), parse_age("--retain-tables", retain_tables))
    kept = (ages[0], parse_size("--retain-bytes", retain_bytes), ages[1])
    cut, cuts = _cuts(cut, device_cuts or [])
    wishes = SubmitWishes(name, devices, cut, *given, json, isolation.value, key, cuts, *kept, allow_none)
    submit_flow(platform_at(url, state), flow, wishes)


def _cuts(of_app: str, given: list[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The app's cut, and selectors with their own; raises `ConfigError` for another form, and for no
    selector.
    """
    found = [("all", ADAPTIVE)] if of_app == ADAPTIVE else []
    for text in given:
        selector, colon, cut = text.rpartition(":")
        if not (colon and selector.strip() and cut.strip()):
            raise ConfigError(f"--device-cut {text}: write SELECTOR:CUT, such as kind=truck:edge")
        found.append((str(parse_selector(selector)), cut.strip()))
    return "auto" if of_app == ADAPTIVE else of_app, tuple(found)


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


@apps_app.command("explain", short_help="Show why a row of a table is as it is.")
def explain(
    app: AppName,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.", autocompletion=_tables)],
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="The values of its key with commas between, or FIELD=VALUE,..."),
    ],
    limit: Annotated[
        int, typer.Option(min=1, max=1_000, metavar="RECORDS", help="Records to show, the last ones.")
    ] = 20,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Show why a row of a table is as it is: the records of the log behind it, and the steps that made it.

    The app's own steps are run again over the log to find them, and then over these records alone: the last
    line says whether the same row comes out. What crossed the link is shown as it came; what a device made of
    its sources before that is named, not shown.

    \b
    Examples:
      gear explain heat highs oven-3
      gear explain stocks drawdown AAPL,2024
      gear explain stocks drawdown symbol=AAPL,period=2024 --limit 100 --json
    """
    from geartrain_client.cli.explaining import explain_row

    explain_row(platform_at(url, state), app, table, key, limit, as_json=json)


@apps_app.command("fetch", short_help="Bring the records of an app from the platform's log.")
def fetch(
    app: AppName,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write them, a new folder.")],
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Event time of the first. Default the log's.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Event time that none reaches.")
    ] = None,
    with_state: Annotated[
        bool,
        typer.Option("--with-state", help="Also bring all before --from, so that its state is made again."),
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, metavar="RECORDS", help="Records at the most; with more, nothing is kept.")
    ] = 1_000_000,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Bring the records of an app from the platform's log, as a folder that gear run --fetched reads.

    They are those that crossed the link: where steps ran on devices, the flow begins behind them. A range
    that begins at the log's beginning gives the platform's tables, byte for byte. Of a later one, windows
    that lie wholly in it are the same. With --with-state all results from --from on are.

    \b
    Examples:
      gear fetch heat --output heat-all
      gear fetch heat --from 2026-01-05 --to 2026-01-06T12:00:00Z --with-state --output heat-monday
    """
    from geartrain_client.cli.fetching import FetchWishes
    from geartrain_client.cli.fetching import fetch as fetch_records

    wishes = FetchWishes(output, begin, end, with_state, limit, json)
    fetch_records(platform_at(url, state), app, wishes)


@apps_app.command("query", short_help="Ask a running app for the state of a key.")
def query(
    app: AppName,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step that keeps the state.")],
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="The key. Default some of the step's keys.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Ask this device only, of a step there.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Wait at most so long, up to 50s.")
    ] = "30s",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Ask a running app what a step keeps of a key, or which keys it has.

    Of a step in the data centre a micro-batch answers, with the event time and the positions of the log that
    it has reached. It is a short one of its own, behind the one that is under way. Of a step on devices the
    one that has the key answers, between two commits. KEY is true or false, hexadecimal digits or a JSON list
    where the step's keys are booleans, bytes or tuples. One that begins with - goes behind --.

    \b
    Examples:
      gear query traffic jams street-7
      gear query heat by_site '["north", 7]' --json
      gear query heat by_number -- -5
      gear query heat records attic --device truck-1
    """
    from geartrain_client.cli.asking import query_app

    seconds = max(1, round(parse_seconds("--timeout", timeout)))
    query_app(platform_at(url, state), app, step, key, device=device, seconds=seconds, as_json=json)


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

    mode = "drain" if drain else "now"
    kill_app(platform_at(url, state), app, mode, purge=purge, seconds=seconds_of(wait, timeout), as_json=json)


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

    resume_app(platform_at(url, state), app, seconds=seconds_of(wait, timeout), as_json=json)


@apps_app.command("retain", short_help="Say how long the rows of an app stay in the log, and in tables.")
def retain(
    app: AppName,
    age: Annotated[
        str | None, typer.Option("--age", metavar="TIME|all", help="Rows older than this go, such as 30d.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--size", metavar="SIZE|all", help="The oldest beyond this go, such as 2GB.")
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option("--tables", metavar="TIME|all", help="Rows of tables with an older event time go."),
    ] = None,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Say how long the rows of an app stay in the log, by age and size, and in tables; "all" lifts a limit.

    Rows of the log go once they are in the tables, never before. From then on the app cannot be replayed.
    Rows of tables go by their event time. The limits of [log] and [tables] in the platform's configuration
    hold as well.

    \b
    Examples:
      gear retain heat --age 30d
      gear retain heat --age all --size 2GB
      gear retain heat --tables 90d
    """
    from geartrain_client.cli.apps import retain_app

    age_s = None if age is None else parse_age("--age", age)
    size_bytes = None if size is None else parse_size("--size", size)
    tables_s = None if tables is None else parse_age("--tables", tables)
    retain_app(platform_at(url, state), app, age_s, size_bytes, tables_s, as_json=json)
