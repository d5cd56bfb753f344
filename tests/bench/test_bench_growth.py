"""Growth: what a record costs with more keys, more devices and more steps, and a step with a larger graph.

Draws build/growth_*.svg. Keys: a task with a state for each, all of them seen before, from then on drawn at
random; the changed states are taken out every 1,000 records, as the agent does. Devices: one process of
ingest, the same records in as many batches of 100. Steps: maps one below the other. All by CPU time.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from geartrain import Context, Flow, Record, State, Stream, Table, Task
from geartrain.planning import Plan, make_plan
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.splits import SplitTracker
from geartrain.source import Batch, Source
from geartrain_cloud.log.reader import LogReader
from tests.bench.harness import ROOT, ROUNDS, SIZE, Contender, Work, scaled
from tests.bench.plot import Point, draw
from tests.bench.test_bench_ingest import Tally
from tests.cloud.fleet import FLOW, TestDevice, make_config, running

COMMIT = 1_000
KEYS = (1_000, 10_000, 100_000, 1_000_000)
KEY_RECORDS = 100_000
DEVICES = (1, 10, 100, 1_000)
DEVICE_BATCHES, BATCH = 1_000, 100
STEPS = (1, 3, 10, 30, 100)
STEP_CALLS = 1_000_000
GRAPHS = (100, 1_000, 10_000, 100_000, 1_000_000)


class Item(Record):
    key: int
    n: int


class Items(Source[Item]):
    in_order: ClassVar[bool] = True


class Seen(State):
    times: int = 0


class Count(Task[Item, Item]):
    state: ClassVar[type[Seen]] = Seen

    def on_next(self, value: Item, ctx: Context[Item, Seen]) -> None:
        ctx.state.times += 1
        ctx.emit(Item(value.key, ctx.state.times))


def next_one(item: Item) -> Item:
    return Item(item.key, item.n + 1)


class Driven:
    """The devices' part of a flow over one split, fed and committed by 1,000 records."""

    def __init__(self, plan: Plan, channel: str) -> None:
        self._fragment = Fragment(plan.graph, plan.edge)
        self._tracker = SplitTracker("items", "d", 0, None, since_1970=False)
        self._channel, self._number = channel, 0

    def run(self, keys: Sequence[int]) -> list[Item]:
        """What leaves for a record of each of `keys`."""
        found: list[Item] = []
        for first in range(0, len(keys), COMMIT):
            values = [Item(key, 0) for key in keys[first : first + COMMIT]]
            numbers = range(self._number, self._number + len(values))
            self._number += len(values)
            batch, _, _ = self._tracker.observe(Batch(values, numbers, numbers, self._number))
            self._fragment.feed("items", batch)
            self._fragment.advance("items", self._tracker.watermark)
            for one in self._fragment.take().batches.get(self._channel, ()):
                found += one.values
            self._fragment.changes()
        return found


def curve(
    what: str, axes: tuple[str, str], contenders: Mapping[int, Contender], note: str, rounds: int = ROUNDS
) -> None:
    """Measure, and draw it as build/growth_<what>.svg."""
    named = {f"{size:,}": contender for size, contender in contenders.items()}
    work = Work(f"growth: {what}", axes[1], named, next(iter(named)), versions=("msgspec",), notes=[note])
    rows = work.run(rounds)
    points = [
        Point(size, row["median"], row["low"], row["high"])
        for size, row in zip(contenders, rows, strict=True)
    ]
    where = f"{rows[0]['machine']}, msgspec {rows[0]['versions']['msgspec']}, load {rows[0]['load']}"
    times = "one round" if rounds == 1 else f"median and range of {rounds} rounds"
    caption = f"{note} {where}; size {SIZE:g}, {times}."
    draw(ROOT / "build" / f"growth_{what.replace(' ', '_')}.svg", f"Cost by {what}", axes, points, caption)


