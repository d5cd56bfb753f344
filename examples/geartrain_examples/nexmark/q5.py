"""q5, hot items: which auctions had the most bids in the last 10 seconds, looked at every 2 seconds?

As in SQL: count the bids of each auction and window, find the highest count of each window, and join the two.
So auctions with equally many bids are all there. All counts of a window have its end as their time, which
puts them into one tumbling window of 2 seconds.
"""

from datetime import timedelta

from geartrain import Flow, Record, Table, agg, sliding, tumbling
from geartrain_examples.nexmark.sources import bids_of

SIZE, EVERY = timedelta(seconds=10), timedelta(seconds=2)


class Bids(Record):
    """How many bids an auction had in a window."""

    auction: int
    window_end: int
    bids: int


class Most(Record):
    """The most bids that an auction had in a window."""

    bids: int


def whole_house(bids: Bids) -> bool:
    """One key for all."""
    return True


def hottest(bids: Bids, most: Most) -> Bids:
    """An auction that nobody had more bids than."""
    return bids


flow = Flow("nexmark_q5")
counts = (
    bids_of(flow)
    .key_by("auction")
    .window(sliding(SIZE, EVERY))
    .aggregate("counts", out=Bids, bids=agg.count())
)
most = counts.key_by(whole_house).window(tumbling(EVERY)).aggregate("most", out=Most, bids=agg.max("bids"))
hot = counts.key_by("bids", name="equal").join(
    "hot", most.key_by("bids", name="to_most"), hottest, within=tumbling(EVERY)
)
hot.sink("items", Table("q5", key=("window_end", "auction")))
