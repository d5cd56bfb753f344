"""The commands of `gear` about a platform as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from geartrain_client.cli.app_options import OnlyApp
from geartrain_client.cli.platform_options import Json, State, Url, platform_at

platform_app = typer.Typer(rich_markup_mode=None)


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


@platform_app.command("events", short_help="Show what changes on a platform, as it happens.")
def events(
    app: OnlyApp = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="From then on: 10m or 2h ago, or a time in UTC."),
    ] = None,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Show what changes on a platform until Ctrl-C: its apps, revisions and cuts, its devices and programs.

    It goes on by itself when the platform was away for up to ten minutes.

    \b
    Examples:
      gear events
      gear events --app heat --since 1h
      gear events --json
    """
    from geartrain_client.cli.events import show_events

    show_events(platform_at(url, state), app, since, as_json=json)
