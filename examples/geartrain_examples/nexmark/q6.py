"""q6, average selling price by seller: what did the last ten auctions of each seller bring on average?

With each auction that closes, its seller has a new average over this one and up to nine before it, in the
order in which they closed. (The SQL of some collections takes ten preceding rows and the current one, where
the paper says ten items.)
"""

from msgspec import field

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain_examples.nexmark.closing import Sold, closed_auctions

AUCTIONS = 10


class Average(Record):
    """What the last auctions of a seller brought on average, in cents."""

    seller: int
    price: float


class Last(State):
    """The prices of the last auctions."""

    prices: list[int] = field(default_factory=list)


class LastTen(Task[Sold, Average]):
    """Gives an average for every auction."""

    state = Last

    def on_next(self, value: Sold, ctx: Context[Average, Last]) -> None:
        """Let the oldest go when there are more than ten."""
        ctx.state.prices = prices = [*ctx.state.prices, value.price][-AUCTIONS:]
        ctx.emit(Average(value.seller, sum(prices) / len(prices)))


flow = Flow("nexmark_q6")
averages = closed_auctions(flow).key_by("seller").process("last_ten", LastTen())
averages.sink("averages", Table("q6", key=("seller",)))
