"""The commands of `gear` about a platform as a whole."""

from __future__ import annotations

import typer

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
