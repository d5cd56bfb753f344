"""q0, pass through: every bid as it is. It shows what the path itself costs."""

from geartrain import Flow, Table
from geartrain_examples.nexmark.sources import bids_of

flow = Flow("nexmark_q0")
bids_of(flow).sink("bids_seen", Table("q0"))
