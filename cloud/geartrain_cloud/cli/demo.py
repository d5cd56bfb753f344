"""`gear demo NAME`: a demo from its input to its page, begun or resumed.

Around the whole path. Guarantees: a state folder that was begun is resumed with the same settings or
refused; a finished one prints its results again; the output is written only when the accounts of the run
are even.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from geartrain.errors import ConfigError
from geartrain_cloud.broker.ready import LOOPBACK
from geartrain_cloud.cli.demo_figures import figures
from geartrain_cloud.cli.demo_page import free_port, page_spec, show_page
from geartrain_cloud.cli.demos import (
    Demo,
    deal,
    deployment_of,
    device_options,
    layout_of,
    load_demo,
    paths_of,
)
from geartrain_cloud.cli.screen import ProgressView, notices, results, table_of
from geartrain_cloud.errors import StoppedError
from geartrain_cloud.pages.reader import TableReader
from geartrain_cloud.sinks.tables import rows, write_json
from geartrain_cloud.supervisor.child import ChildSpec, printable
from geartrain_cloud.supervisor.deployment import Places
from geartrain_cloud.supervisor.state_folder import (
    MANIFEST,
    InputFile,
    Manifest,
    StateFolder,
    check_inputs,
    check_layout,
    check_same,
)
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.whole_run import run_to_the_end

LETTERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for; None, or nothing under its name, where an option was left out.

    inputs: files by the name of their option; settings: the demo's own options.
    """

    inputs: Mapping[str, Path] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None
    cut: str | None = None
    output: Path | None = None
    page: bool = True
    speed: str = "max"
    state: Path | None = None
    broker: str = "auto"
    certs: Path | None = None
    master: str = "local[2]"


def run_demo(name: str, options: DemoOptions) -> None:
    """Run or resume the demo, print its results, write the output, and show its page until Ctrl-C.

    Raises `StoppedError` when a signal ends it before its results are there, and any `GeartrainError`.
    """
    demo, notice = load_demo(name), notices()
    check_speed(options.speed)
    state = StateFolder(options.state, f"gear-{name}-")
    try:
        manifest = state.manifest()
        if manifest is None:
            manifest = begin(demo, options, state, notice)
        else:
            check_resumed(demo, manifest, options, state.path)
        notice.print(f"state folder: {state.path}", soft_wrap=True)
        if not manifest.finished:
            with StopSignal() as stop:
                _run_or_stop(demo, manifest, options, Places(state.path), stop, notice)
            state.write(msgspec.structs.replace(manifest, finished=True))
        _print_results(demo, Places(state.path), options.output, notice)
        if options.page:
            asyncio.run(show_page(manifest, Places(state.path), _announce))
    except StoppedError:
        notice.print(f"to go on: gear demo {name} --state {state.path}")
        raise
    finally:
        state.close()
        if options.state is None and not (state.path / MANIFEST).exists():
            shutil.rmtree(state.path)  # refused before it was begun


def check_speed(speed: str) -> None:
    """Raise `ConfigError` unless `speed` is `max` or a number above 0."""
    try:
        number = math.inf if speed == "max" else float(speed)
    except ValueError:
        number = math.nan
    if not number > 0 or (math.isinf(number) and speed != "max"):
        raise ConfigError(
            f"--speed {speed}: write max, or how many event seconds pass in a second, such as 86400"
        )


def begin(demo: Demo, options: DemoOptions, state: StateFolder, notice: Console) -> Manifest:
    """Find the input, deal it to devices, check that the flow can be cut as asked, and write the manifest."""
    settings = {**demo.settings, **options.settings}
    demo.step_options(settings)  # refuses a wrong setting before anything is written
    own = demo.own_inputs(state.path, options.inputs, settings)
    inputs = {**own, **options.inputs}
    parts, surveyed, said = demo.survey(inputs, settings)
    manifest = Manifest(
        demo.name,
        options.cut or "auto",
        settings,
        {name: _fingerprint(name, path, own=name in own) for name, path in inputs.items()},
        deal(parts, options.devices or demo.devices_default),
        surveyed,
    )
    layout = layout_of(deployment_of(demo, manifest).plan())
    manifest = msgspec.structs.replace(manifest, layout=layout)
    state.write(manifest)
    for sentence in said:
        notice.print(sentence, soft_wrap=True)
    return manifest


