"""C: the worst drawdown of each stock so far, after every quote: a task with a state for each key, in order.

The loop is what one would write without a framework: a dictionary of states, the same task called for each
quote. bytewax keeps the same state in `stateful_map`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from geartrain import Flow, Table
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US, parse_time, to_datetime
from geartrain_examples.stocks.drawdown import Drawdown, Quote, Report
from tests.bench import peers
from tests.bench.at_the_edge import Given
from tests.bench.contest import RUNTIME, Contest
from tests.bench.harness import scaled

QUOTES = scaled(200_000, least=2_000)
SYMBOLS = 20


def quotes() -> list[tuple[int, Quote]]:
    """(event time, quote), hour by hour, of every symbol."""
    rng = random.Random(7)
    start = to_datetime(parse_time("2000-01-03"))
    prices = {f"S{i:02d}": 100.0 for i in range(SYMBOLS)}
    out = []
    for number in range(QUOTES):
        symbol = f"S{number % SYMBOLS:02d}"
        prices[symbol] *= 1 + rng.uniform(-0.02, 0.0201)
        date = start + timedelta(hours=number // SYMBOLS)
        out.append((round(date.timestamp()) * SECOND_US, Quote(symbol, date, prices[symbol])))
    return out


class Loop:
    """The task with a dictionary of states."""

    def __init__(self) -> None:
        self.task = Drawdown(period="year")
        self.states: dict[str, Any] = {}
        self.out: list[Report] = []
        self.state: Any = None
        self.emit = self.out.append

    def take(self, quote: Quote) -> None:
        """One quote."""
        self.state = self.states.get(quote.symbol) or Drawdown.state()
        self.task.on_next(quote, self)  # type: ignore[arg-type] # all that the task asks of a context
        self.states[quote.symbol] = self.state

    def given(self, quote: Quote) -> Report:
        """The report of one quote."""
        self.take(quote)
        return self.out[-1]


def by_hand(rows: Sequence[tuple[int, Quote]]) -> list[Report]:
    """The loop that one would write."""
    loop = Loop()
    for _, quote in rows:
        loop.take(quote)
    return loop.out


def _timed(rows: Sequence[tuple[int, Quote]]) -> tuple[list[int], list[Any]]:
    return [time for time, _ in rows], [quote for _, quote in rows]


def plan_of(rows: Sequence[tuple[int, Quote]]) -> Plan:
    """The same as a flow, all of it on the device."""
    flow = Flow("drawdowns")
    stream = flow.source("quotes", Given(rows=rows, make=_timed), out=Quote, partitioned_by="symbol")
    reports = stream.key_by("symbol").process("drawdown", Drawdown(period="year"))
    reports.sink("out", Table("drawdown", key=("symbol", "period")))
    return make_plan(flow.graph(), "edge")


def _bytewax(rows: Sequence[tuple[int, Quote]]) -> list[Report]:
    task, context = Drawdown(period="year"), Loop()

    def mapped(state: Any, quote: Quote) -> tuple[Any, Report]:
        context.state = state or Drawdown.state()
        task.on_next(quote, context)  # type: ignore[arg-type]
        return context.state, context.out.pop()

    def build(op: Any, stream: Any) -> Any:
        keyed = op.key_on("key", op.map("quote", stream, lambda row: row[1]), lambda quote: quote.symbol)
        return op.key_rm("out_key", op.stateful_map("drawdown", keyed, mapped))

    return peers.through_bytewax(rows, build)


def _streamz(rows: Sequence[tuple[int, Quote]]) -> list[Report]:
    loop = Loop()
    return peers.through_streamz(rows, lambda stream: stream.map(lambda row: row[1]).map(loop.given))


def _reactivex(rows: Sequence[tuple[int, Quote]]) -> list[Report]:
    loop = Loop()
    steps = [peers.rx("map", lambda row: row[1]), peers.rx("map", loop.given)]
    return peers.through_reactivex(rows, *steps)


def test_drawdown(tmp_path: Path) -> None:
    contest = Contest(
        "C: drawdown of 20 keys",
        QUOTES,
        quotes(),
        by_hand,
        plan_of,
        "drawdown",
        {"bytewax": _bytewax, "streamz": _streamz, "reactivex": _reactivex},
    )
    goals = {RUNTIME: {"loop": 0.7, "bytewax": 2.0}}
    reports = contest.run(
        tmp_path, goals, lambda report: (report.symbol, report.trough_time, report.prices, report.period)
    )
    assert len(reports) == QUOTES
