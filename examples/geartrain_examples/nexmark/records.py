"""The records of the auction house: persons, auctions and bids.

They are born at the three sources, in the order of their event times. A record also carries its time as
`at_us` (microseconds since 1970 UTC), for queries that compare the times of two records. Prices are cents.
"""

from __future__ import annotations

from geartrain import Record


class Person(Record):
    """Somebody registers."""

    id: int
    name: str
    email: str
    credit_card: str
    city: str
    state: str
    at_us: int
    extra: str


class Auction(Record):
    """Somebody puts an item up for sale, until `expires_us`, that moment included."""

    id: int
    item: str
    description: str
    initial_bid: int
    reserve: int
    at_us: int
    expires_us: int
    seller: int
    category: int
    extra: str


class Bid(Record):
    """Somebody offers a price in an auction, which may be over."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    at_us: int
    extra: str


Event = Person | Auction | Bid
"""What may happen."""
