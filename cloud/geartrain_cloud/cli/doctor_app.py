"""`gear doctor` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
doctor_app = typer.Typer(rich_markup_mode=None)


@doctor_app.command("doctor", short_help="Check what this machine has of what is needed.")
def doctor(
    json: Json = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The disk to measure. Default where temporary files go."),
    ] = None,
) -> None:
    """Check what this machine has of what Geartrain needs: Java, broker, ports, disk, packages.

    \b
    Examples:
      gear doctor
      gear doctor --json
    """
    from geartrain_cloud.cli.doctor import show_checks

    if not show_checks(folder, as_json=json):
        raise typer.Exit(1)
