"""The commands of `gear` and their options. The module that does the work is imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_cloud.cli.demo_app import demo_app
from geartrain_cloud.cli.inspect_app import device_app, letters_app, log_app, quarantine_app
from geartrain_cloud.cli.secure_app import broker_app, certs_app, page
from geartrain_cloud.cli.settings import parse_seconds, parse_set

app = typer.Typer(
    name="gear",
    help="Geartrain: one dataflow, from the sensor to the data centre.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STEP.OPTION=VALUE", help="Set an option of a step; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
FlowName = Annotated[
    str, typer.Argument(metavar="MODULE:FLOW", help="The flow, such as my_flows.stocks:flow.")
]


@app.callback(invoke_without_command=True)
def _gear(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from geartrain import __version__

        typer.echo(f"gear {__version__}")
        raise typer.Exit


@app.command("run", short_help="Run a whole flow in this process.")
def run(
    flow: FlowName,
    settings: Set = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write tables.sqlite, a JSON file a table, and Parquet files here."),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Stop reading after this time, such as 30s, 5m or 2h."),
    ] = None,
    actuate: Annotated[
        bool, typer.Option("--actuate", help="Call the functions of the flow's actuators.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a whole flow in this process, without broker and Spark.

    It runs to the end of its sources; those that never end are read until Ctrl-C, or as long as --for says.
    The tables are the same, byte for byte, as those of any cut on devices and Spark. What the flow would
    write elsewhere (PostgreSQL, MQTT, files and actuators of a device) is left out and named.

    The exit code is 3 where too many records became dead letters: 300 and more than 1 %, or all of a source.

    \b
    Examples:
      gear run my_flow:flow --output results
      gear run my_flow:flow --for 30s --actuate
      gear run geartrain_examples.stocks.flow:flow --set quotes.path=prices.csv --set drawdown.period=month
    """
    from geartrain_cloud.cli.run import RunWishes, run_flow

    seconds = None if length is None else parse_seconds("--for", length)
    wishes = RunWishes(parse_set(settings or []), output, seconds, actuate, json)
    run_flow(flow, wishes)


@app.command("plan", short_help="Show where each step of a flow would run, and why.")
def plan(
    flow: FlowName,
    cut: Annotated[
        str,
        typer.Option(metavar="auto|edge|cloud|STEP,...", help="Where to cut; steps named go to the edge."),
    ] = "auto",
    measure: Annotated[
        float | None,
        typer.Option(min=0.1, max=86_400, metavar="SECONDS", help="Run the flow so long, and cut by cost."),
    ] = None,
    capacity: Annotated[
        float | None,
        typer.Option(min=0.001, max=64, metavar="SHARE", help="Of a device's core; default 0.5. Measures."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="List every legal cut. Measures.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the plan there.")] = None,
    settings: Set = None,
    json: Json = False,
) -> None:
    """Show where each step of a flow would run and why, and what would cross.

    What measures runs the flow on its input in this process, for 10 s or as --measure says, and writes no
    table.

    \b
    Examples:
      gear plan geartrain_examples.stocks.flow:flow
      gear plan my_flow:flow --measure 5 --compare --svg plan.svg
      gear plan my_flow:flow --cut cloud --json
    """
    from geartrain_cloud.cli.plan import PlanOptions, show_plan

    show_plan(flow, PlanOptions(cut, measure, capacity, compare, svg, json), parse_set(settings or []))


@app.command("doctor", short_help="Check what this machine has of what is needed.")
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


app.add_typer(demo_app, name="demo")
app.add_typer(device_app, name="device")
app.add_typer(log_app, name="log")
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(letters_app, name="deadletters")
app.add_typer(certs_app, name="certs")
app.add_typer(broker_app, name="broker")
app.command("page", short_help="Serve the page of a demo, to others with a token.")(page)
