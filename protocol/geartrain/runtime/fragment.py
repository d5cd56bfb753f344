"""A fragment at work: the steps of one tier as fused chains, from the batches fed to it to the batches it
hands out.

Fed by the agent with what the sources read, or inside Spark with what came over a channel. A batch runs
through a linear run of steps in one loop; the graph forks by handing the same columns to each consumer, which
never change them in place. Guarantees: no I/O, no clock, no randomness, so equal input gives equal output; a
step is told of a watermark after all that the steps above put out for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from geartrain.graph.conform import checker
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph, Step, key_step
from geartrain.graph.operator import Running, Services, Stoppable, Transform
from geartrain.ports import Clock, Randomness
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.letters import to_batch
from geartrain.state.keyed import DictBackend, KeyedState, StateBackend

Route = tuple[bool, tuple[tuple[Step, Transform], ...]]
"""(whether a stream leaves the fragment, the consumers inside and how each is fed)."""
_NOWHERE: Route = (False, ())


class Output(msgspec.Struct):
    """What left a fragment since it was last asked: batches by channel or sink (step id, `_dead_letters`,
    `_late`).
    """

    batches: dict[str, list[Batch]] = msgspec.field(default_factory=dict)

    def add(self, stream: str, batch: Batch) -> None:
        """Keep a batch that is not empty."""
        if len(batch):
            self.batches.setdefault(stream, []).append(batch)


class Fragment:
    """The steps `steps` of `graph`, opened.

    Output leaves at each sink in `steps`, and at each step whose output is read by a step outside of `steps`.
    """

    def __init__(
        self,
        graph: Graph,
        steps: Iterable[str],
        backend: StateBackend | None = None,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """`backend`: where saved keyed state is loaded from; default none is saved; `clock`, `randomness`:
        for tasks that say they are not replayable; `names`: the channels of streams that leave under another
        name than their own (`Plan.names`).
        """
        self._clock, self._randomness = clock, randomness
        self._names = dict(names or {})
        self.graph = graph
        self.steps = frozenset(steps)
        self.state = KeyedState(backend if backend is not None else DictBackend())
        self.counters: dict[str, int] = {}
        self.at = ""
        """The step at work, "" between two calls."""
        self._letters: list[DeadLetter] = []
        self._late: list[DeadLetter] = []
        self._output = Output()
        self._feeds: dict[str, list[Transform]] = {}
        self._running: dict[str, Running] = {}
        opened = [step for step in graph.steps if step.id in self.steps]
        for step in opened:
            self._open(step)
        self._below = [(step, [i.step for i in step.inputs]) for step in opened if step.inputs]
        self._routes = self._make_routes()
        self._entries = {s: entry for s in self._routes if (entry := self._entry(graph[s])) is not None}
        self._watermarks: dict[str, int] = {}

    def _open(self, step: Step) -> None:
        opened = step.operator.open(self._services(step))
        if callable(opened):
            self._feeds[step.id] = [opened] * max(1, len(step.inputs))
        else:
            self._running[step.id] = opened
            ports = range(len(step.inputs))
            self._feeds[step.id] = [partial(opened.feed, port=port) for port in ports]

    def _services(self, step: Step) -> Services:
        inputs = tuple(self.graph[i.step].out for i in step.inputs)
        return Services(
            step.id, step.out, self.reject, self.state, inputs, self.counters, self._clock, self._randomness
        )

    def _make_routes(self) -> dict[str, Route]:
        """Where each stream goes that this fragment makes or reads."""
        fed: dict[str, list[tuple[Step, Transform]]] = {}
        for step, inputs in self._below:
            for port, stream in enumerate(inputs):
                fed.setdefault(stream, []).append((step, self._feeds[step.id][port]))
        made = [step for step in self.steps if self.graph[step].out is not None]
        return {
            stream: (
                stream in self.steps and any(self._is_outside(c) for c in self.graph.consumers(stream)),
                tuple(fed.get(stream, ())),
            )
            for stream in dict.fromkeys([*fed, *made])
        }

    def _is_outside(self, reader: Step) -> bool:
        """Whether a reader takes what leaves; an arrival stands for what other devices made themselves."""
        return reader.id not in self.steps and reader.operator.kind != "arrival"

    def _entry(self, step: Step) -> Transform | None:
        """What a batch passes when it is fed: the check of a source's records, the keys that no channel
        carries.
        """
        if not step.inputs and step.id in self.steps:
            return checker(self._services(step))
        keyed_by = key_step(self.graph, step.id) if step.id not in self.steps else None
        if keyed_by is None:
            return None
        services = Services(step.id, step.out, self.reject, self.state)
        opened = keyed_by.operator.open(services)
        return opened if callable(opened) else None

    def feed(self, stream: str, batch: Batch) -> None:
        """Run a batch of the output stream of step `stream` (a source inside, or a channel) through the
        fragment.
        """
        entry = self._entries.get(stream)
        self._run(stream, entry(batch) if entry is not None else batch)
        self.at = ""

    def advance(self, stream: str, watermark: int) -> None:
        """No later batch of `stream` (a source inside, or a channel) will hold a record below `watermark`,
        microseconds: every step below that waits for it moves on. A watermark that is not new does nothing.
        """
        if watermark <= self._watermarks.get(stream, START_OF_TIME):
            return
        known = self._watermarks
        known[stream] = watermark
        for step, inputs in self._below:
            if len(inputs) == 1:
                least = known.get(inputs[0], START_OF_TIME)
            else:
                least = min([known.get(one, START_OF_TIME) for one in inputs])
            if least <= known.get(step.id, START_OF_TIME):
                continue
            known[step.id] = least
            running = self._running.get(step.id)
            if running is not None:
                self.at = step.id
                self._deliver(step, running.advance(least))
        self.at = ""

    def take_in(self, cells: Mapping[tuple[str, bytes], bytes]) -> None:
        """Go on with saved cells that came from elsewhere, of keys that have none here, between two batches.
        What is due of them comes out with the next watermark.
        """
        for (step, key), cell in cells.items():
            self.state.take_in(step, key, cell)

    def hand_on(self, output: Output) -> None:
        """Take what some of its steps have put out elsewhere, and hand it on as if they had done so here."""
        for stream, batches in output.batches.items():
            for batch in batches:
                if stream in (DEAD_LETTERS, LATE):
                    self._output.add(stream, batch)
                else:
                    self._deliver(self.graph[stream], batch)

    def drain(self, step: str) -> None:
        """Let a step put out at once what it holds: the records of an `order`, or the open windows of a
        partial aggregate. Event times are those that it would have had. The step is fed no more.
        """
        running = self._running.get(step)
        if running is not None:
            self._deliver(self.graph[step], running.advance(END_OF_TIME))

    def _run(self, stream: str, batch: Batch) -> None:
        while batch.values:
            leaves, inside = self._routes.get(stream, _NOWHERE)
            if leaves:
                self._output.add(stream, batch)
            if not inside:
                return
            for consumer, feed in inside[1:]:
                self.at = consumer.id
                self._deliver(consumer, feed(batch))
            step, feed = inside[0]
            self.at = step.id
            stream, batch = step.id, feed(batch)
            if step.out is None:
                self._output.add(stream, batch)
                return

    def _deliver(self, step: Step, batch: Batch) -> None:
        if step.out is None:
            self._output.add(step.id, batch)
        else:
            self._run(step.id, batch)

    def reject(self, letter: DeadLetter) -> None:
        """Take a dead letter, from an operator or from the reader of a source."""
        self._letters.append(letter)

    def divert_late(self, letter: DeadLetter) -> None:
        """Take a record that was late at its birth: to the late stream of its source where the flow has one,
        else to the table of late records.
        """
        below = next((c.id for c in self.graph.consumers(letter.step) if c.operator.kind == "late"), None)
        if below is None:
            self._late.append(letter)
            return
        origin, entry = letter.origin, self._entries[letter.step]
        time = START_OF_TIME if letter.event_time is None else letter.event_time
        batch = Batch([letter.value], [time], [origin.name], [origin.number])
        self._run(below, entry(batch))

    def take(self) -> Output:
        """Everything that left since the last call, dead letters and late records included."""
        output, self._output = self._output, Output()
        if self._letters:
            output.add(DEAD_LETTERS, to_batch(self._letters))
            self._letters = []
        if self._late:
            output.add(LATE, to_batch(self._late))
            self._late = []
        if self._names:
            names = self._names
            output.batches = {names.get(stream, stream): found for stream, found in output.batches.items()}
        return output

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """The part of the snapshot that changed since the last call: cells by (step, encoded key).

        None stands for one that was dropped.
        """
        return self.state.changes()

    def close(self) -> None:
        """Stop the tasks."""
        for running in self._running.values():
            if isinstance(running, Stoppable):
                running.stop()
