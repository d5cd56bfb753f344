"""q18, find last bid: what did each user bid last in each auction?

SQL numbers the bids of a user and auction from the last one on and takes the first. A table with a key does
that by itself: only what is later in canonical order takes the place of a row, whatever comes in when.
"""

from geartrain import Flow, Table
from geartrain_examples.nexmark.sources import bids_of

flow = Flow("nexmark_q18")
bids_of(flow).sink("last_bids", Table("q18", key=("bidder", "auction")))
