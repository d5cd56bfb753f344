"""Large graphs to plan, and one plan in a process of its own: what it took, as JSON.

python -m tests.bench.planning_graphs branches 10000 100
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

from geartrain import Context, Flow, Graph, Record, Table, Task, agg, tumbling
from geartrain.graph.graph import Grouping, Input, Step
from geartrain.operators.filter import Filter
from geartrain.operators.key_by import KeyBy
from geartrain.operators.map import Map
from geartrain.operators.merge import Merge
from geartrain.operators.process import Process
from geartrain.operators.sink import sink_operator
from geartrain.operators.source import SourceOperator
from geartrain.planning import Plan, make_plan
from geartrain.planning.properties import with_order
from geartrain.source import Source

KEEPS = frozenset({"sensor"})


class Reading(Record):
    sensor: str
    value: float


class Minute(Record):
    sensor: str
    n: int


class Readings(Source[Reading]):
    in_order: ClassVar[bool] = True


class Same(Task[Reading, Reading]):
    state: ClassVar[type[int]] = int

    def on_next(self, value: Reading, ctx: Context[Reading, int]) -> None:
        ctx.emit(value)


def same(reading: Reading) -> Reading:
    return reading


def true(reading: Reading) -> bool:
    return True


def chain(steps: int, parallelism: int) -> Iterator[Step]:
    """A source, maps one below the other, and a sink."""
    yield Step("source", SourceOperator(Readings(), "sensor"), (), Reading)
    above = "source"
    for number in range(steps - 2):
        yield Step(f"map{number}", Map(same, KEEPS), (Input(above),), Reading, None, parallelism)
        above = f"map{number}"
    yield Step("sink", sink_operator(Table("all")), (Input(above),))


def branches(steps: int, parallelism: int) -> Iterator[Step]:
    """Two sources, and below them branches of five steps; every second one can stay on the devices whole."""
    yield Step("east", SourceOperator(Readings(), "sensor"), (), Reading)
    yield Step("west", SourceOperator(Readings(), "sensor"), (), Reading)
    yield Step("both", Merge(), (Input("east"), Input("west")), Reading)
    for number in range((steps - 3) // 5):
        above, keeps = ("east", KEEPS) if number % 2 else ("both", frozenset[str]())
        names = [f"{verb}{number}" for verb in ("map", "filter", "key", "process", "sink")]
        yield Step(names[0], Map(same, keeps), (Input(above),), Reading, None, parallelism)
        yield Step(names[1], Filter(true), (Input(names[0]),), Reading, None, parallelism)
        yield Step(names[2], KeyBy.of_field("sensor"), (Input(names[1]),), Reading, None, parallelism)
        process = Process(Same(), None, None, "canonical")
        yield Step(names[3], process, (Input(names[2], Grouping.HASH),), Reading, None, parallelism)
        yield Step(names[4], sink_operator(Table("all")), (Input(names[3]),), None, None, parallelism)


def written(steps: int) -> Graph:
    """A flow as a user writes it, of branches of four steps: a window in each, whose aggregate is split."""
    flow = Flow("large")
    readings = flow.source("readings", Readings(), out=Reading)
    for number in range((steps - 1) // 4):
        kept = readings.filter(true, name=f"filter{number}").key_by("sensor", name=f"key{number}")
        minutes = kept.window(tumbling(timedelta(minutes=1))).aggregate(
            f"n{number}", out=Minute, n=agg.count()
        )
        minutes.sink(f"sink{number}", Table(f"minutes{number}"))
    return flow.graph()


SHAPES: dict[str, Callable[[int, int], Iterator[Step]]] = {"chain": chain, "branches": branches}


def graph_of(shape: str, steps: int, parallelism: int = 1) -> Graph:
    """A graph of about so many steps, each in so many instances."""
    if shape == "written":
        return written(steps)
    return with_order(Graph("large", tuple(SHAPES[shape](steps, parallelism))))


def tasks_of(plan: Plan) -> int:
    """Instances of all steps that the plan placed."""
    return sum(plan.graph[step].parallelism for step in (*plan.edge, *plan.cloud))


def peak_mb() -> float:
    """The most memory that this program ever held."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage tells begins with that of the process that started this one
        return (
            int(next(line for line in status.read_text().splitlines() if "VmHWM" in line).split()[1]) / 1_024
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


def _report(shape: str, steps: int, parallelism: int) -> dict[str, float]:
    began = time.process_time()
    graph = graph_of(shape, steps, parallelism)
    built = time.process_time()
    plan = make_plan(graph, "edge")
    placed = len(plan.edge) + len(plan.cloud)
    done = time.process_time()
    return {
        "build_s": built - began,
        "plan_s": done - built,
        "rss_mb": peak_mb(),
        "placed": placed,
        "tasks": tasks_of(plan),
        "channels": len(plan.channels),
    }


if __name__ == "__main__":
    print(json.dumps(_report(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
