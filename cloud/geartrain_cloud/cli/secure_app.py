"""The commands of `gear` that make a fleet's certificates, configure its broker and show pages to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.platform_options import State, Url, platform_at

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Folder = Annotated[Path, typer.Option("--certs", metavar="DIR", help="The folder of the certificates.")]
Certs = Annotated[
    Path | None,
    typer.Option("--certs", metavar="DIR", help="The folder of the certificates, not a platform."),
]
Kind = Annotated[str, typer.Argument(metavar="device|server|cloud", help="What the certificate is for.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The device, the broker's host, or ingest, down or control of the cloud."
    ),
]
HERE = Path("certs")

certs_app = typer.Typer(
    help="Make, renew and revoke the certificates of a fleet.", no_args_is_help=True, rich_markup_mode=None
)
broker_app = typer.Typer(help="Configure a fleet's broker.", no_args_is_help=True, rich_markup_mode=None)
page_app = typer.Typer(rich_markup_mode=None)


@broker_app.callback()
def _broker() -> None:
    """Configure a fleet's broker."""


@certs_app.command("init")
def init(
    certs: Folder = HERE,
    fleet: Annotated[str, typer.Option(metavar="NAME", help="What the fleet is called.")] = "fleet",
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long the authority is valid.")] = 3_650,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Make the authority that signs all certificates of a fleet; its key is never replaced.

    In a folder; or with --url or --state in a platform that runs.

    \b
    Example:
      gear certs init --fleet "pump stations"
    """
    from geartrain_cloud.cli.secure import init_fleet, init_on, is_platform_meant

    if is_platform_meant(url, state):
        init_on(platform_at(url, state), fleet, days, as_json=json)
    else:
        init_fleet(certs, fleet, days, as_json=json)


@certs_app.command("issue")
def issue(
    kind: Kind,
    name: Name,
    certs: Folder = HERE,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Another name or address of a server; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3_650, help="How long it is valid.")] = 730,
    renew: Annotated[
        bool, typer.Option("--renew", help="A new certificate for the key that is there.")
    ] = False,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Issue a certificate with its key; a key that is there is never overwritten.

    By the authority in the folder; or with --url or --state by that of a platform, for a key that is made in
    the folder here.

    \b
    Examples:
      gear certs issue server broker.example --host 10.0.0.5
      gear certs issue cloud ingest
      gear certs issue device pump-7 --url https://platform.example:8764
    """
    from geartrain_cloud.cli.secure import is_platform_meant, issue_certificate, issue_on

    if is_platform_meant(url, state):
        platform = platform_at(url, state)
        issue_on(platform, certs, kind, name, host or [], days=days, renew=renew, as_json=json)
        return
    issue_certificate(certs, kind, name, host or [], days=days, renew=renew, as_json=json)


@certs_app.command("revoke")
def revoke(
    kind: Kind,
    name: Name,
    certs: Certs = None,
    url: Url = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Revoke all certificates of a name, and write the list that the broker reads.

    \b
    Example:
      gear certs revoke device pump-7
    """
    from geartrain_cloud.cli.secure import register_at, revoke_certificates

    revoke_certificates(register_at(certs, url, state), kind, name, as_json=json)


@certs_app.command("ls")
def ls(certs: Certs = None, url: Url = None, state: State = None, json: Json = False) -> None:
    """List what was issued, with its end and its revocation.

    \b
    Example:
      gear certs ls --certs certs
    """
    from geartrain_cloud.cli.secure import list_certificates, register_at

    list_certificates(register_at(certs, url, state), as_json=json)


@broker_app.command("config")
def config(
    server: Annotated[str, typer.Argument(metavar="HOST", help="Whose certificate the broker shows.")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Write configuration, list and PEMs there.")],
    certs: Folder = HERE,
    listen: Annotated[str, typer.Option(metavar="[HOST:]PORT", help="Where the broker listens.")] = "8883",
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the files lie on the broker's machine. Default DIR itself."),
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Whom mosquitto becomes.")] = "mosquitto",
    json: Json = False,
) -> None:
    """Write all that mosquitto needs to serve a fleet over mutual TLS.

    \b
    Example:
      gear broker config broker.example --output broker --folder /etc/mosquitto/fleet
    """
    from geartrain_cloud.cli.secure import configure_broker

    configure_broker(certs, server, output, folder, listen=listen, user=user, as_json=json)


@page_app.command("page", short_help="Serve the page of a demo, to others with a token.")
def page(
    state: Annotated[Path, typer.Option(metavar="DIR", help="The state folder that a demo has printed.")],
    host: Annotated[str, typer.Option(metavar="HOST", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Default 8765, or a free one.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Holds the token to ask for; mode 0600."),
    ] = None,
) -> None:
    """Serve the page of a demo until Ctrl-C; to other machines only with a token.

    \b
    Example:
      gear page --state run --host 0.0.0.0 --token-file page.token
    """
    from geartrain_cloud.cli.demo_page import Listening, serve_state

    serve_state(state, Listening(host, port, token_file))
