"""The commands of `gear` itself and their options; those of other packages are added as they are found.

The module that does the work is imported when a command runs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.agent_app import agent_app
from geartrain_client.cli.apps_app import apps_app
from geartrain_client.cli.changes_app import changes_app
from geartrain_client.cli.device_app import device_app
from geartrain_client.cli.flash_app import flash_app
from geartrain_client.cli.found import AllCommands
from geartrain_client.cli.key_app import key_app
from geartrain_client.cli.platform_app import platform_app
from geartrain_client.cli.secret_app import secret_app
from geartrain_client.cli.token_app import audit_app, token_app
from geartrain_client.terminal.settings import parse_set

app = typer.Typer(
    name="gear",
    cls=AllCommands,
    help="Geartrain: one dataflow, from the sensor to the data centre.",
    no_args_is_help=True,
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
    str,
    typer.Argument(
        metavar="MODULE:FLOW|FOLDER", help="The flow, such as my_flows.stocks:flow, or a project's folder."
    ),
]


@app.callback(invoke_without_command=True)
def _gear(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FILE",
            help="Who may sign the platform's certificate, as PEM. Default GEARTRAIN_CA, or the system's.",
        ),
    ] = None,
) -> None:
    if ca is not None:
        from geartrain_client.rest.door import CA

        os.environ[CA] = str(ca)
    if version:
        from geartrain import __version__

        typer.echo(f"gear {__version__}")
        raise typer.Exit


@app.command("new", short_help="Make a project: a flow, its test, and a sample of data.")
def new(
    name: Annotated[
        Path, typer.Argument(metavar="NAME", help="Of the project, and of the folder that is made.")
    ],
) -> None:
    """Make a project: a flow, its test, and a sample of data, ready for gear run, gear submit and CI.

    \b
    Examples:
      gear new cold-chain
      gear new flows/cold-chain
    """
    from geartrain_client.cli.new_project import new_project

    new_project(name)


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
      gear plan . --set readings.path=data/readings.csv
    """
    from geartrain_client.cli.plan import PlanOptions, show_plan
    from geartrain_client.flow_folder import flow_of

    show_plan(
        flow_of(flow), PlanOptions(cut, measure, capacity, compare, svg, json), parse_set(settings or [])
    )


app.add_typer(apps_app)
app.add_typer(changes_app)
app.add_typer(platform_app)
app.add_typer(device_app, name="device")
app.add_typer(agent_app, name="agent")
app.add_typer(key_app, name="key")
app.add_typer(token_app, name="token")
app.add_typer(secret_app, name="secret")
app.add_typer(audit_app)
app.add_typer(flash_app)