def _fingerprint(name: str, path: Path, *, own: bool) -> InputFile:
    try:
        return InputFile.of(path, sample=own)
    except OSError as error:
        raise ConfigError(f"--{name} {path} cannot be read: {error.strerror}") from None


def check_resumed(demo: Demo, manifest: Manifest, options: DemoOptions, folder: Path) -> None:
    """Raise `StateError` when what was begun in the folder is not what is asked for now."""
    count = sum(map(len, manifest.devices.values()))
    devices = None if options.devices is None else min(options.devices, count)
    check_same(manifest, {"demo": demo.name, "cut": options.cut, "devices": devices}, folder)
    check_same(manifest, options.settings, folder)
    check_inputs(manifest, options.inputs, folder)
    if not manifest.finished:
        plan = deployment_of(demo, manifest).plan()
        check_layout(manifest, layout_of(plan), plan.graph.name, folder)


def _run_or_stop(
    demo: Demo, manifest: Manifest, options: DemoOptions, places: Places, stop: StopSignal, notice: Console
) -> None:
    """Run to the end; what has none shows what it has when it is stopped."""
    try:
        _run(demo, manifest, options, places, stop, notice)
    except StoppedError:
        if demo.beside(places.folder, manifest.settings) and places.tables.exists():
            _print_results(demo, places, options.output, notice)
        raise


def _run(
    demo: Demo, manifest: Manifest, options: DemoOptions, places: Places, stop: StopSignal, notice: Console
) -> None:
    dealt = ", ".join(f"{d}: {_few(parts)}" for d, parts in list(manifest.devices.items())[:8])
    notice.print(f"devices: {printable(dealt)}")
    deployment = deployment_of(demo, manifest, options.speed, options.master)
    beside = []
    if options.page and demo.page_while_running:
        port = free_port()
        beside.append(page_spec(places, port))
        results().print(f"page: http://{LOOPBACK}:{port}/ (it fills while the demo runs)")
    for name, arguments in demo.beside(places.folder, manifest.settings).items():
        beside.append(ChildSpec(name, (sys.executable, *arguments), places.logs / f"{name}.log"))
    with ProgressView(notice) as view:
        accounts = run_to_the_end(deployment, places, options.broker, stop, view.show, beside, options.certs)
        seconds = view.seconds
    total = sum(one.before for one in accounts if one.place.startswith("channel "))
    notice.print(
        f"accounts: {total:,} rows spooled, each in the log and in the tables once: lost 0, doubled 0"
    )
    whole = device_options(demo, paths_of(manifest), manifest.settings | manifest.surveyed, {"": []}, "max")
    for line in figures(deployment, whole[""], places, seconds):
        notice.print(line, soft_wrap=True)


def _announce(address: str) -> None:
    results().print(f"page: {address} (Ctrl-C ends it)")


def _few(parts: Sequence[str]) -> str:
    return " ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")


def _print_results(demo: Demo, places: Places, output: Path | None, notice: Console) -> None:
    read = TableReader(places.tables)
    title, heads, lines = demo.summary(read)
    results().print(table_of(title, heads, lines))
    letters = read("dead_letters", {})
    if letters:
        notice.print(f"{len(letters):,} rows were refused and are in the table dead_letters:")
        for letter in letters[:LETTERS_SHOWN]:
            notice.print(f"  {printable(letter['reason'])}")
    for table in demo.tables:
        found = rows(places.tables, table)
        there = output if output is None or len(demo.tables) == 1 else output / f"{table}.json"
        for target in (places.folder / f"{table}.json", there):
            if target is not None:
                write_json(found, target)
                notice.print(f"written: {target}", soft_wrap=True)
