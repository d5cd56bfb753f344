"""The NEXMark queries in plain Python over lists, by their definitions; nothing of the flows but the records.

Each takes all events in the order of time and gives the rows of its answer as tuples, sorted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from geartrain_examples.nexmark.records import Auction, Bid, Event, Person

S = 1_000_000
Rows = list[tuple[Any, ...]]


def bids_of(events: Iterable[Event]) -> list[Bid]:
    return [e for e in events if isinstance(e, Bid)]


def auctions_of(events: Iterable[Event]) -> list[Auction]:
    return [e for e in events if isinstance(e, Auction)]


def persons_of(events: Iterable[Event]) -> list[Person]:
    return [e for e in events if isinstance(e, Person)]


def q0(events: Sequence[Event]) -> Rows:
    return sorted((b.auction, b.bidder, b.price, b.channel, b.url, b.at_us, b.extra) for b in bids_of(events))


def q1(events: Sequence[Event]) -> Rows:
    return sorted((b.auction, b.bidder, b.price * 0.908, b.at_us, b.extra) for b in bids_of(events))


def q2(events: Sequence[Event]) -> Rows:
    return sorted((b.auction, b.price) for b in bids_of(events) if b.auction % 123 == 0)


def q3(events: Sequence[Event]) -> Rows:
    near = {p.id: p for p in persons_of(events) if p.state in {"OR", "ID", "CA"}}
    local = [(a.id, near[a.seller]) for a in auctions_of(events) if a.category == 10 and a.seller in near]
    return sorted((auction, p.name, p.city, p.state) for auction, p in local)


def _closed(events: Sequence[Event]) -> list[tuple[Auction, int]]:
    """(auction, highest price of the bids between its opening and its end), in the order of their ends."""
    offered = defaultdict(list)
    for bid in bids_of(events):
        offered[bid.auction].append(bid)
    found = []
    for auction in sorted(auctions_of(events), key=lambda a: (a.expires_us, a.id)):
        prices = [b.price for b in offered[auction.id] if auction.at_us <= b.at_us <= auction.expires_us]
        if prices:
            found.append((auction, max(prices)))
    return found


def q4(events: Sequence[Event]) -> Rows:
    prices: dict[int, list[int]] = defaultdict(list)
    rows = []
    for auction, price in _closed(events):
        prices[auction.category].append(price)
        rows.append((auction.category, sum(prices[auction.category]) / len(prices[auction.category])))
    return sorted(rows)


def q5(events: Sequence[Event]) -> Rows:
    rows = []
    bids = bids_of(events)
    last = bids[-1].at_us // (2 * S) * 2 * S
    for end in range(bids[0].at_us // (2 * S) * 2 * S + 2 * S, last + 10 * S + 1, 2 * S):
        counted = Counter(b.auction for b in bids if end - 10 * S <= b.at_us < end)
        rows += [(auction, end, n) for auction, n in counted.items() if n == max(counted.values())]
    return sorted(rows)


def q6(events: Sequence[Event]) -> Rows:
    prices: dict[int, list[int]] = defaultdict(list)
    rows = []
    for auction, price in _closed(events):
        prices[auction.seller].append(price)
        last = prices[auction.seller][-10:]
        rows.append((auction.seller, sum(last) / len(last)))
    return sorted(rows)


def q7(events: Sequence[Event]) -> Rows:
    highest: dict[int, int] = {}
    for bid in bids_of(events):
        period = bid.at_us // (10 * S)
        highest[period] = max(bid.price, highest.get(period, 0))
    return sorted(
        (b.auction, b.bidder, b.price, b.at_us, (b.at_us // (10 * S) + 1) * 10 * S)
        for b in bids_of(events)
        if b.price == highest[b.at_us // (10 * S)]
    )


def q8(events: Sequence[Event]) -> Rows:
    sold = {(a.seller, a.at_us // (10 * S)) for a in auctions_of(events)}
    return sorted(
        (p.id, p.name, p.at_us // (10 * S) * 10 * S)
        for p in persons_of(events)
        if (p.id, p.at_us // (10 * S)) in sold
    )


def q11(events: Sequence[Event]) -> Rows:
    times = defaultdict(list)
    for bid in bids_of(events):
        times[bid.bidder].append(bid.at_us)
    rows = []
    for bidder, at in times.items():
        first, before, n = at[0], at[0], 0
        for time in at:
            if time >= before + 10 * S:
                rows.append((bidder, first, before + 10 * S, n))
                first, n = time, 0
            before, n = time, n + 1
        rows.append((bidder, first, before + 10 * S, n))
    return sorted(rows)


def q18(events: Sequence[Event]) -> Rows:
    last = {(b.bidder, b.auction): b for b in bids_of(events)}
    return q0(list(last.values()))


QUERIES: dict[str, Callable[[Sequence[Event]], Rows]] = {
    "q0": q0,
    "q1": q1,
    "q2": q2,
    "q3": q3,
    "q4": q4,
    "q5": q5,
    "q6": q6,
    "q7": q7,
    "q8": q8,
    "q11": q11,
    "q18": q18,
}
