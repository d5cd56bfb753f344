"""The options of commands that mean an app of a platform."""

from __future__ import annotations

from typing import Annotated

import typer

from geartrain_client.cli.platform_options import completed
from geartrain_client.terminal.settings import parse_seconds


def _apps(ctx: typer.Context, incomplete: str) -> list[str]:
    return completed(ctx, "/apps", "name", incomplete)


AppName = Annotated[
    str, typer.Argument(metavar="APP", help="The app, as list shows it.", autocompletion=_apps)
]
OnlyApp = Annotated[
    str | None,
    typer.Option("--app", metavar="APP", help="Of this app alone. Default all.", autocompletion=_apps),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it runs.")]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="Wait at most so long, such as 30s or 5m.")
]


def seconds_of(wait: Wait, timeout: Timeout) -> float | None:
    """The seconds of --wait and --timeout, None for --no-wait; raises `ConfigError`."""
    return parse_seconds("--timeout", timeout) if wait else None
