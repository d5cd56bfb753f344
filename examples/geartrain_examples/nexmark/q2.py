"""q2, selection: the bids for some of the auctions, here those whose id can be divided by 123."""

from geartrain import Flow, Record, Table
from geartrain_examples.nexmark.records import Bid
from geartrain_examples.nexmark.sources import bids_of

EVERY = 123


class Offer(Record):
    """What was offered for an auction."""

    auction: int
    price: int


def is_selected(bid: Bid) -> bool:
    """Whether the bid is for one of the auctions."""
    return bid.auction % EVERY == 0


def offer(bid: Bid) -> Offer:
    """The two fields asked for."""
    return Offer(bid.auction, bid.price)


flow = Flow("nexmark_q2")
bids_of(flow).filter(is_selected).map(offer).sink("offers", Table("q2"))
