"""`gear bench` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain_client.cli.apps_app import DeviceSettings
from geartrain_client.terminal.settings import parse_device_set, parse_seconds, parse_set
from geartrain_cloud.cli.run_app import FlowName, Json, Set

Cuts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="auto|edge|cloud|STEP,...",
        help="Where to cut, as for gear plan; may be repeated. Each is measured in turn. Default auto.",
    ),
]
Devices = Annotated[
    int, typer.Option(min=1, max=64, metavar="N", help="Devices of this machine: d1, d2, ...")
]
Runs = Annotated[
    int, typer.Option(min=1, max=100, metavar="N", help="Of each cut; the first comes before Spark is warm.")
]
Length = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="TIME", help="End each run so long after its first row is in a table, such as 60s."
    ),
]
Broker = Annotated[str, typer.Option(metavar="auto|amqtt|mosquitto|HOST:PORT", help="The MQTT broker.")]
Master = Annotated[str, typer.Option(metavar="URL", help="Spark's master.")]
State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Keep the platform's folder there. New or empty."),
]
bench_app = typer.Typer(rich_markup_mode=None)


@bench_app.command("bench", short_help="Measure a flow of yours on a platform of its own.")
def bench(
    flow: FlowName,
    settings: Set = None,
    own: DeviceSettings = None,
    cut: Cuts = None,
    devices: Devices = 1,
    runs: Runs = 2,
    length: Length = None,
    broker: Broker = "auto",
    master: Master = "local[2]",
    state: State = None,
    json: Json = False,
) -> None:
    """Measure a flow of yours on this machine: records a second from its sources to its tables, and what each
    process takes of a processor for a record.

    A platform of its own is brought up in a new folder, as gear up does it, with devices of this machine. The
    flow is submitted once for each run and cut, and runs to the end of its sources, or as long as --for says.
    A run in which a row was lost or doubled gives no figure. What sinks write elsewhere is written.

    \b
    Examples:
      gear bench my_flow:flow
      gear bench . --cut cloud --cut auto --runs 3
      gear bench my_flow:flow --devices 2 --device-set d1:meter.path=a.csv --device-set d2:meter.path=b.csv
      gear bench my_flow:flow --for 60s --json
    """
    from geartrain_client.flow_folder import flow_of
    from geartrain_cloud.cli.bench import BenchOptions, run_bench

    options = BenchOptions(
        parse_set(settings or []),
        parse_device_set(own or []),
        tuple(cut or ["auto"]),
        devices,
        runs,
        None if length is None else parse_seconds("--for", length),
        broker,
        master,
        state,
        json,
    )
    run_bench(flow_of(flow), options)
