"""`gear demo NAME`: a demo from its input to its page, begun or resumed.

Around the whole path. Guarantees: a state folder that was begun is resumed with the same options or refused.
A finished one prints its results again. The output is written only if the run's accounts balance.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from geartrain.adapters.files import make_private_folder
from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain.printable import printable
from geartrain_client.errors import StoppedError
from geartrain_client.terminal.screen import notices, results, table_of
from geartrain_client.terminal.settings import parse_size
from geartrain_cloud.broker.ready import LOOPBACK
from geartrain_cloud.cli.demo_figures import figures
from geartrain_cloud.cli.demo_folder import (
    MANIFEST,
    InputFile,
    Manifest,
    StateFolder,
    check_inputs,
    check_revision,
    check_same,
)
from geartrain_cloud.cli.demo_move import StepMove, moved_file
from geartrain_cloud.cli.demo_page import free_port, page_spec, show_page
from geartrain_cloud.cli.demo_run import DemoRun, write_platform
from geartrain_cloud.cli.demos import Demo, DemoApp, app_of, begun_options, files_of, load_demo, set_up
from geartrain_cloud.cli.hops import Hops, read_hops, served_tables
from geartrain_cloud.cli.hops_view import ProgressView
from geartrain_cloud.pages.reader import TableReader
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.revision_file import read_revision, write_revision
from geartrain_cloud.sinks.tables import rows, write_json
from geartrain_cloud.spark.java import find_java
from geartrain_cloud.supervisor.child import ChildSpec
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.up import bring_up

LETTERS_SHOWN = 5
THROTTLE_MIN = 400
"""Bytes a second with which a device still gets the state of a step in time."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for; None, or nothing under its name, where an option was left out.

    own: the demo's own options, by name, files as paths; speed: event seconds per second, or `max`; throttle:
    as `20kB/s`, of each device's link.
    """

    own: Mapping[str, Any] = field(default_factory=dict)
    devices: int | None = None
    cut: str | None = None
    output: Path | None = None
    page: bool = True
    speed: str | None = None
    state: Path | None = None
    broker: str = "auto"
    certs: Path | None = None
    master: str = "local[2]"
    throttle: str | None = None


def run_demo(name: str, options: DemoOptions) -> None:
    """Run or resume the demo, print its results, write the output, and show its page until Ctrl-C.

    Raises `StoppedError` when a signal ends it before its results are there, and any `GeartrainError`.
    """
    demo, notice = load_demo(name), notices()
    check_speed(options.speed or "max")
    if options.output is not None:
        check_output(options.output, len(demo.tables))
    state = StateFolder(options.state, f"gear-{name}-")
    try:
        manifest = state.manifest()
        if manifest is None:
            manifest = begin(name, demo, options, state)
            for sentence in manifest.setup.said:
                notice.print(sentence, soft_wrap=True)
        else:
            check_resumed(name, demo, manifest, options, state.path)
        run = _Run(demo, manifest, options, PlatformPlaces(state.path), notice)
        notice.print(f"state folder: {state.path}", soft_wrap=True)
        if not manifest.finished:
            with StopSignal() as stop:
                run.to_the_end(stop)
            state.write(msgspec.structs.replace(manifest, finished=True))
        run.print_results()
        if options.page:
            asyncio.run(show_page(manifest, run.places, _announce))
    except StoppedError:
        notice.print(f"to go on: gear demo {name} --state {state.path}", soft_wrap=True)
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


def bytes_per_s(options: DemoOptions) -> int:
    """What `--throttle` says, 0 where it was left out; raises `ConfigError`."""
    if options.throttle is None:
        return 0
    if options.cut not in (None, "cloud"):
        raise ConfigError(
            f"--throttle begins with the cut cloud, and moves a step then: leave out --cut {options.cut}"
        )
    size, per, second = options.throttle.partition("/")
    try:
        found = parse_size("--throttle", size) if (per, second) == ("/", "s") else 0
    except ConfigError:
        found = 0
    if found < THROTTLE_MIN:
        raise ConfigError(
            f"--throttle {options.throttle}: write bytes a second with their unit, such as 20kB/s; "
            f"{THROTTLE_MIN:,} are the least"
        )
    return found


def check_output(output: Path, tables: int) -> None:
    """Raise `ConfigError` unless the results can be written there: a file, or a folder for several tables."""
    try:
        folder = output if tables > 1 else output.parent
        make_private_folder(folder)
        if tables == 1 and output.is_dir():
            raise ConfigError(f"--output {output} is a folder: name a file")
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\n")
    except OSError as error:
        raise ConfigError(
            f"--output {output} cannot be written: {error.strerror}; name another place"
        ) from None


def begin(name: str, demo: Demo, options: DemoOptions, state: StateFolder) -> Manifest:
    """Set the demo up, check that its flow can be cut as asked, and write the manifest."""
    own, throttle = demo.options(**options.own), bytes_per_s(options)
    cut = options.cut or ("cloud" if throttle else "auto")
    own = demo.throttled(own) if throttle else own
    flow = demo.flow(own)
    make_plan(load_flow(flow).graph(), cut)  # refuses what is no step of the flow before anything is written
    count = options.devices or (demo.throttled_devices if throttle else demo.devices)
    setup = set_up(demo, state.path, own, count)
    kept = {key: value for key, value in msgspec.structs.asdict(own).items() if key not in files_of(demo)}
    manifest = Manifest(
        demo=name,
        cut=cut,
        options=kept,
        inputs={
            key: _fingerprint(key, Path(path), own=key not in options.own)
            for key, path in setup.inputs.items()
        },
        setup=setup,
        throttle=throttle,
    )
    revision = app_of(demo, manifest).revision()
    state.write(manifest)
    write_revision(state.path, revision)
    return manifest


def _fingerprint(name: str, path: Path, *, own: bool) -> InputFile:
    try:
        return InputFile.of(path, sample=own)
    except OSError as error:
        raise ConfigError(f"--{name} {path} cannot be read: {error.strerror}") from None


def check_resumed(name: str, demo: Demo, manifest: Manifest, options: DemoOptions, folder: Path) -> None:
    """Raise `StateError` when what was begun in the folder is not what is asked for now."""
    count = sum(map(len, manifest.setup.parts.values()))
    devices = None if options.devices is None else min(options.devices, count)
    given = {"demo": name, "cut": options.cut, "devices": devices, "throttle": bytes_per_s(options) or None}
    check_same(manifest, given, folder)
    files = files_of(demo)
    check_same(manifest, {key: value for key, value in options.own.items() if key not in files}, folder)
    check_inputs(manifest, {key: value for key, value in options.own.items() if key in files}, folder)
    if not manifest.finished:
        app = app_of(demo, manifest)
        check_revision(app.revision(), app.name, folder)
        if read_revision(folder) is None:  # begun, and killed in the moment before it is noted
            write_revision(folder, app.revision())


@dataclass(frozen=True, slots=True)
class _Run:
    """A demo that was begun, on its way to its results."""

    demo: Demo
    manifest: Manifest
    options: DemoOptions
    places: PlatformPlaces
    notice: Console

    def to_the_end(self, stop: StopSignal) -> None:
        """Run to the end, and say what it took; when it is stopped, say what stands where."""
        parts = [f"{name}: {_few(parts)}" for name, parts in list(self.manifest.setup.parts.items())[:8]]
        self.notice.print(f"devices: {printable(', '.join(parts))}")
        app = app_of(self.demo, self.manifest)
        try:
            self._run(app, stop)
        except StoppedError:
            self._say_what_stands_where(app)
            if self._beside() and self._tables(app).exists():  # it has no end of its own
                self.print_results()
            raise

    def _run(self, app: DemoApp, stop: StopSignal) -> None:
        options, setup, happened = self.options, self.manifest.setup, list[str]()
        throttle = self.manifest.throttle
        speed = options.speed or (self.demo.throttled_speed if throttle else "max")
        waits = {"wait_from": setup.waits_from, "wait_for": str(moved_file(self.places))}
        pace = {"speed": speed, **(waits if throttle and setup.waits_from else {})}
        paced = dict.fromkeys(setup.paced, pace)
        write_platform(self.places, app, paced, options.broker, options.certs, options.master, throttle)
        move = StepMove(app, self.demo.moves, throttle, self.places, happened.append) if throttle else None
        beside = []
        if options.page and self.demo.page_while_running:
            port = free_port()
            beside.append(page_spec(self.places, port))
            results().print(f"page: http://{LOOPBACK}:{port}/ (it fills while the demo runs)")
        for name, arguments in self._beside().items():
            log = self.places.process_log(name)
            beside.append(ChildSpec(name, (sys.executable, *arguments), log))
        with ProgressView(self.notice) as view:

            def show(hops: Hops) -> None:
                view.show(hops, happened)
                happened.clear()

            run = DemoRun(app, self.places, show, move)
            find_java()
            bring_up(read_platform(state=self.places.folder), stop, happened.append, run, beside)
            seconds = view.seconds
        total = sum(one.before for one in run.accounts if one.place.startswith("channel "))
        self.notice.print(
            f"accounts: {total:,} rows spooled, each in the log and in the tables once: lost 0, doubled 0"
        )
        found = figures(app, setup.whole, self.places, seconds, weighs=move is None)
        for line in [*found, *(move.lines() if move else ())]:
            self.notice.print(line, soft_wrap=True)

    def _beside(self) -> Mapping[str, Sequence[str]]:
        return self.demo.beside(self.places.folder, begun_options(self.demo, self.manifest))

    def _tables(self, app: DemoApp) -> Path:
        return served_tables(self.places, app.instance)

    def _say_what_stands_where(self, app: DemoApp) -> None:
        """All processes have ended; their last words say how far each part has come."""
        hops = read_hops(self.places, app.instance, app.devices)
        self.notice.print(
            f"stopped: of {hops.read:,} records read, {hops.spooled:,} rows are durable on the devices "
            f"(agents/), {hops.logged:,} in the log (log/), and {hops.processed:,} of the log's "
            f"{hops.to_process:,} entries in the tables (apps/{app.instance}/); no process is left",
            soft_wrap=True,
        )

    def print_results(self) -> None:
        """Print the summary and what was refused; write the tables as JSON."""
        tables = self._tables(app_of(self.demo, self.manifest))
        read = TableReader(tables)
        title, heads, lines = self.demo.summary(read)
        results().print(table_of(title, heads, lines))
        letters = read("dead_letters", {})
        if letters:
            many = (
                "1 row was refused and is"
                if len(letters) == 1
                else f"{len(letters):,} rows were refused and are"
            )
            self.notice.print(f"{many} in the table dead_letters:")
            for letter in letters[:LETTERS_SHOWN]:
                self.notice.print(f"  {printable(letter['reason'])}")
        output, several = self.options.output, len(self.demo.tables) > 1
        for table in self.demo.tables:
            found = rows(tables, table)
            there = output / f"{table}.json" if output is not None and several else output
            for target in (self.places.folder / f"{table}.json", there):
                if target is not None:
                    write_json(found, target)
                    self.notice.print(f"written: {target}", soft_wrap=True)


def _announce(address: str) -> None:
    results().print(f"page: {address} (Ctrl-C ends it)")


def _few(parts: Sequence[str]) -> str:
    return " ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "")
