"""NEXMark: thousands of events a second and core, on the edge runtime, on Spark, and by hand on Spark.

A query's events are those of its own sources, 200 seconds of them. On the edge all of its steps run in one
process, from records in memory, by CPU seconds. On Spark it is the time that passes, divided by the two cores
that the session has: Spark's own work is in other processes. All answers are those of plain Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from geartrain.graph.graph import Graph
from geartrain.operators.source import SourceOperator
from geartrain.runtime.local import LocalRun
from tests.bench.at_the_edge import Given
from tests.bench.harness import SIZE, Absent, Contender, Work, rate, scaled
from tests.bench.nexmark_spark import BY_HAND, CANNOT, ByHand, OnLog, Timed
from tests.examples.nexmark_reference import QUERIES, Rows
from tests.examples.nexmark_world import KINDS, events, graph_of, rows_of

EVENTS = scaled(200_000, least=5_000)
SPAN_US = 200_000_000
CORES = 2
EDGE, SPARK, HAND = "edge runtime", "Spark", "Spark by hand"
FEW = ("q5",)
"""What runs on Spark at 1 %: tests/examples compares the results of all of them."""


@pytest.fixture(scope="module")
def house() -> dict[str, Timed]:
    """The events of each source."""
    whole = events(EVENTS, SPAN_US // EVENTS)
    return {name: [row for row in whole if isinstance(row[1], kind)] for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def by_hand(spark: SparkSession, house: dict[str, Timed], tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    """The events as parquet."""
    return ByHand(spark, tmp_path_factory.mktemp("parquet"), house)


def given(graph: Graph, house: dict[str, Timed]) -> Graph:
    """The graph, its sources' records in memory."""

    def columns(rows: Any) -> tuple[list[int], list[Any]]:
        return [time for time, _ in rows], [value for _, value in rows]

    sources = {
        step.id: replace(step, operator=SourceOperator(Given(rows=house[step.id], make=columns)))
        for step in graph.sources()
    }
    return replace(graph, steps=tuple(sources.get(step.id, step) for step in graph.steps))


async def run_local(graph: Graph) -> list[Any]:
    """The records of the only sink."""
    (sink,) = graph.sinks()
    found: list[Any] = []
    async for output in LocalRun(graph).outputs():
        for batch in output.batches.get(sink.id, ()):
            found += batch.values
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_nexmark(query: str, house: dict[str, Timed], request: Any, tmp_path: Path) -> None:
    graph = graph_of(query)
    mine = {source.id: house[source.id] for source in graph.sources()}
    count = sum(map(len, mine.values()))
    in_memory = given(graph, house)
    found: dict[str, Rows] = {}

    def edge() -> float:
        records: list[Any] = []
        figure = rate(count, lambda: records.extend(asyncio.run(run_local(in_memory))))
        found[EDGE] = rows_of(graph, records)
        return figure

    contenders: dict[str, Contender | Absent] = {EDGE: edge}
    if SIZE > 0.01 or query in FEW:
        session = request.getfixturevalue("spark")
        log = OnLog(session, tmp_path, graph, mine)

        def spark() -> float:
            took = log.run()
            found[SPARK] = log.results()
            return count / took / CORES / 1_000

        contenders[SPARK] = spark
        contenders[HAND] = _by_hand(query, graph, count, request, found)
    if SIZE > 0.01:
        _warm(contenders)
    Work(
        f"nexmark {query}", "kevents/s a core", contenders, (EDGE, HAND), versions=("msgspec", "pyspark")
    ).run()
    expected = QUERIES[query]([value for rows in mine.values() for _, value in rows])
    assert expected
    for name, rows in found.items():
        assert rows == expected, f"{query}: {name} answers otherwise"


def _warm(contenders: Mapping[str, Contender | Absent]) -> None:
    """One run of each that is not counted: what Java compiles, and Spark plans, once."""
    for contender in contenders.values():
        if not isinstance(contender, Absent):
            contender()


def _by_hand(
    query: str, graph: Graph, count: int, request: Any, found: dict[str, Rows]
) -> Contender | Absent:
    if query in CANNOT:
        return Absent(CANNOT[query])
    hand: ByHand = request.getfixturevalue("by_hand")
    kind = graph[graph.sinks()[0].inputs[0].step].out

    def run() -> float:
        took, rows = hand.run(BY_HAND[query], query if query == "q5" else "")
        found[HAND] = rows_of(graph, [kind(*row) for row in rows])
        return count / took / CORES / 1_000

    return run
