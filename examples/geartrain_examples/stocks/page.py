"""What the page of the stock demo shows, as data: symbols, periods, and one report with its curves.

After the end of the record's path: it reads tables only, whatever machine filled them. Guarantees: a curve
has at most `POINTS_MAX` points, and thinning keeps every bucket's highest and lowest price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from geartrain.records.event_time import SECOND_US, parse_time
from geartrain_examples.demo import Answer, Row, Rows

POINTS_MAX = 2_000
OUTPUT_TABLE = "drawdown"


class StockPage:
    """The page: `static` is the folder with index.html and what it loads."""

    static = Path(__file__).with_name("static")

    def answer(self, rows: Rows, path: Sequence[str], query: Mapping[str, str]) -> Answer:
        """The answer to `GET /api/<path>`: `symbols`, or `report/<symbol>` with `period` in the query."""
        match list(path):
            case ["symbols"]:
                return 200, _symbols(rows)
            case ["report", symbol]:
                return _report(rows, symbol, query.get("period", "all"))
        return 404, {"error": "there is no such page: ask for /api/symbols or /api/report/SYMBOL?period=2008"}


def _periods(rows: Rows) -> dict[str, list[str]]:
    """The periods of each symbol, oldest first, `all` at the end."""
    found: dict[str, list[str]] = {}
    for row in sorted(rows(OUTPUT_TABLE, {}), key=lambda row: (row["symbol"], row["period"])):
        found.setdefault(row["symbol"], []).append(row["period"])
    return {symbol: [*(p for p in periods if p != "all"), "all"] for symbol, periods in found.items()}


def _symbols(rows: Rows) -> Row:
    return {"symbols": [{"symbol": s, "periods": p} for s, p in _periods(rows).items()]}


def _report(rows: Rows, symbol: str, period: str) -> Answer:
    table = "drawdown_all" if period == "all" else OUTPUT_TABLE
    found = rows(table, {"symbol": symbol, "period": period})
    if not found:
        return 404, {"error": _missing(_periods(rows), symbol, period)}
    report = found[0]
    quotes = rows("prices", {"symbol": symbol})
    if period != "all":
        quotes = [quote for quote in quotes if quote["date"].startswith(period)]
    return 200, report | measures(report, quotes[-1]) | {"series": series(quotes)}


def _missing(periods: Mapping[str, Sequence[str]], symbol: str, period: str) -> str:
    if symbol in periods:
        known = [p for p in periods[symbol] if p != "all"]
        spans = f"{known[0]} to {known[-1]}, and all" if known else "all"
        return f"{symbol} has no period {period!r}: it has {spans}"
    listed = ", ".join(list(periods)[:20]) + (", ..." if len(periods) > 20 else "")
    return f"there is no stock {symbol!r}: there are {listed or 'none yet'}"


def measures(report: Row, last: Row) -> Row:
    """What follows from a report and the last quote of its period; durations in seconds of event time.

    under_water_s: from the peak to the recovery, or to the last quote; 0 without a drawdown. recovery_s: from
    the trough to the recovery, None without one.
    """
    recovered = report["recovered_time"]
    end = recovered or last["date"]
    return {
        "drawdown_fraction": report["drawdown"] / report["peak"],
        "last_time": last["date"],
        "last_price": last["price"],
        "under_water_s": _seconds(report["peak_time"], end) if report["drawdown"] else 0.0,
        "recovery_s": None if recovered is None else _seconds(report["trough_time"], recovered),
    }


def _seconds(start: str, end: str) -> float:
    return (parse_time(end) - parse_time(start)) / SECOND_US


def series(quotes: Sequence[Row]) -> Row:
    """The curves of a period: times, prices, and the money below the highest price so far at each."""
    prices = [quote["price"] for quote in quotes]
    drawdowns = [peak - price for peak, price in zip(accumulate(prices, max), prices, strict=True)]
    kept = thinned(prices)
    return {
        "times": [quotes[i]["date"] for i in kept],
        "prices": [prices[i] for i in kept],
        "drawdowns": [drawdowns[i] for i in kept],
        "quotes": len(quotes),
    }


def thinned(prices: Sequence[float], points_max: int = POINTS_MAX) -> list[int]:
    """Indexes to draw, at most `points_max`: all, or first, last, highest and lowest of equal buckets."""
    if len(prices) <= points_max:
        return list(range(len(prices)))
    buckets = points_max // 4
    kept: set[int] = set()
    for bucket in range(buckets):
        part = range(bucket * len(prices) // buckets, (bucket + 1) * len(prices) // buckets)
        kept |= {part[0], part[-1], max(part, key=prices.__getitem__), min(part, key=prices.__getitem__)}
    return sorted(kept)
