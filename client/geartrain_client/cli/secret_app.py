"""`gear secret` and its options. A value is read from standard input, from a file or at a terminal, and no
option holds one: other users of a machine see command lines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.app_options import Timeout, seconds_of
from geartrain_client.cli.platform_options import Json, State, Url, platform_at

secret_app = typer.Typer(
    help="Secrets of apps, such as passwords of databases.", no_args_is_help=True, rich_markup_mode=None
)

AppName = Annotated[str, typer.Argument(metavar="APP", help="The app, which need not be there yet.")]
SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="The secret, which a source asks for as secret:NAME.")
]


@secret_app.command("set", short_help="Give a secret of an app its value.")
def secret_set(
    app: AppName,
    name: SecretName,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A file that holds the value.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until each device that is to have it has it.")
    ] = False,
    timeout: Timeout = "2m",
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Give a secret its value, from standard input or a file; at a terminal it is asked for.

    The app's devices get it, sealed for each of them, and open their sources again with it. Nobody is told
    the value again.

    \b
    Examples:
      gear secret set heat db_password
      gear secret set heat db_password --file password.txt
      gear secret set heat db_password --file password.txt --wait --timeout 10m
      pass show heat/db | gear secret set heat db_password
    """
    from geartrain_client.cli.secrets import read_value, set_secret

    seconds = seconds_of(wait, timeout)
    set_secret(platform_at(url, state), app, name, read_value(name, file), seconds, as_json=json)


@secret_app.command("ls")
def secret_ls(
    app: Annotated[str | None, typer.Argument(metavar="[APP]", help="Of this app only.")] = None,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """List secrets: when each was set, and how many devices have it. Values are never shown.

    \b
    Examples:
      gear secret ls
      gear secret ls heat --json
    """
    from geartrain_client.cli.secrets import list_secrets

    list_secrets(platform_at(url, state), app or "", as_json=json)


@secret_app.command("rm")
def secret_rm(
    app: AppName, name: SecretName, url: Url = None, state: State = None, json: Json = False
) -> None:
    """Remove a secret, from the platform and from its devices. Sources that are open go on until they end.

    \b
    Example:
      gear secret rm heat db_password
    """
    from geartrain_client.cli.secrets import remove_secret

    remove_secret(platform_at(url, state), app, name, as_json=json)
