"""A fragment at work: the steps of one tier as fused chains, from the batches fed to it to the batches it
hands out.

Fed by the agent with what the sources read, or inside Spark with what came over a channel. A batch runs
through
a linear run of steps in one loop; the graph forks by handing the same columns to each consumer, which never
change them in place. Guarantees: no I/O, no clock, no randomness, so equal input gives equal output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from geartrain.batch import Batch, DeadLetter
from geartrain.graph import DEAD_LETTERS, LATE, Graph, Step
from geartrain.letters import to_batch
from geartrain.operators.conform import checker
from geartrain.operators.key_by import KeyBy
from geartrain.operators.operator import Services, Transform
from geartrain.runtime.state import DictBackend, KeyedState, StateBackend


@dataclass(slots=True)
class Output:
    """What left a fragment since it was last asked: batches by channel or sink (step id, `_dead_letters`,
    `_late`).
    """

    batches: dict[str, list[Batch]] = field(default_factory=dict)

    def add(self, stream: str, batch: Batch) -> None:
        """Keep a batch that is not empty."""
        if len(batch):
            self.batches.setdefault(stream, []).append(batch)


class Fragment:
    """The steps `steps` of `graph`, opened.

    Output leaves at each sink in `steps`, and at each step whose output is read by a step outside of `steps`.
    """

    def __init__(self, graph: Graph, steps: Iterable[str], backend: StateBackend | None = None) -> None:
        """`backend`: where saved keyed state is loaded from; default none is saved."""
        self.graph = graph
        self.steps = frozenset(steps)
        self.state = KeyedState(backend if backend is not None else DictBackend())
        self.counters: dict[str, int] = {}
        self._letters: list[DeadLetter] = []
        self._late: list[DeadLetter] = []
        self._output = Output()
        self._transforms: dict[str, Transform] = {}
        for step in graph.steps:
            if step.id in self.steps:
                services = Services(step.id, step.out, self.reject, self.state)
                self._transforms[step.id] = step.operator.open(services)
        self._routes = {step.id: self._route(step) for step in graph.steps if step.out is not None}
        self._entries = {s.id: entry for s in graph.steps if (entry := self._entry(s)) is not None}

    def _route(self, step: Step) -> tuple[bool, tuple[str, ...]]:
        """(whether the output leaves here, the consumers inside)."""
        consumers = self.graph.consumers(step.id)
        inside = tuple(c.id for c in consumers if c.id in self.steps)
        leaves = step.id in self.steps and len(inside) < len(consumers)
        return leaves, inside

    def _entry(self, step: Step) -> Transform | None:
        """What a batch passes when it is fed: the check of a source's records, the keys that no channel
        carries.
        """
        services = Services(step.id, step.out, self.reject, self.state)
        if not step.inputs and step.id in self.steps:
            return checker(services)
        return (
            step.operator.open(services)
            if step.id not in self.steps and isinstance(step.operator, KeyBy)
            else None
        )

    def feed(self, stream: str, batch: Batch) -> None:
        """Run a batch of the output stream of step `stream` (a source inside, or a channel) through the
        fragment.
        """
        entry = self._entries.get(stream)
        self._run(stream, entry(batch) if entry is not None else batch)

    def _run(self, stream: str, batch: Batch) -> None:
        while len(batch):
            leaves, inside = self._routes[stream]
            if leaves:
                self._output.add(stream, batch)
            if not inside:
                return
            for consumer in inside[1:]:
                self._enter(consumer, batch)
            stream = inside[0]
            batch = self._transforms[stream](batch)
            if self.graph[stream].out is None:
                self._output.add(stream, batch)
                return

    def _enter(self, step: str, batch: Batch) -> None:
        out = self._transforms[step](batch)
        if self.graph[step].out is None:
            self._output.add(step, out)
        else:
            self._run(step, out)

    def reject(self, letter: DeadLetter) -> None:
        """Take a dead letter, from an operator or from the reader of a source."""
        self._letters.append(letter)

    def divert_late(self, letter: DeadLetter) -> None:
        """Take a record that was late at its birth."""
        self._late.append(letter)

    def take(self) -> Output:
        """Everything that left since the last call, dead letters and late records included."""
        output, self._output = self._output, Output()
        if self._letters:
            output.add(DEAD_LETTERS, to_batch(self._letters))
            self._letters = []
        if self._late:
            output.add(LATE, to_batch(self._late))
            self._late = []
        return output

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """The part of the snapshot that changed since the last call: msgpack by (step, encoded key)."""
        return self.state.changes()

    def close(self) -> None:
        """Stop the tasks."""
        for step in self.graph.steps:
            if step.id in self.steps:
                step.operator.close()
