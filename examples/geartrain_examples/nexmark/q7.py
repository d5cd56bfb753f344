"""q7, highest bid: which bids were the highest of the last 10 seconds, looked at every 10 seconds?

As in SQL: the highest price of each window, joined with the bids of the window that offered it, so that equal
bids are all there.
"""

from datetime import timedelta

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain_examples.nexmark.records import Bid
from geartrain_examples.nexmark.sources import bids_of

PERIOD = timedelta(seconds=10)


class Highest(Record):
    """The highest price of a window."""

    price: int
    window_end: int


class HighestBid(Record):
    """A bid that offered it."""

    auction: int
    bidder: int
    price: int
    at_us: int
    window_end: int


def whole_house(bid: Bid) -> bool:
    """One key for all."""
    return True


def highest_bid(bid: Bid, highest: Highest) -> HighestBid:
    """The bid, and the window in which it was the highest."""
    return HighestBid(bid.auction, bid.bidder, bid.price, bid.at_us, highest.window_end)


flow = Flow("nexmark_q7")
bids = bids_of(flow)
periods = bids.key_by(whole_house).window(tumbling(PERIOD))
highest = periods.aggregate("highest", out=Highest, price=agg.max("price")).key_by("price", name="to_highest")
best = bids.key_by("price", name="equal").join("best", highest, highest_bid, within=tumbling(PERIOD))
best.sink("highest_bids", Table("q7", key=("window_end", "auction", "bidder", "at_us")))
