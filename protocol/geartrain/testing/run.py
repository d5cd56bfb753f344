"""Run a flow in a test, with commits: a crash loses what came after the last one, and a resumed run repeats
it.

The model of exactly-once that the agent and Spark keep with a disk: positions, state and output move
together.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from geartrain.flow.flow import Flow
from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.operators.sink import SinkOperator
from geartrain.ports.spool import SplitProgress
from geartrain.records.batch import Batch
from geartrain.records.letters import Letter
from geartrain.runtime.fragment import Output
from geartrain.runtime.local import LocalRun
from geartrain.state.keyed import DictBackend
from geartrain.testing.sink import TestingSink


@dataclass(slots=True)
class Results:
    """What a flow put out so far.

    Args:
        tables: `(event time in microseconds, record)` by the id of the sink's step.
        dead_letters: the records that a step or a source could not process, with the step and the reason.
        late: the records that were late at their birth, unless the flow asked for them itself.
    """

    tables: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    dead_letters: list[Letter] = field(default_factory=list)
    late: list[Letter] = field(default_factory=list)


@dataclass(slots=True)
class Saved:
    """What survives a crash. A fresh one is the beginning; give the same one to the next run.

    Args:
        positions: where each split is read on.
        state: the keyed state, by step and encoded key.
        results: what was committed with them.
    """

    positions: dict[tuple[str, str], SplitProgress] = field(default_factory=dict)
    state: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    results: Results = field(default_factory=Results)


def run_flow(flow: Flow | Graph, saved: Saved | None = None, *, rows_max: int = 256) -> Results:
    """Run a flow in this process to its end, to an EOF, or to an ABORT.

    Args:
        flow: the flow, or its graph. Its sources must answer at once, as `TestingSource` and files do.
        saved: where to resume; each commit brings it up to date.
        rows_max: rows of a split that a commit takes at most, 1 or more.

    Returns:
        All results so far.

    Raises:
        RunAbortedError: at an ABORT; run again with the same `saved` to resume.
        SourceError: for a source that cannot be read.
        RuntimeError: for a source that waits.
    """
    graph = flow.graph() if isinstance(flow, Flow) else flow
    kept = saved if saved is not None else Saved()
    for step in graph.sinks():
        kept.results.tables.setdefault(step.id, [])
    _drive(_run(graph, kept, rows_max))
    return kept.results


async def _run(graph: Graph, saved: Saved, rows_max: int) -> None:
    run = LocalRun(graph, backend=DictBackend(dict(saved.state)), positions=saved.positions)
    async for output in run.outputs(rows_max):
        for at, value in run.fragment.changes().items():
            if value is None:
                saved.state.pop(at, None)
            else:
                saved.state[at] = value
        saved.positions.update(run.progress.positions)
        _keep(graph, saved.results, output)


def _keep(graph: Graph, results: Results, output: Output) -> None:
    for stream, batches in output.batches.items():
        for batch in batches:
            if stream in (DEAD_LETTERS, LATE):
                (results.dead_letters if stream == DEAD_LETTERS else results.late).extend(batch.values)
            else:
                _collect(graph, results, stream, batch)


def _collect(graph: Graph, results: Results, sink: str, batch: Batch) -> None:
    rows = list(zip(batch.times, batch.values, strict=True))
    results.tables[sink] += rows
    operator = graph[sink].operator
    if isinstance(operator, SinkOperator) and isinstance(operator.table, TestingSink):
        operator.table.records.extend(rows)


def _drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never really waits, so that a test needs no event loop."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("a source waited for something: run_flow drives sources that answer at once")
