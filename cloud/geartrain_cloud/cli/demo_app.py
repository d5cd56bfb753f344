"""The commands of `gear demo` and their options; what runs is imported when one is run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

demo_app = typer.Typer(
    help="Run a demo: the whole path on this machine.", no_args_is_help=True, rich_markup_mode=None
)


class CutChoice(StrEnum):
    """What of a flow runs on the devices."""

    AUTO = "auto"
    EDGE = "edge"
    CLOUD = "cloud"


class PeriodChoice(StrEnum):
    """The periods that the stock demo can report."""

    DAY = "day"
    MONTH = "month"
    YEAR = "year"
    ALL = "all"


InputOption = Annotated[
    Path | None,
    typer.Option("--input", metavar="FILE", help="Prices: a CSV file (.gz too) of symbol,date,price."),
]
DevicesOption = Annotated[
    int | None, typer.Option(min=1, max=256, help="Agents; default 5, or one a symbol if there are fewer.")
]
CamerasOption = Annotated[
    int | None, typer.Option(min=1, max=256, help="Agents; default 8, or one a street if there are fewer.")
]
DemoCutOption = Annotated[
    CutChoice | None,
    typer.Option(
        metavar="auto|edge|cloud",
        help="auto: on the devices what may be there; edge: the same, or refuse; "
        "cloud: only sources there. Default auto.",
    ),
]
StepsCutOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|edge|cloud|STEP,...",
        help="auto: the planner's choice; edge: on the devices all that may be there; cloud: only sources "
        "there; or these steps and all above them. Default auto.",
    ),
]
PeriodOption = Annotated[
    PeriodChoice | None,
    typer.Option(metavar="day|month|year|all", help="The period of the output. Default year."),
]
OutputOption = Annotated[
    Path | None, typer.Option(metavar="FILE.json", help="Write the drawdowns here as well.")
]
FolderOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="DIR", help="Write a file TABLE.json for each table here as well."),
]
PageOption = Annotated[bool, typer.Option("--page/--no-page", help="Show the page at the end, until Ctrl-C.")]
LivePageOption = Annotated[
    bool, typer.Option("--page/--no-page", help="Show the page from the start, and at the end until Ctrl-C.")
]
SpeedOption = Annotated[str, typer.Option(metavar="N|max", help="Event seconds per second; a day is 86400.")]
StateOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder of this run; an existing one resumes. Default a new one."),
]
BrokerOption = Annotated[str, typer.Option(metavar="auto|amqtt|mosquitto|HOST:PORT", help="The MQTT broker.")]
CertsOption = Annotated[
    Path | None,
    typer.Option("--certs", metavar="DIR", help="The certificates of the fleet whose broker HOST:PORT is."),
]
MasterOption = Annotated[str, typer.Option(metavar="URL", help="Spark's master.")]

PassesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="CSV (.gz too) of time_s,detector,edge,lane,vehicle,speed_mps. Default the sample.",
    ),
]
LoopsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="CSV (.gz too) of begin_s,detector,n,speed_mps,occupancy_pct."),
]
CheckpointsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="CSV (.gz too) of detector,x_m,y_m.")
]
StartOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="When second 0 of the files was. Default 2026-01-01T00:00:00Z."),
]
LimitOption = Annotated[
    float | None, typer.Option("--limit-mps", metavar="N", help="The limit at a camera. Default 13.89.")
]
SectionLimitOption = Annotated[
    float | None,
    typer.Option("--section-limit-kmh", metavar="N", help="The limit between two cameras. Default 60."),
]
CityOption = Annotated[
    int | None,
    typer.Option(min=2, max=200, metavar="N", help="Traffic of a made-up city of N x N cameras, 5 km apart."),
]
VehiclesOption = Annotated[
    int | None, typer.Option(min=1, max=10_000_000, help="Vehicles of --city. Default 500.")
]
FakeShareOption = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="SHARE", help="Part of the plates of --city used twice. Default 0.02."
    ),
]
LiveOption = Annotated[
    bool, typer.Option("--live", help="Traffic as SUMO simulates it now; needs geartrain-examples[sumo].")
]


@demo_app.callback()
def _demo() -> None:
    """Run a demo: the whole path on this machine."""


@demo_app.command("stocks")
def stocks(
    input_: InputOption = None,
    devices: DevicesOption = None,
    cut: DemoCutOption = None,
    period: PeriodOption = None,
    output: OutputOption = None,
    page: PageOption = True,
    speed: SpeedOption = "max",
    state: StateOption = None,
    broker: BrokerOption = "auto",
    certs: CertsOption = None,
    master: MasterOption = "local[2]",
) -> None:
    """Worst drawdown of stocks, on real prices, from agents through MQTT and Spark to a page.

    Broker, ingest, Spark driver and agents run as processes of their own; one that dies is started again.

    \b
    Examples:
      gear demo stocks
      gear demo stocks --cut cloud --period month --no-page --output drawdown.json
      gear demo stocks --input prices.csv.gz --devices 3
      gear demo stocks --state run1        (and once more, to resume)
    """
    from geartrain_cloud.cli.demo import DemoOptions, run_demo

    run_demo(
        "stocks",
        DemoOptions(
            inputs=_given(input=input_),
            settings=_given(period=None if period is None else period.value),
            devices=devices,
            cut=None if cut is None else cut.value,
            output=output,
            page=page,
            speed=speed,
            state=state,
            broker=broker,
            certs=certs,
            master=master,
        ),
    )


@demo_app.command("traffic")
def traffic(
    passes: PassesOption = None,
    loops: LoopsOption = None,
    checkpoints: CheckpointsOption = None,
    start: StartOption = None,
    live: LiveOption = False,
    city: CityOption = None,
    vehicles: VehiclesOption = None,
    fake_share: FakeShareOption = None,
    limit_mps: LimitOption = None,
    section_limit_kmh: SectionLimitOption = None,
    devices: CamerasOption = None,
    cut: StepsCutOption = None,
    output: FolderOption = None,
    page: LivePageOption = True,
    speed: SpeedOption = "max",
    state: StateOption = None,
    broker: BrokerOption = "auto",
    certs: CertsOption = None,
    master: MasterOption = "local[2]",
) -> None:
    """Cameras and loops of a city: who drives too fast, plates used twice, traces, and how each street is.

    Each agent has some of the streets; what concerns one street is found there, and what concerns a vehicle
    in Spark. Broker, ingest, Spark driver and agents run as processes of their own.

    \b
    Examples:
      gear demo traffic
      gear demo traffic --city 5 --vehicles 2000 --fake-share 0.05
      gear demo traffic --passes passes.csv.gz --loops loops.csv.gz --devices 3 --cut cloud
      gear demo traffic --no-page --output tables --cut overspeed,streets
    """
    from geartrain_cloud.cli.demo import DemoOptions, run_demo

    run_demo(
        "traffic",
        DemoOptions(
            inputs=_given(passes=passes, loops=loops, checkpoints=checkpoints),
            settings=_texts(
                start=start,
                live="yes" if live else None,
                city=city,
                vehicles=vehicles,
                fake_share=fake_share,
                limit_mps=limit_mps,
                section_limit_kmh=section_limit_kmh,
            ),
            devices=devices,
            cut=cut,
            output=output,
            page=page,
            speed=speed,
            state=state,
            broker=broker,
            certs=certs,
            master=master,
        ),
    )


def _given(**options: Any) -> Mapping[str, Any]:
    """The options that were not left out."""
    return {name: value for name, value in options.items() if value is not None}


def _texts(**options: Any) -> Mapping[str, str]:
    """The same as text."""
    return {name: str(value) for name, value in _given(**options).items()}
