"""`gear key` and its options."""

from __future__ import annotations

import getpass
import re
from typing import Annotated

import typer

from geartrain_client.cli.platform_options import Json, SigningKey, State, Url, platform_at

key_app = typer.Typer(
    help="Keys that sign the code of flows for devices.", no_args_is_help=True, rich_markup_mode=None
)

Public = Annotated[
    str, typer.Argument(metavar="PUB", help="What gear key show prints there: NAME:64 digits.")
]
Author = Annotated[
    str | None, typer.Argument(metavar="AUTHOR", help="Whose; needed where keys of several are here.")
]


@key_app.command("new", short_help="Make keys that sign the code of flows.")
def new(
    name: Annotated[
        str | None, typer.Option("--name", metavar="AUTHOR", help="Whose they are. Default the user's name.")
    ] = None,
) -> None:
    """Make keys that sign the code of flows, in ~/.config/geartrain/keys or GEARTRAIN_KEYS.

    The first author whose code a platform gets is the one who may trust others. Keys never leave the folder:
    keep a copy of them in a safe place.

    \b
    Examples:
      gear key new
      gear key new --name alice
    """
    from geartrain_client.cli.signing import new_key

    new_key(_user() if name is None else name)


def _user() -> str:
    """The user's name, as far as it can be that of keys."""
    try:
        return re.sub(r"[^A-Za-z0-9_-]", "-", getpass.getuser())[:40] or "author"
    except (KeyError, OSError):
        return "author"


@key_app.command("ls")
def ls(url: Url = None, state: State = None, json: Json = False) -> None:
    """List the authors whose keys are here, and those whom the platform trusts.

    \b
    Example:
      gear key ls
    """
    from geartrain_client.cli.signing import list_keys

    list_keys(lambda: platform_at(url, state), as_json=json)


@key_app.command("show")
def show(author: Author = None) -> None:
    """Print the public key of an author, by which others trust the code that it signs.

    \b
    Example:
      gear key show alice
    """
    from geartrain_client.cli.signing import show_key

    show_key(author)


@key_app.command("trust", short_help="Have a platform and its devices trust another author.")
def trust(public: Public, key: SigningKey = None, url: Url = None, state: State = None) -> None:
    """Have a platform and its devices trust the code that another author signs.

    Only who signed the platform's first code may do that, with the keys of then.

    \b
    Example:
      gear key trust bob:9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60
    """
    from geartrain_client.cli.signing import trust_key

    trust_key(platform_at(url, state), public, key)


@key_app.command("distrust", short_help="Have a platform and its devices trust an author no more.")
def distrust(public: Public, key: SigningKey = None, url: Url = None, state: State = None) -> None:
    """Have a platform and its devices trust an author no more, such as one whose keys were stolen.

    \b
    Example:
      gear key distrust bob:9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60
    """
    from geartrain_client.cli.signing import distrust_key

    distrust_key(platform_at(url, state), public, key)
