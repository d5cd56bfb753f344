"""Closed auctions and their winning bids: the first part of q4 and q6.

A bid counts from the opening of its auction to its end, both included. The highest wins; of equal bids, the
first. The winner is known when the auction is over, one microsecond after its end.
"""

from __future__ import annotations

from datetime import timedelta

from geartrain import Context, Flow, Record, State, Stream, Task
from geartrain_examples.nexmark.records import Auction, Bid
from geartrain_examples.nexmark.sources import AUCTION_LONGEST, auctions_of, bids_of


class Offered(Record):
    """A bid with what must be known of its auction."""

    auction: int
    seller: int
    category: int
    expires_us: int
    price: int
    at_us: int


class Sold(Record):
    """An auction that is over, and what was paid."""

    auction: int
    seller: int
    category: int
    price: int


class Highest(State):
    """The highest offer so far."""

    offer: Offered | None = None


class Closing(Task[Offered, Sold]):
    """Keeps the highest offer of an auction until it is over."""

    state = Highest

    def on_next(self, value: Offered, ctx: Context[Sold, Highest]) -> None:
        """Keep the better one; the first one of an auction sets the timer of its end."""
        best = ctx.state.offer
        if best is None:
            ctx.notify_at(value.expires_us + 1)
        if best is None or value.price > best.price:
            ctx.state.offer = value

    def on_notify(self, time: int, ctx: Context[Sold, Highest]) -> None:
        """The auction is over."""
        best = ctx.state.offer
        if best is not None:
            ctx.emit(Sold(best.auction, best.seller, best.category, best.price))


def offered(auction: Auction, bid: Bid) -> Offered:
    """A bid beside its auction."""
    return Offered(auction.id, auction.seller, auction.category, auction.expires_us, bid.price, bid.at_us)


def in_time(offer: Offered) -> bool:
    """Whether the auction was not over yet."""
    return offer.at_us <= offer.expires_us


def closed_auctions(flow: Flow) -> Stream[Sold]:
    """The auctions that somebody bid for, each when it is over."""
    auctions = auctions_of(flow).key_by("id")
    bids = bids_of(flow).key_by("auction")
    offers = auctions.join("offered", bids, offered, lower=timedelta(), upper=AUCTION_LONGEST)
    return offers.filter(in_time).key_by("auction", name="by_auction").process("closing", Closing())
