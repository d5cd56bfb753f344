"""`gear up` and `gear down`: a whole platform on this machine, and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="The platform's folder. Has a default of the user's own."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="The configuration. Default platform.toml there."),
]
up_app = typer.Typer(rich_markup_mode=None)
down_app = typer.Typer(rich_markup_mode=None)


@up_app.command("up", short_help="Run a platform on this machine until Ctrl-C.")
def up(state: State = None, config: Config = None) -> None:
    """Run a platform on this machine: broker, ingest, Spark, control. Ctrl-C ends it.

    Flows are submitted to it while it runs, and what it has begun goes on with the next gear up, whatever
    ended this one. Modules of flows are found in the working folder and among what is installed.

    \b
    Examples:
      gear up
      gear up --state platform
      gear up --config /etc/geartrain/platform.toml
    """
    from geartrain_cloud.cli.platform import run_platform

    run_platform(state, config)


@down_app.command("down", short_help="End the platform that runs on this machine.")
def down(state: State = None, config: Config = None) -> None:
    """End the platform that gear up runs on this machine, and wait until it has ended.

    \b
    Examples:
      gear down
      gear down --state platform
    """
    from geartrain_cloud.cli.platform import end_platform

    end_platform(state, config)
