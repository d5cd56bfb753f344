"""The commands of `gear` that look into the log of a running or stopped deployment, and their options.

Each asks a platform by REST, or works on a folder. What ingest must be stopped for has it pause on a
platform, and wants it stopped on a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.platform_options import Url

State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Look into this folder of a run, a platform or a log."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="The batch's number in the quarantine.")]
LetterId = Annotated[str, typer.Argument(metavar="ID", help="The dead letter's id, as ls shows it.")]

log_app = typer.Typer(help="Look into the log, and check it.", no_args_is_help=True, rich_markup_mode=None)
quarantine_app = typer.Typer(
    help="Batches that were kept out of the log.", no_args_is_help=True, rich_markup_mode=None
)
letters_app = typer.Typer(
    help="Records that could not be processed.", no_args_is_help=True, rich_markup_mode=None
)


@log_app.command("ls")
def log_ls(url: Url = None, state: State = None, json: Json = False) -> None:
    """List the channels of the log: positions, rows, segments, clocks of their partitions.

    \b
    Examples:
      gear log ls --state run
      gear log ls --state run --json
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.log import list_log

    list_log(inspected(url, state), as_json=json)


@log_app.command("show")
def log_show(
    place: Annotated[
        str, typer.Argument(metavar="FLOW[/CHANNEL]", help="A flow, or one of its channels, as ls shows it.")
    ],
    url: Url = None,
    state: State = None,
    partition: Annotated[int, typer.Option(min=0, help="Which partition of the log.")] = 0,
    after: Annotated[
        int | None, typer.Option(min=0, metavar="POSITION", help="Show what follows; default the newest.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Entries to show.")] = 20,
    rows: Annotated[bool, typer.Option("--rows", help="Show the rows of the entries, too.")] = False,
    json: Json = False,
) -> None:
    """Show the entries of a flow in their order, or of one of its channels, and their rows.

    \b
    Examples:
      gear log show stocks --state run
      gear log show stocks/prices --state run
      gear log show stocks/prices --after 10 --limit 5 --rows
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.log import show_log

    show_log(inspected(url, state), place, after, limit, partition=partition, with_rows=rows, as_json=json)


@log_app.command("verify")
def log_verify(url: Url = None, state: State = None, json: Json = False) -> None:
    """Read the whole log and name what is damaged; the exit code is 1 if anything is.

    \b
    Example:
      gear log verify --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.log import check_log

    if not check_log(inspected(url, state), as_json=json):
        raise typer.Exit(1)


@log_app.command("trim")
def log_trim(
    url: Url = None,
    state: State = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="Rows older than this may go.")
    ] = None,
    bytes_max: Annotated[
        int | None, typer.Option(min=0, metavar="BYTES", help="The oldest rows beyond this may go.")
    ] = None,
    json: Json = False,
) -> None:
    """Remove old rows that every registered query is done with; positions and clocks stay.

    \b
    Examples:
      gear log trim --state run --older-than 30
      gear log trim --state run --bytes-max 10000000000
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.log import trim_log
    from geartrain_cloud.log.retention import Retention

    seconds = None if older_than is None else older_than * 86_400
    trim_log(inspected(url, state), Retention(seconds, bytes_max), as_json=json)


@log_app.command("erase")
def log_erase(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="The device's name.")],
    url: Url = None,
    state: State = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only say what there is.")] = False,
    json: Json = False,
) -> None:
    """Take what a device has sent out of the log; without --yes nothing is changed.

    Its rows, its dead letters and its quarantined batches go. Positions, clocks and the rows of other devices
    stay. Retire the device first, and replay its apps afterwards, so that their tables are made again. Ingest
    and Spark pause; with --state they must be stopped.

    \b
    Examples:
      gear log erase truck-1
      gear log erase truck-1 --state run --yes
    """
    from geartrain_cloud.cli.erase import show_erased
    from geartrain_cloud.cli.inspected import inspected

    show_erased(device, inspected(url, state).erase(device, do_it=yes), as_json=json)


@log_app.command("queries")
def log_queries(url: Url = None, state: State = None, json: Json = False) -> None:
    """List the queries that read the log, and up to where each is done: beyond that, nothing may go.

    \b
    Example:
      gear log queries --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.log import list_queries

    list_queries(inspected(url, state), as_json=json)


@log_app.command("forget")
def log_forget(
    name: Annotated[str, typer.Argument(metavar="QUERY", help="The query's name, as queries shows it.")],
    url: Url = None,
    state: State = None,
) -> None:
    """Keep nothing of the log for a query any more, because it has ended for good.

    \b
    Example:
      gear log forget stocks-drawdowns --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.log import forget_query

    forget_query(inspected(url, state), name)


@log_app.command("devices")
def log_devices(url: Url = None, state: State = None, json: Json = False) -> None:
    """Show where each device stands, and which one holds the clock.

    \b
    Examples:
      gear log devices --state run
      gear log devices --state run --json
    """
    from geartrain_cloud.cli.devices import list_devices
    from geartrain_cloud.cli.inspected import inspected

    list_devices(inspected(url, state), as_json=json)


@quarantine_app.command("ls")
def quarantine_ls(url: Url = None, state: State = None, json: Json = False) -> None:
    """List the quarantined batches with the reason of each.

    \b
    Example:
      gear quarantine ls --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.refused import list_quarantine

    list_quarantine(inspected(url, state), as_json=json)


@quarantine_app.command("show")
def quarantine_show(number: Number, url: Url = None, state: State = None, json: Json = False) -> None:
    """Show one quarantined batch, its header and its bytes.

    \b
    Example:
      gear quarantine show 3 --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.refused import show_quarantine

    show_quarantine(inspected(url, state), number, as_json=json)


@quarantine_app.command("resubmit")
def quarantine_resubmit(number: Number, url: Url = None, state: State = None, json: Json = False) -> None:
    """Put the rows of a quarantined batch into the log, once; ingest pauses, or must be stopped.

    Only a batch that was acked can be put back: its device sends every other one again.

    \b
    Example:
      gear quarantine resubmit 3 --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.refused import put_back_batch

    put_back_batch(inspected(url, state), number, as_json=json)


@letters_app.command("ls")
def letters_ls(
    url: Url = None,
    state: State = None,
    limit: Annotated[int, typer.Option(min=1, help="Letters to show, the newest ones.")] = 100,
    json: Json = False,
) -> None:
    """List the dead letters of the devices and of Spark's steps.

    \b
    Examples:
      gear deadletters ls --state run
      gear deadletters ls --limit 1000 --json
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.refused import list_letters

    list_letters(inspected(url, state), limit, as_json=json)


@letters_app.command("show")
def letters_show(name: LetterId, url: Url = None, state: State = None, json: Json = False) -> None:
    """Show one dead letter of a device with its raw form.

    \b
    Example:
      gear deadletters show stocks:0:12:3 --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.refused import show_letter

    show_letter(inspected(url, state), name, as_json=json)


@letters_app.command("resubmit")
def letters_resubmit(name: LetterId, url: Url = None, state: State = None, json: Json = False) -> None:
    """Put the record of a dead letter into the log, once; ingest pauses, or must be stopped.

    Only a record that a source refused can be put back: what a later step refused is that step's input, which
    is not what its channel carries.

    \b
    Example:
      gear deadletters resubmit stocks:0:12:3 --state run
    """
    from geartrain_cloud.cli.inspected import inspected
    from geartrain_cloud.cli.refused import put_back_letter

    put_back_letter(inspected(url, state), name, as_json=json)
