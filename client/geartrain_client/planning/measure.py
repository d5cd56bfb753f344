"""A measurement: a flow run on its input for a while, with every stream weighed and every step timed.

`geartrain_client.planning.cost` reads the result. All steps run in one fragment, as in `gear run`, but
nothing is written. Guarantees: a stream is encoded by the codec of the wire in batches of 256 rows, as an
agent would send it. Memory is bounded by one batch a stream. The time of a step is its own, without the
steps below it. The caller supplies clock and CPU time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph, Input, Step
from geartrain.ports import Clock, Randomness
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.letters import Letter
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.reader import SplitReader, open_splits
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain_client.planning.cost import Costs
from geartrain_client.planning.meters import BATCH_ROWS, CpuTime, StepMeter, StreamMeter, Tap, TimedOperator

_EPOCH = bytes(range(EPOCH_BYTES))
"""In place of the random epoch that stands in the origins of what cannot be read again."""
_PAUSE_S = 0.01
_PACED_SHARE = 0.1
"""A run that waited for its sources for this part of its time was given its records at their own pace."""


@dataclass(slots=True)
class _Reader:
    """One open split; born: event time of its first and its last record."""

    of: SplitReader
    records: int = 0
    born: list[int] = field(default_factory=list)

    def note(self, times: list[int]) -> None:
        """Take the event times of a read."""
        self.records += len(times)
        if times:
            self.born = [min([*self.born[:1], *times]), max([*self.born[1:], *times])]

    @property
    def per_s(self) -> float:
        """Records per second of event time."""
        took_us = self.born[1] - self.born[0] if self.born else 0
        return self.records * 1e6 / took_us if took_us else 0.0


class Measurement:
    """One run of a graph in which everything is measured; use it once."""

    def __init__(
        self,
        graph: Graph,
        *,
        cpu_time: CpuTime,
        clock: Clock,
        randomness: Randomness,
        streams: Iterable[str] | None = None,
        device: str = "local",
    ) -> None:
        """`streams`: the steps whose output is to be weighed, all by default. Raises `SourceError` when a
        source cannot open.
        """
        self._graph, self._cpu_time, self._clock = graph, cpu_time, clock
        weighed = {step.id for step in graph.steps} if streams is None else set(streams)
        self._steps = {step.id: StepMeter(StreamMeter(Letter, cpu_time)) for step in graph.steps}
        self._late = StreamMeter(Letter, cpu_time)
        self._streams = {
            step.id: StreamMeter(step.out, cpu_time)
            for step in graph.steps
            if step.out is not None and step.id in weighed
        }
        self._taps = {_tap_id(graph, number): stream for number, stream in enumerate(self._streams)}
        tapped = self._tapped()
        self._fragment = Fragment(tapped, [s.id for s in tapped.steps], clock=clock, randomness=randomness)
        self._readers = [_Reader(one) for one in open_splits(graph, device, clock)]

    def _tapped(self) -> Graph:
        steps = [
            step if not step.inputs else replace(step, operator=self._timed(step))
            for step in self._graph.steps
        ]
        taps = [Step(tap, Tap(), (Input(stream),)) for tap, stream in self._taps.items()]
        return Graph(self._graph.name, (*steps, *taps))

    def _timed(self, step: Step) -> Any:
        return TimedOperator(step.operator, self._steps[step.id], self._cpu_time)

    async def run(self, seconds: float) -> Costs:
        """Run until every split has ended or `seconds` have passed, then let all windows and timers fire.

        Raises what a source or a step raises that stops a flow.
        """
        began_s, waited_s = self._clock.monotonic_s(), 0.0
        try:
            self._advance()
            while not self._ended and self._clock.monotonic_s() - began_s < seconds:
                if not await self._round():
                    paused_s = self._clock.monotonic_s()
                    await self._clock.sleep(_PAUSE_S)
                    waited_s += self._clock.monotonic_s() - paused_s
        finally:
            for reader in self._readers:
                await reader.of.split.close()
        wall_s, ended = self._clock.monotonic_s() - began_s, self._ended
        for step in self._graph.sources():
            self._fragment.advance(step.id, END_OF_TIME)
        self._weigh(self._fragment.take())
        self._fragment.close()
        return self._costs(wall_s, waited_s, ended=ended)

    @property
    def _ended(self) -> bool:
        return all(reader.of.ended for reader in self._readers)

    async def _round(self) -> bool:
        """One read of each split; False when none gave anything."""
        moved = False
        for reader in self._readers:
            if not reader.of.ended:
                moved = await self._read(reader) or moved
        return moved

    async def _read(self, reader: _Reader) -> bool:
        step, meter = reader.of.step, self._steps[reader.of.step]
        began_s, below_s = self._cpu_time(), self._work_s
        taken = await reader.of.read(BATCH_ROWS, _EPOCH)
        reader.note(list(taken.batch.times))
        taken.feed(step, self._fragment)
        self._advance()
        meter.records += taken.rows - len(taken.rejected)
        meter.cpu_s += max(0.0, self._cpu_time() - began_s - (self._work_s - below_s))
        self._weigh(self._fragment.take())
        return taken.moved

    @property
    def _work_s(self) -> float:
        """CPU seconds of all steps but the sources."""
        return sum(self._steps[step.id].cpu_s for step in self._graph.steps if step.inputs)

    def _advance(self) -> None:
        marks = {step.id: END_OF_TIME for step in self._graph.sources()}
        for reader in self._readers:
            step = reader.of.step
            marks[step] = min(marks[step], reader.of.watermark)
        for step, mark in marks.items():
            if mark > START_OF_TIME:
                self._fragment.advance(step, mark)

    def _weigh(self, output: Output) -> None:
        for stream, batches in output.batches.items():
            for batch in batches:
                if stream in self._taps:
                    self._streams[self._taps[stream]].add(batch)
                elif stream == LATE:
                    self._late.add(batch)
                elif stream == DEAD_LETTERS:
                    self._letters_of_sources(batch)

    def _letters_of_sources(self, batch: Batch) -> None:
        """Those of the other steps were taken where they were made."""
        sources = {step.id for step in self._graph.sources()}
        for source in sources:
            rows = [row for row, letter in enumerate(batch.values) if letter.step == source]
            if rows:
                self._steps[source].letters.add(batch.take(rows))

    def _costs(self, wall_s: float, waited_s: float, *, ended: bool) -> Costs:
        per_s = sum(reader.per_s for reader in self._readers)
        paced = per_s == 0 or waited_s > _PACED_SHARE * wall_s
        records = sum(reader.records for reader in self._readers)
        return Costs(
            wall_s if paced else records / per_s,
            paced,
            wall_s,
            ended,
            {stream: meter.finish() for stream, meter in self._streams.items()},
            {step: meter.cost() for step, meter in self._steps.items()},
            self._late.finish(),
        )


def _tap_id(graph: Graph, number: int) -> str:
    """An id that no step of `graph` has."""
    name = f"tap{number}"
    while any(step.id == name for step in graph.steps):
        name += "_"
    return name
