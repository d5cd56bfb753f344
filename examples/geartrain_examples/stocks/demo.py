"""The stock demo as its launcher needs it: input, devices, options, and what to show at the end.

Found through the entry point `stocks` of the group `geartrain.demos`, so that the data centre's packages
import no example. It holds plain data and functions only, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geartrain_examples.stocks.data import symbols_of, write_sample
from geartrain_examples.stocks.page import OUTPUT_TABLE, Rows, StockPage

Options = dict[str, dict[str, Any]]


class StockDemo:
    """Daily prices, dealt by symbol to devices; the result is the table of drawdowns."""

    name = "stocks"
    flow = "geartrain_examples.stocks.flow:flow"
    table = OUTPUT_TABLE
    page = StockPage()
    devices_default = 5

    def write_sample(self, path: Path) -> None:
        """Write the sample input; raises `SourceError`."""
        write_sample(path)

    def parts(self, path: Path) -> list[str]:
        """What can be dealt to devices: the symbols of an input file; raises `SourceError`."""
        return symbols_of(path)

    def source_options(self, path: Path, parts: Sequence[str], *, others: bool, speed: str) -> Options:
        """The options of the sources on a device that replays `parts` of the file.

        others: this device also takes the rows that name no symbol, so that each is refused once.
        """
        return {"quotes": {"path": str(path), "select": list(parts), "others": others, "speed": speed}}

    def step_options(self, period: str) -> Options:
        """The options of the steps: the period of the table of drawdowns."""
        return {"drawdown": {"period": period}}

    def summary(self, rows: Rows) -> tuple[str, list[str], list[list[str]]]:
        """Title, column heads and rows of the table to print: the worst drawdown of each stock ever."""
        heads = ["stock", "fall", "in %", "peak", "trough", "recovered"]
        found = sorted(rows("drawdown_all", {}), key=lambda row: str(row["symbol"]))
        return "Worst drawdown of each stock", heads, [_line(row) for row in found]


def _line(row: Mapping[str, Any]) -> list[str]:
    if row["drawdown"] == 0:
        return [row["symbol"], "none", "", "", "", ""]
    return [
        row["symbol"],
        f"{row['drawdown']:,.2f}",
        f"{100 * row['drawdown'] / row['peak']:.1f}",
        f"{row['peak']:,.2f}, {_day(row['peak_time'])}",
        f"{row['trough']:,.2f}, {_day(row['trough_time'])}",
        "not yet" if row["recovered_time"] is None else _day(row["recovered_time"]),
    ]


def _day(time: str) -> str:
    return time.removesuffix("T00:00:00Z")


DEMO = StockDemo()
