"""q8, monitor new users: who registered and put something up for sale within the same 10 seconds?

Windows are those of the clock, as in SQL: who registers in the last second of one window and sells in the
first second of the next is not found. A seller is reported once for each window, however many items there
were.
"""

from datetime import timedelta

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain_examples.nexmark.records import Person
from geartrain_examples.nexmark.sources import auctions_of, persons_of

PERIOD = timedelta(seconds=10)


class Seller(Record):
    """Somebody who put so many items up for sale in a window."""

    seller: int
    window_start: int
    auctions: int


class NewSeller(Record):
    """Somebody who registered in that window, too."""

    id: int
    name: str
    window_start: int


def new_seller(person: Person, seller: Seller) -> NewSeller:
    """The person, and the window."""
    return NewSeller(person.id, person.name, seller.window_start)


flow = Flow("nexmark_q8")
selling = auctions_of(flow).key_by("seller").window(tumbling(PERIOD))
sellers = selling.aggregate("sellers", out=Seller, auctions=agg.count()).key_by("seller", name="seller")
registered = persons_of(flow).key_by("id")
new_sellers = registered.join("new_sellers", sellers, new_seller, within=tumbling(PERIOD))
new_sellers.sink("users", Table("q8", key=("id", "window_start")))
