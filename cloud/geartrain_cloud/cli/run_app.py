"""`gear run` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.terminal.settings import parse_seconds, parse_set

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STEP.OPTION=VALUE", help="Set an option of a step; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
FlowName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FLOW|FOLDER", help="The flow, such as my_flows.stocks:flow, or a project's folder."
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="NAME[:STEP.OPTION=VALUE]",
        help="Read the sources as this device has them, with an option of its own; may be repeated.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME:KEY=VALUE", help="A label of a device; may be repeated."),
]
FleetFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Devices, their labels and options, as a TOML file."),
]
Output = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write tables.sqlite, a JSON file a table, and Parquet files here."),
]
EventTimes = Annotated[
    bool,
    typer.Option("--event-times", help="Write the event time of each row into the JSON files, too."),
]
Length = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", help="Stop reading after this time, such as 30s, 5m or 2h."),
]
Actuate = Annotated[bool, typer.Option("--actuate", help="Call the functions of the flow's actuators.")]
Fetched = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Run over what gear fetch has written, not over the sources."),
]
Watch = Annotated[
    bool,
    typer.Option("--watch", help="Show the last records of each stream, and run again when a file changes."),
]
Rows = Annotated[
    int,
    typer.Option(metavar="N", min=1, max=100, help="With --watch: the records to show of each stream."),
]
run_app = typer.Typer(rich_markup_mode=None)


@run_app.command("run", short_help="Run a whole flow in this process.")
def run(
    flow: FlowName,
    settings: Set = None,
    device: Devices = None,
    label: Labels = None,
    fleet: FleetFile = None,
    output: Output = None,
    times: EventTimes = False,
    length: Length = None,
    actuate: Actuate = False,
    fetched: Fetched = None,
    watch: Watch = False,
    rows: Rows = 3,
    json: Json = False,
) -> None:
    """Run a whole flow in this process, without broker and Spark.

    It runs to the end of its sources; those that never end are read until Ctrl-C, or as long as --for says.
    The tables are the same, byte for byte, as those of any cut on devices and Spark. What the flow would
    write elsewhere (PostgreSQL, MQTT, files and actuators of a device) is left out and named.

    With --watch it writes nothing and goes on until Ctrl-C: whenever a file of the flow changes, or one that
    its sources read to the end, it runs again.

    With --device or --fleet the sources are read on these devices, and those in the cloud once. The tables
    are those of a platform with these devices. A source that is for some devices is read on these alone. A
    record for another device is a dead letter.

    The exit code is 3 where too many records became dead letters: 300 and more than 1 %, or all of a source.

    \b
    Examples:
      gear run my_flow:flow --output results
      gear run . --set readings.path=data/readings.csv
      gear run my_flow:flow --device station-1:meter.path=a.csv --device station-2:meter.path=b.csv
      gear run . --watch
      gear run my_flow:flow --fleet stations.toml --output results
      gear run my_flow:flow --for 30s --actuate
      gear run my_flow:flow --fetched heat-monday --output results
      gear run geartrain_examples.stocks.flow:flow --set quotes.path=prices.csv --set drawdown.period=month
    """
    from geartrain_client.flow_folder import flow_of
    from geartrain_cloud.cli.fleet import parse_fleet
    from geartrain_cloud.cli.run import RunWishes, run_flow, watch_flow

    seconds = None if length is None else parse_seconds("--for", length)
    devices = parse_fleet(device or [], label or [], fleet)
    wishes = RunWishes(parse_set(settings or []), output, seconds, actuate, json, fetched, devices, times)
    if watch:
        watch_flow(flow, wishes, rows)
    else:
        run_flow(flow_of(flow), wishes)
