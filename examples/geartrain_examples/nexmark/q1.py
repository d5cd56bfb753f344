"""q1, currency conversion: what is each bid in euros, at a fixed rate?"""

from geartrain import Flow, Record, Table
from geartrain_examples.nexmark.records import Bid
from geartrain_examples.nexmark.sources import bids_of

EUROS = 0.908
"""For one dollar."""


class EuroBid(Record):
    """A bid whose price is in cents of a euro."""

    auction: int
    bidder: int
    price: float
    at_us: int
    extra: str


def in_euros(bid: Bid) -> EuroBid:
    """The bid with its price in the other currency."""
    return EuroBid(bid.auction, bid.bidder, EUROS * bid.price, bid.at_us, bid.extra)


flow = Flow("nexmark_q1")
bids_of(flow).map(in_euros).sink("euros", Table("q1"))
