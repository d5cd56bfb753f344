"""The runtime against a hand-written loop: drawdown of each stock, all quotes keyed and in order.

The loop is what one would write without a framework: a dictionary of states, the same task called for each
quote.
"""

from __future__ import annotations

import random
import time
from datetime import timedelta
from typing import Any

from geartrain.batch import Batch
from geartrain.event_time import parse_time, to_datetime
from geartrain.placement import make_plan
from geartrain.runtime.fragment import Fragment
from geartrain_examples.stocks.drawdown import Drawdown, Quote, Report
from geartrain_examples.stocks.flow import flow
from tests.bench.harness import Work, scaled

QUOTES = scaled(200_000, least=2_000)
BATCH = 256


def _quotes() -> list[Quote]:
    rng = random.Random(7)
    start = to_datetime(parse_time("2000-01-03"))
    prices = {f"S{i:02d}": 100.0 for i in range(20)}
    out = []
    for number in range(QUOTES):
        symbol = f"S{number % 20:02d}"
        prices[symbol] *= 1 + rng.uniform(-0.02, 0.0201)
        out.append(Quote(symbol, start + timedelta(hours=number // 20), prices[symbol]))
    return out


def test_drawdown_of_the_runtime_and_of_a_loop() -> None:
    quotes = _quotes()
    times = [round(q.date.timestamp()) * 1_000_000 for q in quotes]
    graph = flow.graph()
    plan = make_plan(graph, "auto")
    results: dict[str, list[Report]] = {}

    def loop() -> float:
        task = Drawdown(period="year")
        states: dict[str, Any] = {}
        out: list[Report] = []

        class Context:
            state: Any = None
            emit = out.append

        context: Any = Context()
        began = time.process_time()
        for quote in quotes:
            context.state = states.get(quote.symbol) or Drawdown.state()
            task.on_next(quote, context)
            states[quote.symbol] = context.state
        took = time.process_time() - began
        results["loop"] = out
        return len(quotes) / took / 1_000

    def runtime() -> float:
        fragment = Fragment(graph, [s for s in plan.edge if s != "whole"])
        out: list[Report] = []
        began = time.process_time()
        for first in range(0, len(quotes), BATCH):
            size = len(quotes[first : first + BATCH])
            names, numbers = ["d/quotes"] * size, list(range(first, first + size))
            batch = Batch(quotes[first : first + BATCH], times[first : first + BATCH], names, numbers)
            fragment.feed("quotes", batch)
            for part in fragment.take().batches["drawdown"]:
                out += part.values
            fragment.changes()
        took = time.process_time() - began
        results["runtime"] = out
        return len(quotes) / took / 1_000

    work = Work(
        "drawdown", "krec/cpu-s", {"loop": loop, "runtime": runtime}, against="loop", versions=("msgspec",)
    )
    work.run(rounds=5)
    assert results["runtime"] == results["loop"]
