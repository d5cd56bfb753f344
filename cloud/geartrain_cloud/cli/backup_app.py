"""`gear backup` and `gear restore`: a copy of a platform while it runs, and a platform out of a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_cloud.cli.platform_app import Config, State

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
backup_app = typer.Typer(rich_markup_mode=None)
restore_app = typer.Typer(rich_markup_mode=None)


@backup_app.command("backup", short_help="Make a copy of a platform, which may run meanwhile.")
def backup(
    output: Annotated[
        Path,
        typer.Option("--output", metavar="DIR|FILE.tar", help="What is made; there must be nothing yet."),
    ],
    state: State = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Make a copy of a platform on this machine, which may run meanwhile: log, checkpoints, tables, control,
    authority.

    The copy holds keys: keep it as safe as the platform. It is there whole, or not at all.

    \b
    Examples:
      gear backup --output /backup/monday
      gear backup --state platform --output monday.tar
    """
    from geartrain_cloud.cli.backup import make_backup

    make_backup(state, config, output, as_json=json)


@restore_app.command("restore", short_help="Bring a copy of a platform back into an empty folder.")
def restore(
    copy: Annotated[Path, typer.Argument(metavar="BACKUP", help="What gear backup has made.")],
    state: Annotated[
        Path, typer.Option("--state", metavar="DIR", help="The platform's folder: empty, or not there yet.")
    ],
    json: Json = False,
) -> None:
    """Bring a copy of a platform back into an empty folder, from which gear up goes on.

    All of it is checked first. End the former platform for good: two that go on from one copy harm
    each other.

    \b
    Examples:
      gear restore /backup/monday --state platform
      gear restore monday.tar --state platform   (then: gear up --state platform)
    """
    from geartrain_cloud.cli.backup import bring_back

    bring_back(copy, state, as_json=json)
