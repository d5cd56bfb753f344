"""The drawdown by its definition, twice and without the flow: over lists by index, and over a pandas frame.

The oracles of the stock demo's tests. Both look at a whole period at once, where the flow sees one quote at a
time, so that they cannot share a mistake with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

PERIOD_CODES = {"day": "D", "month": "M", "year": "Y"}


@dataclass(frozen=True)
class Worst:
    """Indexes into the prices of a period, and the largest relative fall."""

    peak: int
    trough: int
    recovered: int | None
    fraction: float


def worst_by_index(prices: Sequence[float]) -> Worst:
    """The worst fall of one period by looking, for each index, at all before it: quadratic and plain."""
    falls = []
    for at in range(len(prices)):
        peak = prices.index(max(prices[: at + 1]))
        trough = prices.index(min(prices[peak : at + 1]), peak)
        if trough == at:  # a fall begins or deepens here
            falls.append((peak, at))
    depths = [prices[peak] - prices[trough] for peak, trough in falls]
    last = max(range(len(falls)), key=lambda i: (depths[i], i))
    peak, trough = falls[last]
    after = (i for i in range(trough + 1, len(prices)) if prices[i] >= prices[peak])
    recovered = next(after, None) if depths[last] else None
    fraction = max((prices[p] - prices[t]) / prices[p] for p, t in falls)
    return Worst(peak, trough, recovered, fraction)


def drawdown_rows(frame: pd.DataFrame, period: str) -> list[dict[str, Any]]:
    """The rows of the demo's output for prices in the columns symbol, date (datetime64, UTC) and price.

    Rows of equal symbol and date count in the order of the frame. All groups are worked out at once.
    """
    rows = frame.sort_values(["symbol", "date"], kind="stable").reset_index(drop=True)
    rows["period"] = "all" if period == "all" else _labels(rows["date"], period)
    keys = [rows["symbol"], rows["period"]]
    peaks = rows["price"].groupby(keys).cummax()
    begins = rows["price"] > peaks.groupby(keys).shift(fill_value=0.0)  # each new maximum begins a fall
    fall = begins.cumsum()
    lows = rows["price"].groupby(fall).cummin()
    moved = begins | (lows < lows.groupby(fall).shift(fill_value=0.0))  # where a fall begins or deepens
    depth = (peaks - lows).where(moved, -1.0)
    deepest = depth.groupby(keys).transform("max")
    last = pd.Series(rows.index, rows.index).where(depth == deepest).groupby(keys).transform("max")
    trough = last.astype("int64")  # of each row, where the worst fall of its group is deepest
    peak = rows.index.to_series().groupby(fall).transform("min")[trough].set_axis(rows.index)
    back = (rows["price"] >= rows["price"][peak].set_axis(rows.index)) & (rows.index > trough) & (deepest > 0)
    recovered = rows.index.to_series().where(back).groupby(keys).transform("min")
    found = pd.DataFrame({"trough": trough, "peak": peak, "recovered": recovered, "drawdown": deepest})
    found["fraction"] = ((peaks - lows) / peaks).groupby(keys).transform("max")
    found["prices"] = rows["price"].groupby(keys).transform("size")
    firsts = ~rows.duplicated(["symbol", "period"])
    listed = [_row(rows, index, one) for index, one in found[firsts].iterrows()]
    return sorted(listed, key=lambda row: (row["symbol"], row["period"]))


def _labels(dates: pd.Series[Any], period: str) -> pd.Series[Any]:
    return dates.dt.tz_localize(None).dt.to_period(PERIOD_CODES[period]).astype(str)


def _row(rows: pd.DataFrame, index: Any, one: pd.Series[Any]) -> dict[str, Any]:
    price, date = rows["price"], rows["date"]
    return {
        "symbol": str(rows["symbol"][index]),
        "period": str(rows["period"][index]),
        "drawdown": float(one["drawdown"]),
        "peak": float(price[one["peak"]]),
        "peak_time": _text(date[one["peak"]]),
        "trough": float(price[one["trough"]]),
        "trough_time": _text(date[one["trough"]]),
        "recovered_time": None if pd.isna(one["recovered"]) else _text(date[one["recovered"]]),
        "worst_fraction": float(one["fraction"]),
        "prices": int(one["prices"]),
    }


def _text(moment: pd.Timestamp) -> str:
    fraction = f".{moment.microsecond:06d}" if moment.microsecond else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{fraction}Z"
