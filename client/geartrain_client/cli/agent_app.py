"""`gear agent` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.platform_options import Json, SigningKey, State, Url, platform_at
from geartrain_client.terminal.settings import parse_seconds

agent_app = typer.Typer(
    help="The program of Geartrain that devices run.", no_args_is_help=True, rich_markup_mode=None
)


@agent_app.command("ls")
def ls(
    devices: Annotated[
        str | None, typer.Option("--devices", metavar="SELECTOR", help="Only these: kind=truck,site!=north.")
    ] = None,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """List which program each device runs, which one it is to run, and how far that is.

    \b
    Examples:
      gear agent ls
      gear agent ls --devices kind=truck --json
    """
    from geartrain_client.cli.agents import list_agents

    list_agents(platform_at(url, state), devices, as_json=json)


@agent_app.command("upgrade", short_help="Have devices run another version of the agent.")
def upgrade(
    to: Annotated[
        str, typer.Option("--to", metavar="VERSION", help="The version of Geartrain, or `installed`.")
    ],
    devices: Annotated[
        str, typer.Option("--devices", metavar="SELECTOR", help="Which ones: all, a name, or kind=truck.")
    ],
    wheels: Annotated[
        Path | None,
        typer.Option("--wheels", metavar="DIR", help="Wheels to look for before the package index."),
    ] = None,
    extras: Annotated[
        str, typer.Option("--with", metavar="SOURCE,...", help="Sources with packages of their own.")
    ] = "",
    arch: Annotated[
        str | None,
        typer.Option("--arch", metavar="arm64|amd64", help="Of devices that were not heard of yet."),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="3.11", help="The Python of such devices.")
    ] = None,
    key: SigningKey = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until those in contact have done it.")
    ] = True,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Wait at most so long, such as 30s or 5m.")
    ] = "10m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Have devices run another version of the agent: its wheels are fetched here, checked, signed and sent.

    All that are in contact change at once, the others when they come. One whose new program does not come up
    goes back to the one before by itself, and the exit code is 1.

    \b
    Examples:
      gear agent upgrade --to 0.3.0 --devices kind=truck
      gear agent upgrade --to 0.3.0 --devices truck-1 --wheels dist --timeout 5m
      gear agent upgrade --to installed --devices all --no-wait
    """
    from geartrain_client.cli.agents import UpgradeWishes, upgrade_agents

    seconds = parse_seconds("--timeout", timeout) if wait else None
    sources = tuple(sorted({one.strip() for one in extras.split(",")} - {""}))
    wishes = UpgradeWishes(to, devices, arch, python, wheels, sources, key, seconds, json)
    upgrade_agents(platform_at(url, state), wishes)
