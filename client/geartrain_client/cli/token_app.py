"""`gear token` and `gear audit`, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from geartrain_client.cli.platform_options import Json, State, Url, platform_at
from geartrain_client.terminal.settings import parse_seconds

token_app = typer.Typer(
    help="Tokens by which people and programs drive a platform.", no_args_is_help=True, rich_markup_mode=None
)
audit_app = typer.Typer(rich_markup_mode=None)

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is, such as alice or ci.")]


@token_app.command("add", short_help="Make a token with a role, and print it once.")
def token_add(
    name: TokenName,
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        typer.Option(
            "--role",
            metavar="viewer|operator|admin",
            help="A viewer reads, an operator also runs apps and devices, an admin may do all.",
        ),
    ],
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="For this app only, which need not be there.")
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="How long it is good, such as 12h or 90d.")
    ] = "90d",
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write it there, mode 0600, for GEARTRAIN_TOKEN_FILE."),
    ] = None,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Make a token with a role, and print it; the platform keeps a digest, so nobody can see it again.

    \b
    Examples:
      gear token add alice --role operator
      gear token add dashboard --role viewer --app heat --expires 365d --output dashboard.token
    """
    from geartrain_client.cli.tokens import NewToken, add_token

    wanted = NewToken(name, role, app or "", parse_seconds("--expires", expires), output)
    add_token(platform_at(url, state), wanted, as_json=json)


@token_app.command("ls")
def token_ls(url: Url = None, state: State = None, json: Json = False) -> None:
    """List the tokens of a platform: whose, with which role, for which app, until when, and when last used.

    \b
    Example:
      gear token ls
    """
    from geartrain_client.cli.tokens import list_tokens

    list_tokens(platform_at(url, state), as_json=json)


@token_app.command("revoke")
def token_revoke(name: TokenName, url: Url = None, state: State = None, json: Json = False) -> None:
    """Have a token be good for nothing, at once.

    \b
    Example:
      gear token revoke alice
    """
    from geartrain_client.cli.tokens import revoke_token

    revoke_token(platform_at(url, state), name, as_json=json)


@audit_app.command("audit", short_help="Show who has changed what on a platform.")
def audit(
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Not before this: 12h or 7d ago, or a time in UTC.")
    ] = "7d",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Entries to show, the newest.")] = 100,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Show who has changed what on a platform, the newest first: every request that was to change something.

    \b
    Examples:
      gear audit
      gear audit --since 2026-11-01 --limit 1000 --json
    """
    from geartrain_client.cli.tokens import show_audit

    show_audit(platform_at(url, state), since, limit, as_json=json)
