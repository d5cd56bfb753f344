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

    Rows of equal symbol and date count in the order of the frame.
    """
    ordered = frame.sort_values("date", kind="stable")
    if period == "all":
        labels = pd.Series("all", index=ordered.index)
    else:
        labels = ordered["date"].dt.tz_localize(None).dt.to_period(PERIOD_CODES[period]).astype(str)
    groups = ordered.groupby([ordered["symbol"], labels], sort=False)
    rows = [_row(str(symbol), str(label), group) for (symbol, label), group in groups]
    return sorted(rows, key=lambda row: (row["symbol"], row["period"]))


def _row(symbol: str, label: str, group: pd.DataFrame) -> dict[str, Any]:
    price = group["price"].reset_index(drop=True)
    date = group["date"].reset_index(drop=True)
    peaks = price.cummax()
    fall = (price > peaks.shift(fill_value=0.0)).cumsum()  # numbers the falls: each new maximum begins one
    lows = price.groupby(fall).cummin()
    moved = lows.groupby(fall).diff().fillna(-1.0) < 0  # where a fall begins or deepens
    depth = (peaks - lows)[moved]
    trough = int(depth.index[depth == depth.max()][-1])
    peak = int(price.index[fall == fall[trough]][0])
    back = price.index[(price >= price[peak]) & (price.index > trough)]
    recovered = int(back[0]) if len(back) and depth[trough] > 0 else None
    return {
        "symbol": symbol,
        "period": label,
        "drawdown": float(depth[trough]),
        "peak": float(price[peak]),
        "peak_time": _text(date[peak]),
        "trough": float(price[trough]),
        "trough_time": _text(date[trough]),
        "recovered_time": None if recovered is None else _text(date[recovered]),
        "worst_fraction": float(((peaks - lows) / peaks).max()),
        "prices": len(price),
    }


def _text(moment: pd.Timestamp) -> str:
    fraction = f".{moment.microsecond:06d}" if moment.microsecond else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{fraction}Z"
