"""How long one record takes through five stages while nothing else is there, in microseconds: the median.

asyncio: a queue and a task for each stage, as one would hand over by hand. runtime: a task waits for a queue
and runs each record through a fragment of five maps, counters, origins and watermark included. bytewax: its
source gives a record about every millisecond, its sink looks at the clock.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from geartrain.records.batch import Batch
from geartrain.runtime.fragment import Fragment
from tests.bench.harness import Absent, Contender, Work, peer, scaled
from tests.bench.test_bench_b_maps import STAGES, plan_of, plus_one

RECORDS = scaled(2_000, least=50)
PAUSE_S = 0.001


def _through_queues() -> list[float]:
    return asyncio.run(_by_stages())


async def _by_stages() -> list[float]:
    queues: list[asyncio.Queue[tuple[float, int]]] = [asyncio.Queue() for _ in range(STAGES + 1)]

    async def stage(number: int) -> None:
        while True:
            began, value = await queues[number].get()
            queues[number + 1].put_nowait((began, plus_one(value)))

    stages = [asyncio.create_task(stage(number)) for number in range(STAGES)]
    took = []
    for number in range(RECORDS):
        await asyncio.sleep(PAUSE_S)
        queues[0].put_nowait((time.perf_counter(), number))
        began, value = await queues[-1].get()
        took.append(time.perf_counter() - began)
        assert value == number + STAGES
    for one in stages:
        one.cancel()
    return took


def _through_runtime() -> list[float]:
    return asyncio.run(_by_fragment())


async def _by_fragment() -> list[float]:
    plan = plan_of(())
    fragment = Fragment(plan.graph, plan.edge)
    entry: asyncio.Queue[tuple[float, int]] = asyncio.Queue()
    out: asyncio.Queue[tuple[float, int]] = asyncio.Queue()

    async def work() -> None:
        while True:
            began, value = await entry.get()
            fragment.feed("numbers", Batch([value], [value], ["d/numbers"], [value]))
            fragment.advance("numbers", value)
            for batches in fragment.take().batches.values():
                out.put_nowait((began, batches[0].values[0]))

    worker, took = asyncio.create_task(work()), []
    for number in range(RECORDS):
        await asyncio.sleep(PAUSE_S)
        entry.put_nowait((time.perf_counter(), number))
        began, value = await out.get()
        took.append(time.perf_counter() - began)
        assert value == number + STAGES
    worker.cancel()
    return took


def _through_bytewax() -> list[float]:
    from bytewax import operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import DynamicSource, StatelessSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    took: list[float] = []

    class Partition(StatelessSourcePartition[Any]):
        """One record at a time."""

        def __init__(self) -> None:
            self._number = 0

        def next_batch(self) -> list[Any]:
            """The next record, now."""
            if self._number >= RECORDS:
                raise StopIteration
            self._number += 1
            return [(time.perf_counter(), self._number - 1)]

        def next_awake(self) -> datetime:
            """After the pause."""
            return datetime.now(UTC) + timedelta(seconds=PAUSE_S)

    class Source(DynamicSource[Any]):
        """One partition."""

        def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
            """The partition."""
            return Partition()

    class Clock(StatelessSinkPartition[Any]):
        """Looks at the clock."""

        def write_batch(self, items: list[Any]) -> None:
            """How long it took."""
            took.extend(time.perf_counter() - began for began, _ in items)

    class Sink(DynamicSink[Any]):
        """One partition."""

        def build(self, step_id: str, worker_index: int, worker_count: int) -> Clock:
            """The partition."""
            return Clock()

    flow = Dataflow("idle")
    stream = op.input("in", flow, Source())
    for stage in range(STAGES):
        stream = op.map(f"plus_{stage}", stream, lambda item: (item[0], plus_one(item[1])))
    op.output("out", stream, Sink())
    import_module("bytewax.testing").run_main(flow)
    return took


def test_idle_latency_over_five_stages() -> None:
    taken: dict[str, list[float]] = {}

    def median(name: str, run: Callable[[], list[float]]) -> Contender:
        def contender() -> float:
            took = run()
            assert len(took) == RECORDS
            taken[name] = taken.get(name, []) + took
            return statistics.median(took) * 1e6

        return contender

    contenders: dict[str, Contender | Absent] = {
        "asyncio": median("asyncio", _through_queues),
        "runtime": median("runtime", _through_runtime),
        "bytewax": peer("bytewax", lambda: median("bytewax", _through_bytewax)),
    }
    goals = {"runtime": {"asyncio": 2.0, "bytewax": 1.0}}
    work = Work("idle latency, p50 (less is better)", "us", contenders, "asyncio", goals=goals)
    rows = work.run()
    for name, took in taken.items():
        found = statistics.quantiles(took, n=100)
        print(f"  {name}: p95 {found[94] * 1e6:.0f} us, p99 {found[98] * 1e6:.0f} us")
    assert [row["name"] for row in rows] == list(contenders)
