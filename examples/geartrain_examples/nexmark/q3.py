"""q3, local item suggestion: who in Oregon, Idaho and California sells in category 10, and what?

SQL joins all auctions with all persons, whenever they came. Here both are forgotten after a year, because no
machine can hold a state that only grows.
"""

from datetime import timedelta

from geartrain import Flow, Record, Table
from geartrain_examples.nexmark.records import Auction, Person
from geartrain_examples.nexmark.sources import auctions_of, persons_of

CATEGORY = 10
STATES = ("OR", "ID", "CA")
APART = timedelta(days=365)
"""An auction and its seller may be so far from each other in time."""


class Suggestion(Record):
    """An auction, and who sells there."""

    auction: int
    name: str
    city: str
    state: str


def in_category(auction: Auction) -> bool:
    """Whether the item is of the kind that is looked for."""
    return auction.category == CATEGORY


def is_near(person: Person) -> bool:
    """Whether the person lives in one of the states."""
    return person.state in STATES


def suggestion(auction: Auction, seller: Person) -> Suggestion:
    """What is suggested."""
    return Suggestion(auction.id, seller.name, seller.city, seller.state)


flow = Flow("nexmark_q3")
for_sale = auctions_of(flow).filter(in_category).key_by("seller")
sellers = persons_of(flow).filter(is_near).key_by("id", name="sellers")
suggestions = for_sale.join("suggestions", sellers, suggestion, lower=-APART, upper=APART)
suggestions.sink("items", Table("q3", key=("auction",)))
