"""q11, user sessions: how many bids did each user make in each time of activity?

A session ends 10 seconds after the last bid in it.
"""

from datetime import timedelta

from geartrain import Flow, Record, Table, agg, session
from geartrain_examples.nexmark.sources import bids_of

GAP = timedelta(seconds=10)


class Activity(Record):
    """One session of a user."""

    bidder: int
    window_start: int
    window_end: int
    bids: int


flow = Flow("nexmark_q11")
sessions = (
    bids_of(flow).key_by("bidder").window(session(GAP)).aggregate("activity", out=Activity, bids=agg.count())
)
sessions.sink("sessions", Table("q11", key=("bidder", "window_start")))
