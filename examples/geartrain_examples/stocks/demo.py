"""The stock demo: its options, the settings of its devices, its page, and the table at the end.

`gear demo stocks` finds it through the entry point `stocks` of the group `geartrain.demos`. It is plain
data and functions, and starts nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from geartrain.planning import Plan
from geartrain_examples.demo import Rows, Settings, Setup, Summary, deal, list_not_utf8, set_up
from geartrain_examples.stocks.data import symbols_of, write_sample
from geartrain_examples.stocks.page import OUTPUT_TABLE, StockPage


class StockOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `gear demo stocks` can be told besides the options of every demo."""

    input: Annotated[
        Path | None,
        Meta(
            description="Prices: a CSV file (.gz too) of symbol,date,price. Default the sample.",
            extra={"metavar": "FILE"},
        ),
    ] = None
    period: Annotated[
        Literal["day", "month", "year", "all"],
        Meta(description="The period of the output.", extra={"metavar": "day|month|year|all"}),
    ] = "year"


class StockDemo:
    """Daily prices, dealt by symbol to devices; the result is the table of drawdowns."""

    about = "Worst drawdown of stocks, on real prices, from agents through MQTT and Spark to a page."
    examples = (
        "gear demo stocks",
        "gear demo stocks --cut cloud --period month --no-page --output drawdown.json",
        "gear demo stocks --input prices.csv.gz --devices 3",
        "gear demo stocks --state run1        (and once more, to resume)",
    )
    options = StockOptions
    part = "symbol"
    devices = 5
    tables = (OUTPUT_TABLE,)
    page_while_running = False
    moves, throttled_devices, throttled_speed = "", 0, "max"

    def throttled(self, options: StockOptions) -> StockOptions:
        """None of its steps moves."""
        return options

    def flow(self, options: StockOptions) -> str:
        """Its flow, as `module:name`."""
        return "geartrain_examples.stocks.flow:flow"

    def beside(self, folder: Path, options: StockOptions) -> dict[str, list[str]]:
        """Nothing else runs."""
        return {}

    def set_up(self, folder: Path, options: StockOptions, devices: int) -> Setup:
        """Find the prices and deal their symbols to devices.

        Writes the sample to `folder` where the user names no file. Raises `SourceError`.
        """
        path = options.input or folder / "input.csv"
        if options.input is None:
            write_sample(path)
        parts = deal(symbols_of(path), devices)

        def sources(symbols: Sequence[str], first: bool) -> Settings:
            # The rows that name no symbol go to the first device, so that each is refused once.
            prices = {"path": str(path.absolute()), "select": list(symbols), "others": first}
            return {"quotes": prices}

        steps = {"drawdown": {"period": options.period}}
        return set_up({"input": path}, parts, steps, sources, paced=["quotes"], said=list_not_utf8([path]))

    def page(self, plan: Plan, drawing: str, options: StockOptions) -> StockPage:
        """Its page."""
        return StockPage()

    def summary(self, rows: Rows) -> Summary:
        """The worst drawdown of each stock over all its prices."""
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
