"""The stock demo as its launcher needs it: input, devices, options, and what to show at the end.

Found through the entry point `stocks` of the group `geartrain.demos`, so that the data centre's packages
import no example. It holds plain data and functions only, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from geartrain.planning import Plan
from geartrain_examples.stocks.data import symbols_of, write_sample
from geartrain_examples.stocks.page import OUTPUT_TABLE, Rows, StockPage

Options = dict[str, dict[str, Any]]
Inputs = Mapping[str, Path]
Settings = Mapping[str, str]
Survey = tuple[list[str], dict[str, str], list[str]]


class StockDemo:
    """Daily prices, dealt by symbol to devices; the result is the table of drawdowns."""

    name = "stocks"
    flow = "geartrain_examples.stocks.flow:flow"
    tables = (OUTPUT_TABLE,)
    settings: Settings = MappingProxyType({"period": "year"})
    page = StockPage()
    devices_default = 5
    edge_is_strict = True
    page_while_running = False

    def flow_of(self, settings: Settings) -> str:
        """Its flow, as `module:name`."""
        return self.flow

    def beside(self, folder: Path, settings: Settings) -> dict[str, list[str]]:
        """Nothing."""
        return {}

    def own_inputs(self, folder: Path, given: Inputs, settings: Settings) -> dict[str, Path]:
        """The sample prices, unless there are others; raises `SourceError`."""
        if "input" in given:
            return {}
        path = folder / "input.csv"
        write_sample(path)
        return {"input": path}

    def survey(self, inputs: Inputs, settings: Settings) -> Survey:
        """What can be dealt to devices: the symbols of the input file; raises `SourceError`."""
        return symbols_of(inputs["input"]), {}, []

    def source_options(
        self, inputs: Inputs, settings: Settings, parts: Sequence[str], *, first: bool, speed: str
    ) -> Options:
        """The options of the sources on a device that replays `parts` of the file.

        first: this device also takes the rows that name no symbol, so that each is refused once.
        """
        path = str(inputs["input"])
        return {"quotes": {"path": path, "select": list(parts), "others": first, "speed": speed}}

    def step_options(self, settings: Settings) -> Options:
        """The options of the steps: the period of the table of drawdowns."""
        return {"drawdown": {"period": settings["period"]}}

    def page_of(self, plan: Plan, settings: Settings) -> StockPage:
        """Its page."""
        return self.page

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
