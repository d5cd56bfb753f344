"""`gear backup` and `gear restore`: a copy of a platform while it runs, and a platform out of a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain.errors import ConfigError
from geartrain_client.cli.app_options import Timeout, Wait, seconds_of
from geartrain_client.cli.platform_options import Url, platform_at
from geartrain_cloud.cli.platform_app import Config, State

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
backup_app = typer.Typer(rich_markup_mode=None)
restore_app = typer.Typer(rich_markup_mode=None)


@backup_app.command("backup", short_help="Make a copy of a platform, which may run meanwhile.")
def backup(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR|FILE.tar", help="What is made here; there must be nothing yet."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Have a platform that runs make it, on its own disk."),
    ] = None,
    wait: Wait = True,
    timeout: Timeout = "1h",
    url: Url = None,
    state: State = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Make a copy of a platform, which may run meanwhile: log, checkpoints, tables, control, authority.

    With --output of one on this machine. With --name a platform that runs makes it, in the folder that its
    configuration calls control.backups. The copy holds keys: keep it as safe as the platform. It is there
    whole, or not at all.

    \b
    Examples:
      gear backup --output /backup/monday
      gear backup --state platform --output monday.tar
      gear backup --url https://platform.example:8764 --name monday
    """
    from geartrain_cloud.cli.backup import have_backup_made, make_backup

    if (output is None) == (name is None):
        raise ConfigError("say where the copy is to be: --output here, or --name on the platform's own disk")
    if output is not None:
        if url is not None:
            raise ConfigError("--output is for a platform on this machine: use --name with --url")
        make_backup(state, config, output, as_json=json)
    elif name is not None:
        have_backup_made(platform_at(url, state), name, seconds_of(wait, timeout), as_json=json)


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
