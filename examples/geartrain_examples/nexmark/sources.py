"""The sources of the auction house: a seeded generator, read as three sources that agree.

Of every 50 events one is a person, three are auctions and 46 are bids, as in the published generators. Every
second bid is for one hot auction, three of four come from one hot bidder, three of four auctions from one hot
seller. Two things are simpler here. No event names one that comes later, and an auction is open for 1 to 20
seconds, whatever the rate. Guarantees: an event is a pure function of (seed, number), and no two events have
the same time, so that any split can be read again from any place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, TypeVar

from geartrain import Flow, Source, SourceStream
from geartrain.records.event_time import parse_time
from geartrain.source import Batch, SourceError, Split
from geartrain_examples.nexmark.records import Auction, Bid, Event, Person

T = TypeVar("T", bound=Event)

PERSON, AUCTIONS, BIDS = range(1), range(1, 4), range(4, 50)
"""The places of each kind among the 50 events of a round."""
ROUND = 50
FIRST_ID = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
AUCTION_LONGEST = timedelta(seconds=20)
PEOPLE_ACTIVE, AUCTIONS_ACTIVE = 1_000, 100
"""How many of the newest may still do something."""
HOT_EVERY = 100
"""Of so many ids one is hot, while it is the newest such."""

STATES = ("CA", "ID", "MT", "NV", "OR", "UT")
CITIES = ("Astoria", "Butte", "Eureka", "Fresno", "Logan", "Moab", "Moscow", "Reno", "Salem")
FIRST_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Niklaus", "Radia")
LAST_NAMES = ("Ashby", "Brook", "Carver", "Dale", "Ellis", "Frost", "Grove", "Hale", "Iverson", "Judd")
CHANNELS = ("east", "north", "south", "west")
PADDING = "Nothing looks at this text: it is carried along, as most of any record is. " * 6
START_US = parse_time("2026-01-01T00:00:00Z")


def event(seed: int, number: int, period_us: int) -> tuple[int, Event]:
    """(event time, event) `number` (from 0) of the whole house, one each `period_us`."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - a simulation
    turn, place = divmod(number, ROUND)
    at_us = START_US + number * period_us
    if place in PERSON:
        return at_us, _person(chance, FIRST_ID + turn, at_us)
    newest = FIRST_ID + turn * len(AUCTIONS) + min(place, len(AUCTIONS)) - 1
    if place in AUCTIONS:
        return at_us, _auction(chance, newest, FIRST_ID + turn, at_us)
    return at_us, _bid(chance, newest, FIRST_ID + turn, at_us)


def _person(chance: random.Random, person: int, at_us: int) -> Person:
    name = f"{chance.choice(FIRST_NAMES)} {chance.choice(LAST_NAMES)}"
    email = f"{name.lower().replace(' ', '.')}@example.com"
    card = " ".join(f"{chance.randrange(10_000):04}" for _ in range(4))
    return Person(
        person, name, email, card, chance.choice(CITIES), chance.choice(STATES), at_us, _padding(chance, 100)
    )


def _auction(chance: random.Random, auction: int, newest_person: int, at_us: int) -> Auction:
    first, open_us = _price(chance), chance.randrange(10**6, AUCTION_LONGEST // timedelta(microseconds=1))
    return Auction(
        auction,
        f"item {chance.randrange(1_000)}",
        _padding(chance, 100),
        first,
        first + _price(chance),
        at_us,
        at_us + open_us,
        _hot(newest_person) if chance.random() < 0.75 else _recent(chance, newest_person, PEOPLE_ACTIVE),
        FIRST_CATEGORY + chance.randrange(CATEGORIES),
        _padding(chance, 300),
    )


def _bid(chance: random.Random, newest_auction: int, newest_person: int, at_us: int) -> Bid:
    hot = chance.random() < 0.5
    channel = chance.choice(CHANNELS) if chance.random() < 0.5 else f"channel-{chance.randrange(10_000)}"
    return Bid(
        _hot(newest_auction) if hot else _recent(chance, newest_auction, AUCTIONS_ACTIVE),
        _hot(newest_person) if chance.random() < 0.75 else _recent(chance, newest_person, PEOPLE_ACTIVE),
        _price(chance),
        channel,
        f"https://example.com/{channel.lower()}/item.htm",
        at_us,
        _padding(chance, 20),
    )


def _hot(newest: int) -> int:
    return max(FIRST_ID, newest // HOT_EVERY * HOT_EVERY)


def _recent(chance: random.Random, newest: int, active: int) -> int:
    return chance.randint(max(FIRST_ID, newest - active + 1), newest)


def _price(chance: random.Random) -> int:
    return round(10 ** (chance.random() * 6) * 100)


def _padding(chance: random.Random, length: int) -> str:
    return PADDING[: length + chance.randrange(-length // 5, length // 5 + 1)]


class _Events(Source[T]):
    """Events of one kind. events: how many of all kinds there are; period_us: between two of them.

    share, shares: a device reads the rounds whose number modulo `shares` is `share`.
    """

    bounded: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    since_1970 = True
    places: ClassVar[range]

    seed: int = 1
    events: int = 100_000
    period_us: int = 100
    share: int = 0
    shares: int = 1

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        if not 0 <= self.share < self.shares or self.events < 0 or self.period_us < 1:
            raise SourceError(
                f"source {step}: share must be 0 to shares - 1, events 0 or more and period_us 1 or more"
            )
        return [_Split(device, self)]


class Persons(_Events[Person]):
    """Those who register."""

    places = PERSON


class Auctions(_Events[Auction]):
    """What is put up for sale."""

    places = AUCTIONS


class Bids(_Events[Bid]):
    """What is offered."""

    places = BIDS


class _Split:
    """The events of one kind in the rounds of one device."""

    out_of_orderness_us = 0

    def __init__(self, name: str, source: _Events[T]) -> None:
        self.name = name
        self._source = source

    def _number(self, position: int) -> int:
        """The number in the house of what is at `position` here."""
        turn, place = divmod(position, len(self._source.places))
        return (turn * self._source.shares + self._source.share) * ROUND + self._source.places[place]

    async def read(self, position: int, limit: int) -> Batch:
        """Up to `limit` events from `position` on."""
        found = [
            event(self._source.seed, number, self._source.period_us)
            for number in map(self._number, range(position, position + limit))
            if number < self._source.events
        ]
        end = position + len(found)
        times, values = [time for time, _ in found], [value for _, value in found]
        return Batch(values, times, range(position, end), end, ended=self._number(end) >= self._source.events)

    async def close(self) -> None:
        """Nothing to release."""


def persons_of(flow: Flow) -> SourceStream[Person]:
    """The source `persons`."""
    return flow.source("persons", Persons(), out=Person)


def auctions_of(flow: Flow) -> SourceStream[Auction]:
    """The source `auctions`."""
    return flow.source("auctions", Auctions(), out=Auction)


def bids_of(flow: Flow) -> SourceStream[Bid]:
    """The source `bids`."""
    return flow.source("bids", Bids(), out=Bid)
