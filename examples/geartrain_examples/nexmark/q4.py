"""q4, average price for a category: what do the auctions of each category bring, up to now?

With each auction that closes, its category has a new average over all that closed before it; the table keeps
the last one.
"""

from geartrain import Flow, Record, Table, agg
from geartrain_examples.nexmark.closing import closed_auctions


class Average(Record):
    """What the auctions of a category brought on average, in cents."""

    category: int
    price: float


flow = Flow("nexmark_q4")
by_category = closed_auctions(flow).key_by("category")
by_category.aggregate("average", out=Average, price=agg.mean("price")).sink(
    "averages", Table("q4", key=("category",))
)
