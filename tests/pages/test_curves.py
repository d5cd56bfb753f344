"""The page's data apart from its server: curves, thinning, durations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain_cloud.sinks.tables import rows
from geartrain_examples.stocks.page import StockPage, measures, series, thinned
from tests.pages.conftest import tables_of, write_prices


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=300), st.integers(4, 60))
def test_thinning_keeps_ends_highest_and_lowest(prices: list[float], points_max: int) -> None:
    kept = thinned(prices, points_max)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(points_max, 4)
    assert (kept[0], kept[-1]) == (0, len(prices) - 1)
    values = [prices[i] for i in kept]
    assert (max(values), min(values)) == (max(prices), min(prices))


def test_short_series_is_drawn_whole() -> None:
    quotes = [{"date": f"2020-01-0{i + 1}T00:00:00Z", "price": p} for i, p in enumerate([2.0, 3.0, 1.0, 4.0])]
    assert series(quotes) == {
        "times": [q["date"] for q in quotes],
        "prices": [2.0, 3.0, 1.0, 4.0],
        "drawdowns": [0.0, 0.0, 2.0, 0.0],
        "quotes": 4,
    }


def test_without_a_drawdown_nothing_is_under_water() -> None:
    day = "2020-01-01T00:00:00Z"
    report: dict[str, Any] = {"drawdown": 0.0, "peak": 5.0, "peak_time": day, "recovered_time": None}
    found = measures(report, {"date": "2020-01-09T00:00:00Z", "price": 5.0})
    assert (found["under_water_s"], found["recovery_s"], found["drawdown_fraction"]) == (0.0, None, 0.0)


@pytest.mark.parametrize("period", ["day", "month", "all"])
def test_periods_of_every_granularity(tmp_path: Path, period: str) -> None:
    prices = write_prices(tmp_path / "p.csv", [("A", "2020-01-31T12:00:00Z", 2.0), ("A", "2020-02-01", 1.0)])
    tables = tables_of(prices, tmp_path, period)

    def read(table: str, where: Any) -> list[dict[str, Any]]:
        return rows(tables, table, where, canonical=True)

    labels = {
        "day": ["2020-01-31", "2020-02-01", "all"],
        "month": ["2020-01", "2020-02", "all"],
        "all": ["all"],
    }
    page = StockPage()
    assert page.answer(read, ["symbols"], {}) == (
        200,
        {"symbols": [{"symbol": "A", "periods": labels[period]}]},
    )
    for label in labels[period]:
        status, report = page.answer(read, ["report", "A"], {"period": label})
        assert (status, report["period"]) == (200, label)
        assert report["series"]["quotes"] == report["prices"] == (2 if label == "all" else 1)


def test_equal_dates_are_drawn_in_the_order_of_their_lines(tmp_path: Path) -> None:
    day = "2020-01-01"
    prices = write_prices(tmp_path / "p.csv", [("A", day, 5.0), ("A", day, 3.0), ("A", day, 6.0)])
    tables = tables_of(prices, tmp_path)
    found = rows(tables, "prices", {"symbol": "A"}, canonical=True)
    assert series(found)["prices"] == [5.0, 3.0, 6.0]
    assert max(series(found)["drawdowns"]) == rows(tables, "drawdown_all")[0]["drawdown"] == 2.0
