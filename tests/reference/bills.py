"""Records with a Decimal, an enum and a list in the random flows: what makes them, changes them, counts them
and keeps them.
"""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, ClassVar

from hypothesis import strategies as st

from geartrain import Context, Digits, Record, State, Task, agg
from geartrain.declarations.windows import Global, Sliding, Tumbling
from tests.reference.steps import KEYS, DrawStep, Known, Made, keyed

Money = Annotated[Decimal, Digits(9, 2)]


class Mode(Enum):
    """What a bill may be."""

    OPEN = 1
    PAID = 2
    LOST = 3


MODES = tuple(Mode)


class Bill(Record):
    """A record with fields that are no plain ones; any step can follow it."""

    key: str
    n: int
    x: float
    note: str | None
    price: Money
    mode: Mode
    fee: Money | None
    other: Mode | None
    shares: list[float]


class Balance(Record):
    """What bills come to."""

    key: str
    n: int
    x: float | None
    note: str | None
    price: Money | None
    mode: Mode | None
    top: list[Decimal] | None


def bill(r: Any) -> Bill:
    """Does not fit for a huge n, for n = 4 (no such mode) and for n = 6 (too many digits)."""
    mode: Any = MODES[r.n % 3] if r.n != 4 else "PAID"
    price = Decimal(r.n) / 4 if r.n != 6 else Decimal("0.125")
    fee = None if r.n % 3 == 0 else Decimal("-0.1") * (r.n % 5)
    return Bill(r.key, r.n, r.x, r.note, price, mode, fee, None if r.n % 2 else Mode.LOST, [r.x, r.n % 7])


def reprice(r: Bill) -> Bill:
    """Grows until it does not fit; raises for n = 5; an int where a Decimal belongs for n = 1."""
    if r.n == 5:
        raise ValueError("five")
    price: Any = 7 if r.n == 1 else r.price * 9 + (r.fee or 0)
    return Bill(r.key, r.n + 1, r.x, r.note, price, r.other or r.mode, r.fee, r.mode, r.shares[::-1])


class Purse(State):
    """What a key has paid."""

    paid: Decimal = Decimal(0)
    last: Mode | None = None


class Paying(Task[Bill, Bill]):
    """Keeps a Decimal and an enum; raises for n = 13 after it has changed them."""

    state: ClassVar[type[Purse]] = Purse

    def on_next(self, value: Bill, ctx: Context[Bill, Purse]) -> None:
        purse = ctx.state
        purse.paid += value.price
        if value.n == 13:
            raise ValueError("thirteen")
        former, purse.last = purse.last, value.mode
        note = f"{purse.paid} {former}"
        ctx.emit(Bill(value.key, value.n, value.x, note, purse.paid, value.mode, value.price, former, [1]))


_PRICES: list[Any] = [
    agg.sum("price"),
    agg.sum("fee"),
    agg.min("price"),
    agg.max("fee"),
    agg.first("price"),
    agg.last("fee"),
]
_NUMBERS: list[Any] = [
    *[
        agg.count("fee"),
        agg.count("other"),
        agg.count_distinct("price"),
        agg.count_distinct("mode"),
        agg.count_distinct("other", limit=1),
    ],
    *[agg.count_distinct("price", exact=False), agg.count_distinct("mode", exact=False)],
]
_SIZES: list[Any] = [
    agg.mean("price"),
    agg.variance("price"),
    agg.quantile("price", 0.5),
    agg.mean("fee"),
    agg.variance("fee"),
]
_MODES: list[Any] = [agg.first("mode"), agg.last("other"), agg.last("mode")]
_TOPS: list[Any] = [agg.top_n("price", 2), agg.top_n("price", 3, give="fee"), agg.top_n("fee", 1)]
_yes = st.booleans()
_WINDOWS: list[Any] = [None, Tumbling(10), Tumbling(7, 3), Sliding(10, 5), Global()]


def _bills(draw: st.DrawFn, known: Known) -> Made:
    """A stream of bills: one that is there, or a new one."""
    there = [made for made in known.streams if made.kind is Bill and made.timely]
    if len(there) > 0 and draw(_yes):
        return there[-1]
    above = known.pick(draw, timely=True)
    known.add(known.call(above, "map", bill, name=known.name("bill")), above)
    return known.streams[-1]


def _reprice(draw: st.DrawFn, known: Known) -> None:
    above = _bills(draw, known)
    known.add(known.call(above, "map", reprice, name=known.name("reprice")), above)


def _pay(draw: st.DrawFn, known: Known) -> None:
    above = _bills(draw, known)
    made = known.call(keyed(draw, known, above), "process", known.name("paying"), Paying())
    known.add(made, above)


def _add_up(draw: st.DrawFn, known: Known) -> None:
    above, key = _bills(draw, known), draw(KEYS)
    by, window = keyed(draw, known, above, key), draw(st.sampled_from(_WINDOWS))
    if window is not None:
        by = known.call(by, "window", window)
    chosen = {"n": _NUMBERS, "x": _SIZES, "price": _PRICES, "mode": _MODES, "top": _TOPS}
    fields = {name: draw(st.sampled_from(specs)) for name, specs in chosen.items()}
    fields["note"] = agg.last("note")
    if key != "key":
        fields["key"] = agg.first("key")
    made = known.call(by, "aggregate", known.name("bills"), out=Balance, **fields)
    known.add(made, above, joined=isinstance(window, Sliding))


STEPS: list[DrawStep] = [_reprice, _pay, _add_up]
"""Each as often as it shall be drawn."""