def test_keys() -> None:
    flow = Flow("keys")
    items = flow.source("items", Items(), out=Item, partitioned_by="key")
    items.key_by("key").process("count", Count()).sink("counts", Table("counts"))
    plan = make_plan(flow.graph(), "edge")
    assert "count" in plan.edge

    def cost(keys: int) -> float:
        driven, chance = Driven(plan, "count"), random.Random(1)
        driven.run(range(keys))
        drawn = [chance.randrange(keys) for _ in range(scaled(KEY_RECORDS))]
        began = time.process_time()
        found = driven.run(drawn)
        took = time.process_time() - began
        seen = dict.fromkeys(drawn, 1)
        for item in found:
            seen[item.key] += 1
            assert item.n == seen[item.key]
        return took / len(drawn) * 1e6

    sizes = {scaled(keys, least=10 * at) for at, keys in enumerate(KEYS, 1)}
    contenders = {keys: partial(cost, keys) for keys in sorted(sizes)}
    curve("keys", ("keys", "CPU us a record"), contenders, "A keyed task that counts.")


def test_steps() -> None:
    def cost(steps: int) -> float:
        flow = Flow("steps")
        stream: Stream[Item] = flow.source("items", Items(), out=Item)
        for number in range(steps):
            stream = stream.map(next_one, name=f"step{number}")
        stream.sink("all", Table("all"))
        plan = make_plan(flow.graph(), "edge")
        driven, keys = Driven(plan, f"step{steps - 1}"), range(scaled(STEP_CALLS) // steps)
        began = time.process_time()
        found = driven.run(keys)
        took = time.process_time() - began
        assert found == [Item(key, steps) for key in keys]
        return took / len(keys) / steps * 1e6

    contenders = {steps: partial(cost, steps) for steps in STEPS}
    axes = ("steps, one below the other", "CPU us a record and step")
    curve("steps", axes, contenders, "Maps that add 1, one below the other.")


def test_devices(tmp_path: Path) -> None:
    folders = iter(range(10_000))

    async def ingested(folder: Path, fleet: list[TestDevice], rounds: int) -> float:
        net = Tally()
        async with running(make_config(folder, tuple(device.name for device in fleet)), net):
            await net.bring([(device, device.schemas()) for device in fleet])
            prices = [n / 4 for n in range(BATCH)]
            publishes = [(device, device.quotes(*prices)) for _ in range(rounds) for device in fleet]
            began = time.process_time()
            await net.bring(publishes)
            return time.process_time() - began

    def cost(devices: int) -> float:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        fleet = [TestDevice(f"device-{n}", f"epoch{n:03d}".encode()) for n in range(devices)]
        rounds = max(1, scaled(DEVICE_BATCHES) // devices)
        took = asyncio.run(ingested(folder, fleet, rounds))
        reader = LogReader(folder)
        logged = reader.counts(FLOW, "0", 0, reader.positions(FLOW)["0"])["quotes"]
        records = devices * rounds * BATCH
        assert logged == records
        return took / records * 1e6

    sizes = [devices for devices in DEVICES if devices <= scaled(DEVICE_BATCHES)]
    contenders = {devices: partial(cost, devices) for devices in sizes}
    cost(1)  # what is imported and opened once
    axes = ("devices", "CPU us a record")
    curve("devices", axes, contenders, "Ingest, decoded, fsynced, in the ledger, acked.")


def test_planning() -> None:
    def cost(steps: int) -> Callable[[], float]:
        command = [sys.executable, "-m", "tests.bench.planning_graphs", "branches", str(steps), "1"]

        def run() -> float:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            report = json.loads(done.stdout)
            assert report["placed"] >= steps * 0.9
            return float(report["plan_s"]) / float(report["placed"]) * 1e6

        return run

    contenders = {steps: cost(steps) for steps in GRAPHS if steps <= scaled(GRAPHS[-1])}
    axes = ("steps of the graph", "CPU us a step")
    note = "From a graph to its plan, each in a process of its own."
    curve("steps planned", axes, contenders, note, rounds=1)
