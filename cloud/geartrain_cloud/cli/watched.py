"""`python -m geartrain_cloud.cli.watched`: one run of a flow for `gear run --watch`, and what it saw.

A process of its own for each run, so that changed files are loaded afresh. It reads a `Wish` as JSON from
stdin. It writes lines of JSON to stdout, a `Seen` each: when the flow is loaded, at times, and at the end.
Guarantees: what the user's code prints goes to stderr; whatever it does wrong is one sentence; lines are
bounded.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.declarations.options import Text, path_options
from geartrain.declarations.sink import Table
from geartrain.errors import GeartrainError
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import DEAD_LETTERS, Graph, Input, Step
from geartrain.operators.sink import SinkOperator
from geartrain.operators.source import SourceOperator
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME, format_time
from geartrain.runtime.fragment import Output
from geartrain.runtime.local import LocalRun
from geartrain_client.flow_folder import flow_of

TELL_S = 1.0
STREAMS_MAX, FIELDS_MAX, CELL_CHARS_MAX, INPUTS_MAX = 40, 16, 60, 1_000
READ_ROWS = 1_000
_SAME = ("key_by", "order")
_TAP = "{}_watched"


class Wish(msgspec.Struct, frozen=True):
    """What to run: a flow or the folder of a project. options: by step, as a person wrote them; rows:
    the last records to show of a stream; seconds: how long it is read at the most, None for ever.
    """

    flow: str
    options: dict[str, dict[str, Any]] = {}
    rows: int = 3
    seconds: float | None = None


class Shown(msgspec.Struct, frozen=True):
    """A stream: how many records it had, the names of their fields, and the last of them as text."""

    name: str
    count: int
    heads: list[str]
    rows: list[list[str]]


class Seen(msgspec.Struct, frozen=True):
    """What a run has seen so far. inputs: the files that its bounded sources read; error: why it ended
    otherwise than by its sources; ended: nothing more comes.
    """

    inputs: list[str] = []
    streams: list[Shown] = []
    read: int = 0
    letters: int = 0
    reason: str = ""
    error: str = ""
    ended: bool = False


class Streams:
    """The last records of each stream."""

    def __init__(self, graph: Graph, rows: int) -> None:
        self._counts = {step.id: 0 for step in islice(_streams(graph), STREAMS_MAX)}
        self._last = {name: deque[tuple[int, Any]](maxlen=rows) for name in self._counts}
        self.letters, self.reason = 0, ""

    def take(self, output: Output) -> None:
        """Count what left the fragment."""
        for name, last in self._last.items():
            for batch in output.batches.get(_TAP.format(name), ()):
                self._counts[name] += len(batch)
                last.extend(zip(*_tail(batch, last.maxlen or 1), strict=True))
        for batch in output.batches.get(DEAD_LETTERS, ()):
            self.letters += len(batch)
            if batch.values:
                last_one = batch.values[-1]
                self.reason = f"{last_one.step}: {last_one.reason}"[:400]

    def shown(self) -> list[Shown]:
        """All streams as text."""
        return [Shown(name, self._counts[name], *_as_text(self._last[name])) for name in self._counts]


def main() -> int:
    """Run the flow that stdin names; the exit code is 0 where its end could be told."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a user's code prints
    wish = msgspec.json.decode(sys.stdin.buffer.read(), type=Wish)
    last = Seen()

    def tell(seen: Seen) -> None:
        nonlocal last
        last = seen
        out.write(msgspec.json.encode(seen) + b"\n")

    try:
        asyncio.run(_run(wish, tell))
    except GeartrainError as error:
        said = " ".join(str(error).split())
        tell(msgspec.structs.replace(last, error=said or type(error).__name__, ended=True))
    return 0


async def _run(wish: Wish, tell: Any) -> None:
    options = {
        step: {name: Text(one) if isinstance(one, str) else one for name, one in values.items()}
        for step, values in wish.options.items()
    }
    graph = load_flow(flow_of(wish.flow)).graph().with_options(options)
    inputs = sorted(set(_inputs(graph)))[:INPUTS_MAX]
    tell(Seen(inputs))
    streams, clock = Streams(graph, wish.rows), SystemClock()
    run = LocalRun(tapped(graph), clock=clock, randomness=SystemRandomness())
    told_s = began_s = clock.monotonic_s()

    def seen(*, ended: bool) -> Seen:
        read = run.progress.records_read
        return Seen(inputs, streams.shown(), read, streams.letters, streams.reason, ended=ended)

    def going() -> bool:
        return wish.seconds is None or clock.monotonic_s() - began_s < wish.seconds

    async for output in run.outputs(READ_ROWS, going):
        streams.take(output)
        if (now_s := clock.monotonic_s()) - told_s >= TELL_S:
            told_s = now_s
            tell(seen(ended=False))
    streams.take(run.fragment.take())
    tell(seen(ended=True))


def tapped(graph: Graph) -> Graph:
    """The graph with a sink at each stream, beside its own sinks."""
    taps = [
        Step(_TAP.format(step.id), SinkOperator(Table(_TAP.format(step.id))), (Input(step.id),))
        for step in islice(_streams(graph), STREAMS_MAX)
    ]
    return Graph(graph.name, (*graph.steps, *taps))


def _streams(graph: Graph) -> Iterator[Step]:
    """The steps that make records; those that only key them, or put them in order, make none."""
    return (step for step in graph.steps if step.out is not None and step.operator.kind not in _SAME)


def _inputs(graph: Graph) -> Iterator[str]:
    """The files that sources read which come to an end; others follow theirs by themselves."""
    for step in graph.sources():
        source: Any = step.operator.source if isinstance(step.operator, SourceOperator) else None
        if source is None or not source.bounded:
            continue
        for name in path_options(type(source)):
            given = getattr(source, name, None)
            if isinstance(given, str) and given:
                yield from _files(given)


def _files(given: str) -> Iterator[str]:
    path = Path(given)
    yield str(path.resolve())
    if path.is_dir():
        yield from (str(one.resolve()) for one in islice(path.iterdir(), INPUTS_MAX))


def _tail(batch: Batch, rows: int) -> tuple[list[int], list[Any]]:
    return batch.times[-rows:], batch.values[-rows:]


def _as_text(rows: Iterable[tuple[int, Any]]) -> tuple[list[str], list[list[str]]]:
    """The heads and cells of some records."""
    heads: list[str] = ["event time"]
    lines = []
    for time, value in rows:
        names = getattr(value, "__struct_fields__", getattr(value, "_fields", None))
        parts = (
            {"value": value} if names is None else {name: getattr(value, name) for name in names[:FIELDS_MAX]}
        )
        heads = ["event time", *parts]
        lines.append([_moment(time), *map(_cell, parts.values())])
    return heads, lines


def _moment(time: int) -> str:
    try:
        return format_time(time) if time < END_OF_TIME - 1 else "end of time"
    except OverflowError:
        return str(time)


def _cell(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - of a user's own class
        text = f"a {type(value).__name__}"
    return text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 3]}..."


if __name__ == "__main__":
    sys.exit(main())
