"""q18, find last bid: what did each user bid last in each auction?

SQL numbers the bids of a user and auction from the last one back, and takes the first. A table with a key
does the same: only a bid that is later in canonical order replaces a row, whenever it comes in.
"""

from geartrain import Flow, Table
from geartrain_examples.nexmark.sources import bids_of

flow = Flow("nexmark_q18")
bids_of(flow).sink("last_bids", Table("q18", key=("bidder", "auction")))
