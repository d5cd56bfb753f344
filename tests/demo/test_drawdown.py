"""The drawdown task against its definition: by index over lists, and by pandas over frames."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain import Flow, Table
from geartrain.errors import ConfigError
from geartrain.records.event_time import format_time, from_datetime
from geartrain.testing import TestingSource, run_flow
from geartrain_examples.stocks.drawdown import Drawdown, Quote, Report
from tests.demo.reference import drawdown_rows, worst_by_index

START = datetime(2008, 12, 30, tzinfo=UTC)
coarse = st.integers(1, 6).map(float)  # few values, so that equal peaks, troughs and depths are common
fine = st.floats(min_value=1e-6, max_value=1e9)
series = st.lists(coarse, min_size=1, max_size=30) | st.lists(fine, min_size=1, max_size=30)


def quotes_of(prices: list[float], step: timedelta = timedelta(days=1)) -> list[Quote]:
    return [Quote("GT", START + i * step, price) for i, price in enumerate(prices)]


def reports(quotes: list[Quote], period: str) -> list[Report]:
    """What the task says after each quote, run as a step of a flow."""
    flow = Flow("prices")
    source: TestingSource[Quote] = TestingSource(
        items=[(from_datetime(quote.date), quote) for quote in quotes]
    )
    keyed = flow.source("quotes", source, out=Quote, partitioned_by="symbol").key_by("symbol")
    task = Drawdown().with_options({"period": period}, "test")
    keyed.process("drawdown", task).sink("out", Table("out"))
    results = run_flow(flow)
    assert not results.dead_letters
    return [record for _, record in results.tables["out"]]


def as_rows(found: list[Report]) -> list[dict[str, Any]]:
    """The last report of each (symbol, period) in the form of the demo's output."""
    rows = {}
    for one in found:
        times = {
            name: None if (moment := getattr(one, name)) is None else format_time(from_datetime(moment))
            for name in ("peak_time", "trough_time", "recovered_time")
        }
        fields = {name: getattr(one, name) for name in Report.__struct_fields__}
        rows[one.symbol, one.period] = fields | times
    return [rows[key] for key in sorted(rows)]


@given(series)
def test_each_report_is_the_worst_so_far(prices: list[float]) -> None:
    quotes = quotes_of(prices)
    for seen, report in enumerate(reports(quotes, "all"), 1):
        worst = worst_by_index(prices[:seen])
        assert report.prices == seen
        assert (report.peak, report.trough) == (prices[worst.peak], prices[worst.trough])
        assert report.drawdown == prices[worst.peak] - prices[worst.trough]
        assert report.peak_time == quotes[worst.peak].date
        assert report.trough_time == quotes[worst.trough].date
        recovered = None if worst.recovered is None else quotes[worst.recovered].date
        assert report.recovered_time == recovered
        assert report.worst_fraction == worst.fraction


@given(series, st.sampled_from(["day", "month", "year", "all"]), st.sampled_from([6, 24, 400]))
def test_last_report_of_each_period_is_what_pandas_finds(
    prices: list[float], period: str, hours: int
) -> None:
    quotes = quotes_of(prices, timedelta(hours=hours))
    frame = pd.DataFrame({"symbol": "GT", "date": [q.date for q in quotes], "price": prices})
    assert as_rows(reports(quotes, period)) == drawdown_rows(frame, period)


@pytest.mark.parametrize(
    ("period", "labels"),
    [
        ("day", ["2008-12-30", "2008-12-31", "2009-01-01"]),
        ("month", ["2008-12", "2009-01"]),
        ("year", ["2008", "2009"]),
        ("all", ["all"]),
    ],
)
def test_labels(period: str, labels: list[str]) -> None:
    found = reports(quotes_of([3.0, 2.0, 1.0]), period)
    assert list(dict.fromkeys(report.period for report in found)) == labels


def test_year_before_1000_keeps_its_four_digits() -> None:
    early = Quote("GT", datetime(987, 7, 3, tzinfo=UTC), 1.0)
    assert reports([early], "year")[0].period == "0987"


def worst_of(prices: list[float]) -> Report:
    return reports(quotes_of(prices), "all")[-1]


def test_rising_prices_have_no_drawdown() -> None:
    worst = worst_of([1.0, 2.0, 3.0])
    assert (worst.drawdown, worst.peak, worst.trough) == (0.0, 3.0, 3.0)
    assert worst.recovered_time is None
    assert worst.worst_fraction == 0.0


def test_equal_price_at_the_peak_recovers_and_begins_no_new_fall() -> None:
    worst = worst_of([5.0, 4.0, 5.0, 5.0])
    assert worst.peak_time == START
    assert worst.recovered_time == START + timedelta(days=2)


def test_deepening_after_a_recovery_clears_it() -> None:
    worst = worst_of([5.0, 4.0, 5.0, 3.0])
    assert (worst.trough, worst.recovered_time) == (3.0, None)
    assert worst.peak_time == START


def test_of_two_equal_drawdowns_the_later_is_the_worst() -> None:
    worst = worst_of([5.0, 3.0, 6.0, 4.0, 7.0])
    assert (worst.drawdown, worst.peak, worst.trough) == (2.0, 6.0, 4.0)
    assert worst.recovered_time == START + timedelta(days=4)


def test_largest_fraction_may_be_of_another_fall_than_the_worst_in_money() -> None:
    worst = worst_of([2.0, 1.0, 100.0, 90.0])
    assert worst.drawdown == 10.0
    assert worst.worst_fraction == 0.5


def test_unknown_period_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"drawdown\.period = 'week'"):
        Drawdown().with_options({"period": "week"}, "--set drawdown")
