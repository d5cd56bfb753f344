"""The prices of the stock demo: the sample of the `bokeh_sampledata` package, or a file of the user's own.

Before the record's path. Only `gear demo` reads the package; it hands the agents a CSV file, so that nothing
heavy is installed on a device.

The sample holds the daily prices of AAPL, FB, GOOG, IBM and MSFT up to March 2013. They come from Quandl's
WIKI Prices, which their publisher declared to be in the public domain and free to redistribute; they are as
supplied, without any promise of accuracy. The demo uses the adjusted close, because a plain close shows each
split as a crash.
"""

from __future__ import annotations

import csv
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from geartrain.errors import SourceError
from geartrain_examples.demo import survey
from geartrain_examples.stocks.drawdown import Quote
from geartrain_examples.stocks.flow import PriceFile

SAMPLE_SYMBOLS = ("AAPL", "FB", "GOOG", "IBM", "MSFT")
COLUMNS = ("symbol", "date", "price")


def write_sample(path: Path) -> None:
    """Write the sample prices as CSV, mode 0600, rows by symbol and date.

    Raises `SourceError` when the package is not installed or the file cannot be written.
    """
    try:
        stocks: Any = import_module("bokeh_sampledata.stocks")
    except ModuleNotFoundError:
        raise SourceError(
            "the sample prices are not installed: run pip install bokeh_sampledata, "
            "or give a file of your own with --input"
        ) from None
    draft = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for symbol in SAMPLE_SYMBOLS:
                days = getattr(stocks, symbol)
                writer.writerows(
                    zip([symbol] * len(days["date"]), days["date"], days["adj_close"], strict=True)
                )
        draft.replace(path)
    except OSError as error:
        raise SourceError(f"the sample prices cannot be written to {path}: {error.strerror}") from None


def symbols_of(path: Path) -> list[str]:
    """The symbols in a price file, sorted by code point.

    Raises `SourceError`, naming the file, when it cannot be read, lacks one of the columns symbol, date and
    price, or has no row. Raises `NoRecordError` when none of its rows is a price.
    """
    symbols = {symbol for symbol, _ in survey(PriceFile(path=str(path)), Quote)} - {""}
    if not symbols:
        raise SourceError(
            f"file {path} has no price in it: below its first line it needs rows of {','.join(COLUMNS)}"
        )
    return sorted(symbols)
