"""`gear bench`: a platform of its own, the runs of a flow on it, and their figures."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geartrain.adapters.files import make_private_folder, write_private
from geartrain.adapters.temporary import temporary_folder
from geartrain.adapters.toml_text import to_toml
from geartrain.errors import ConfigError, GeartrainError
from geartrain_client.cli.submitting import SubmitWishes, body_of
from geartrain_client.errors import StoppedError
from geartrain_client.terminal.screen import ProgressLine, notices, print_json, results
from geartrain_cloud.cli.bench_result import as_json, as_tables, remarks
from geartrain_cloud.cli.bench_run import BenchPlan, BenchRuns
from geartrain_cloud.cli.hops import Hops
from geartrain_cloud.cli.hops_view import one_line
from geartrain_cloud.platform.config import CONFIG_FILE, read_platform
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.spark.java import find_java
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.up import bring_up

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the user asked for. settings: by step and option; own: those of single devices, by device; cuts:
    each is measured; devices, runs: how many, the runs of each cut; for_s: seconds of each run, None for as
    long as the sources last; state: the folder that is kept, None for one that is removed.
    """

    settings: Settings = field(default_factory=dict)
    own: Mapping[str, Settings] = field(default_factory=dict)
    cuts: Sequence[str] = ("auto",)
    devices: int = 1
    runs: int = 2
    for_s: float | None = None
    broker: str = "auto"
    master: str = "local[2]"
    state: Path | None = None
    as_json: bool = False


def run_bench(flow: str, options: BenchOptions) -> None:
    """Measure the flow and print the figures; raises `GeartrainError`.

    A signal ends it with `StoppedError`, after the figures of the runs that have ended were printed.
    """
    plan = bench_plan(flow, options)
    find_java()
    with _state_folder(options.state) as folder:
        content = {"broker": options.broker, "spark": {"master": options.master}}
        write_private(folder / CONFIG_FILE, to_toml(content))
        with ProgressLine(notices()) as line:

            def show(run: str, hops: Hops) -> None:
                line.show(lambda: f"{run}: {one_line(hops)}")

            runs = BenchRuns(plan, PlatformPlaces(folder), show)
            try:
                with StopSignal() as stop:
                    bring_up(read_platform(state=folder), stop, lambda _: None, runs)
            finally:
                found = runs.results
        if found and options.as_json:
            print_json(as_json(found))
        elif found:
            for table in as_tables(found):
                results().print(table)
            for remark in remarks(found):
                notices().print(remark, soft_wrap=True)


def bench_plan(flow: str, options: BenchOptions) -> BenchPlan:
    """What is to be run; raises `ConfigError` for a device that is not there, and what planning raises."""
    names = [f"d{number}" for number in range(1, options.devices + 1)]
    if strange := sorted(set(options.own) - set(names)):
        raise ConfigError(
            f"--device-set {strange[0]}: there is no such device; there are {', '.join(names)}: see --devices"
        )
    wishes = SubmitWishes("bench", settings=options.settings, own=options.own)
    for cut in options.cuts:  # what cannot run is refused before a platform comes up
        body_of(flow, replace(wishes, cut=cut))
    return BenchPlan(flow, wishes, options.cuts, options.runs, names, options.for_s)


@contextmanager
def _state_folder(wished: Path | None) -> Iterator[Path]:
    """The platform's folder, new; one that nobody has named goes again, but where a run has failed.

    Raises `ConfigError` for a folder that is there and holds something.
    """
    if wished is not None:
        make_private_folder(wished)
        if any(wished.iterdir()):
            raise ConfigError(f"--state {wished} holds something already: name a new folder")
        yield wished
        return
    folder = Path(tempfile.mkdtemp(prefix="gear-bench-", dir=temporary_folder()))
    try:
        yield folder
    except StoppedError:
        shutil.rmtree(folder)
        raise
    except GeartrainError:
        notices().print(f"what was run is kept in {folder}", soft_wrap=True)
        raise
    shutil.rmtree(folder)
