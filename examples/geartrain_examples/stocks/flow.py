"""Stocks: quotes, keyed by symbol, worst drawdown of each period, to a table."""

from math import inf

from geartrain import Flow, Table
from geartrain_devices.csv_replay import CsvReplay
from geartrain_examples.stocks.drawdown import Drawdown, Quote


class PriceFile(CsvReplay[Quote]):
    """A file of prices with the columns symbol, date and price, replayed in the order of its dates."""

    time_column: str = "date"
    partition_column: str = "symbol"

    def check(self, record: Quote) -> str | None:
        """Why a row is nobody's price."""
        if not record.symbol:
            return "the symbol is empty"
        return None if 0 < record.price < inf else f"the price {record.price} is not a finite number above 0"


flow = Flow("stocks")

quotes = flow.source("quotes", PriceFile(), out=Quote, partitioned_by="symbol")
by_symbol = quotes.key_by("symbol")
worst = by_symbol.process("drawdown", Drawdown(period="year"))
worst_ever = by_symbol.process("whole", Drawdown(period="all"))

quotes.sink("prices", Table("prices"))
worst.sink("worst", Table("drawdown", key=("symbol", "period")))
worst_ever.sink("worst_ever", Table("drawdown_all", key=("symbol", "period")))
