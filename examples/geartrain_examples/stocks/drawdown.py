"""The worst drawdown of a stock in each period, quote by quote: the one keyed step of the stock flow.

It takes the quotes of a symbol in the order of their dates, and feeds the table of reports. Guarantees: after
every quote it reports the worst fall of the period so far, so that the last report of a period is its result.

A fall begins at a price strictly higher than any before in the period, which is its peak. It deepens at a
price strictly lower than any since, which is its trough. Whenever a fall begins or deepens, it is the
period's worst if its depth is at least that of the worst so far. Money is binary64, unrounded.
"""

from datetime import datetime
from typing import Literal

from geartrain import Context, Record, State, Task

LABEL_LENGTH = {"day": 10, "month": 7, "year": 4, "all": 0}
"""How much of a date such as 2008-10-10 is the label of its period; nothing of it where all is one period."""


class Quote(Record):
    """The price of a stock on a day; the price is a finite number above 0."""

    symbol: str
    date: datetime
    price: float


class Report(Record):
    """The worst fall of a stock's price in a period.

    recovered_time: when the price first reached the peak again after that trough, None if it did not or if
    the drawdown is 0; worst_fraction: the largest (peak - trough) / peak of any fall of the period, which may
    be another one than the worst in money; prices: how many there were.
    """

    symbol: str
    period: str
    drawdown: float
    peak: float
    peak_time: datetime
    trough: float
    trough_time: datetime
    recovered_time: datetime | None
    worst_fraction: float
    prices: int


class Fall(Record):
    """From a peak down to the lowest price since."""

    peak: float
    peak_time: datetime
    trough: float
    trough_time: datetime

    @property
    def depth(self) -> float:
        """In money."""
        return self.peak - self.trough


class Period(State):
    """What is kept of one stock: the running fall of the current period, and the worst so far."""

    label: str = ""
    prices: int = 0
    fall: Fall | None = None
    worst: Fall | None = None
    worst_fraction: float = 0.0
    recovered_time: datetime | None = None


class Drawdown(Task[Quote, Report]):
    """Report the worst fall of the period so far, after each quote; a new period forgets the old one."""

    period: Literal["day", "month", "year", "all"] = "year"
    state = Period

    def on_next(self, quote: Quote, ctx: Context[Report, Period]) -> None:
        """Take one quote; `quote.date` never decreases."""
        label = quote.date.isoformat()[: LABEL_LENGTH[self.period]] or "all"
        if ctx.state.label != label:
            ctx.state = Period(label)
        now = ctx.state
        now.prices += 1
        if now.worst and now.recovered_time is None and now.worst.trough < now.worst.peak <= quote.price:
            now.recovered_time = quote.date
        fall = _fall_after(now.fall, quote)
        worst = (
            fall
            if now.worst is None or (fall is not now.fall and fall.depth >= now.worst.depth)
            else now.worst
        )
        if worst is not now.worst:
            now.recovered_time = None
        now.fall, now.worst = fall, worst
        now.worst_fraction = max(now.worst_fraction, fall.depth / fall.peak)
        ctx.emit(_report(quote.symbol, now, worst))


def _fall_after(fall: Fall | None, quote: Quote) -> Fall:
    """The running fall once `quote` is known: a new one, a deeper one, or the same object."""
    if fall is None or quote.price > fall.peak:
        return Fall(quote.price, quote.date, quote.price, quote.date)
    if quote.price < fall.trough:
        return Fall(fall.peak, fall.peak_time, quote.price, quote.date)
    return fall


def _report(symbol: str, now: Period, worst: Fall) -> Report:
    return Report(
        symbol,
        now.label,
        worst.depth,
        worst.peak,
        worst.peak_time,
        worst.trough,
        worst.trough_time,
        now.recovered_time,
        now.worst_fraction,
        now.prices,
    )
