"""`gear run`: a whole flow in this process, to the end of its sources, for a time, or until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console

from geartrain.adapters.stuck import StuckWatch
from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.operators.deal import deal_among
from geartrain.printable import printable
from geartrain_client.errors import StoppedError
from geartrain_client.terminal.screen import ProgressLine, notices, print_json, results, table_of
from geartrain_cloud.cli.fetched import Fetched
from geartrain_cloud.cli.fleet import FleetDevice, graphs_of
from geartrain_cloud.cli.inprocess import (
    Now,
    Place,
    Refused,
    RunOptions,
    RunResult,
    check_letters,
    live_sources,
    run_in_process,
)
from geartrain_cloud.cli.watched import Wish
from geartrain_cloud.cli.watching import watch

REASONS_SHOWN = 3
_STOPS = b"\ngear: stops after the records at hand; Ctrl-C once more ends it at once\n"
PLACES_SHOWN = 10
STUCK_TIMES_MAX = 20
"""So often a run says at the most where it does not come back from."""


@dataclass(frozen=True, slots=True)
class RunWishes:
    """What the user asked for; seconds: how long sources that go on by themselves are read, None for ever;
    fetched: a folder with records that stand in the place of the sources; fleet: the devices whose sources
    are read, by name, empty for one device that has all of them; times: the event time of each row is to be
    in the JSON of its table.
    """

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    output: Path | None = None
    seconds: float | None = None
    actuate: bool = False
    as_json: bool = False
    fetched: Path | None = None
    fleet: Mapping[str, FleetDevice] = field(default_factory=dict)
    times: bool = False


def run_flow(flow: str, wishes: RunWishes) -> None:
    """Run the flow and print its counts and dead letters.

    Raises `DeadLettersError` after that where too many records were refused, `StoppedError` where a signal
    ended the run, and any `GeartrainError`.
    """
    graph = load_flow(flow).graph().with_options(wishes.settings)
    if wishes.fetched is not None and wishes.fleet:
        raise ConfigError(
            "--fetched has the records of the app's own devices: leave --device and --fleet away"
        )
    fetched = None if wishes.fetched is None else Fetched(wishes.fetched)
    fleet = graphs_of(graph, wishes.fleet) if wishes.fleet else None
    if fleet is not None:
        graph = deal_among(graph, wishes.fleet)
    notice, live = notices(), [] if fetched else live_sources(graph)
    if fetched is not None:
        notice.print(printable(fetched.said(graph)), soft_wrap=True)
    if live:
        limit = "" if wishes.seconds is None else f", for {wishes.seconds:g} s at the most"
        notice.print(f"reading {', '.join(live)} to the end, or until Ctrl-C{limit}", soft_wrap=True)
    package = flow.partition(".")[0].partition(":")[0]
    stuck = StuckWatch(
        {package},
        lambda said: _say_now(notice, f"{said}; Ctrl-C, and once more, ends it"),
        times_max=STUCK_TIMES_MAX,
    )
    with _Stop(wishes.seconds) as stop, ProgressLine(notice) as line, stuck:

        def tell(now: Now) -> None:
            stuck.beat()
            line.show(
                lambda: f"read {now.read:,} records, wrote {now.written:,} rows, dead letters {now.letters:,}"
            )

        options = RunOptions(
            wishes.actuate, wishes.times, console=not wishes.as_json, going=stop.going, tell=tell
        )
        with redirect_stdout(sys.stderr) if wishes.as_json else nullcontext():  # what the flow prints
            result = run_in_process(graph, wishes.output, options, fetched=fetched, fleet=fleet)
    if wishes.as_json:
        print_json(asdict(result))
    else:
        _print(result)
    _print_notices(result, wishes)
    if stop.received is not None:
        raise StoppedError(stop.received)
    if fetched is None:
        check_letters(graph, result)


def watch_flow(given: str, wishes: RunWishes, rows: int) -> None:
    """Run the flow again whenever its files or its input change, until Ctrl-C.

    given: `module:flow` or a project's folder. Raises `ConfigError` for what cannot be watched, and
    `StoppedError` in the end.
    """
    if wishes.output is not None or wishes.actuate or wishes.as_json or wishes.fetched is not None:
        raise ConfigError(
            "--watch shows the last records and writes nothing: leave --output, --actuate, --fetched and "
            "--json away"
        )
    if wishes.fleet:
        raise ConfigError("--watch reads the sources as one device has them: leave --device and --fleet away")
    options = {
        step: {name: str(one) if isinstance(one, str) else one for name, one in values.items()}
        for step, values in wishes.settings.items()
    }
    folder = Path(given).resolve() if ":" not in given and Path(given).is_dir() else None
    with _Stop(None, said=b"\n") as stop:
        watch(Wish(given, options, rows, wishes.seconds), folder, stop.going)
    if stop.received is not None:
        raise StoppedError(stop.received)


class _Stop:
    """Ctrl-C, SIGTERM and the time that is over, as a flag; a second signal ends the run at once."""

    def __init__(self, seconds: float | None, said: bytes = _STOPS) -> None:
        self.received: signal.Signals | None = None
        self._said = said
        self._end_s = None if seconds is None else time.monotonic() + seconds
        self._former: dict[signal.Signals, Any] = {}

    def going(self) -> bool:
        """Whether the run goes on."""
        return self.received is None and (self._end_s is None or time.monotonic() < self._end_s)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        os.write(2, self._said)


def _say_now(notice: Console, said: str) -> None:
    notice.print(printable(f"gear: {said}"), soft_wrap=True)


def _print(result: RunResult) -> None:
    out = results()
    lines = [[name, f"{count:,}"] for name, count in result.rows.items()]
    out.print(
        f"read {result.records_read:,} records; late {result.late:,}; dead letters {result.dead_letters:,}"
    )
    if result.passed_over:
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(result.passed_over.items()))
        out.print(f"counted by sources: {counts}")
    out.print(table_of("", ["table", "rows"], lines, numbers=[1]))
    for line in _refusals(result.refused_by):
        out.print(printable(line), soft_wrap=True)


def _refusals(refused: Sequence[Refused]) -> list[str]:
    lines = []
    for one in refused:
        lines.append(f"dead letters of {one.step}: {one.count:,}, the first of them:")
        lines += [f"  {reason}" for reason in one.reasons[:REASONS_SHOWN]]
    return lines


def _print_notices(result: RunResult, wishes: RunWishes) -> None:
    notice = notices()

    def say(line: str) -> None:
        notice.print(printable(line), soft_wrap=True)

    if wishes.as_json:
        for line in _refusals(result.refused_by):
            say(line)
    if not result.ended:
        for line in _standing(result.places):
            say(line)
        say("windows and timers that were still open are not in the tables")
    for line in result.left_out:
        say(f"left out: {line}")
    if wishes.output is None:
        if not wishes.as_json:
            say("nothing was kept: --output DIR writes the tables")
    elif result.written:
        say(f"written to {wishes.output}: {', '.join(result.written)}")
    else:
        say(f"nothing was written to {wishes.output}: the run was stopped before the end of its sources")


def _standing(places: Sequence[Place]) -> list[str]:
    """How far each split was read."""
    lines = []
    for one in places[:PLACES_SHOWN]:
        time_text = "" if one.event_time is None else f", event time {one.event_time}"
        end = "to its end" if one.ended else f"up to position {one.position:,}"
        lines.append(f"{one.source}: {one.split} was read {end}{time_text}")
    if len(places) > PLACES_SHOWN:
        lines.append(f"and {len(places) - PLACES_SHOWN:,} more splits")
    return lines
