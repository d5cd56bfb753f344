"""A broadcast in many shards: what a record gives is there once, a dead letter too, also in other shards than
those in which it began to wait.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import force_setattr

from geartrain import Flow, Record, Table
from geartrain.planning import make_plan
from geartrain.testing import TestingSource
from geartrain_cloud.spark.compile import Query, hosted_query
from geartrain_simulation.fleet.stage_run import LogRow, StageRun
from tests.spark.stage_run import log_table, records_of

RECORDS = 40
"""They wait in few cells: those that come to a shard in one micro-batch share one."""


class Rate(Record):
    """Refuses to be 13 when it is read."""

    name: str
    rate: int

    def __post_init__(self) -> None:
        if self.rate == 13:
            raise ValueError("thirteen")


class Sale(Record):
    """So many of a thing."""

    name: str
    count: int


def priced(sale: Sale, rates: Mapping[str, Rate]) -> Sale:
    """Refuses every third one."""
    if sale.count % 3 == 0:
        raise ValueError(f"no {sale.count}")
    return Sale(sale.name, sale.count * rates[sale.name].rate)


def spoilt(rate: Rate) -> bool:
    """Makes one rate such that no shard can read it."""
    if rate.rate == 12:
        force_setattr(rate, "rate", 13)
    return True


def shop() -> Query:
    flow = Flow("shop")
    sold = flow.source("sold", TestingSource[Sale](), out=Sale)
    rates = flow.source("rates", TestingSource[Rate](), out=Rate).filter(spoilt, name="looked_at")
    sold.broadcast("priced", rates, priced, key="name").sink("prices", Table("prices"))
    return hosted_query(make_plan(flow.graph(), "cloud"))


def test_every_record_gives_once_what_it_gives_wherever_it_waited() -> None:
    query = shop()
    for labels in ((20,), (20, 21), tuple(range(20, 27))):
        run = StageRun(query, random.Random(len(labels)))
        sales = [(Sale(f"n{n % 2}", n), 10 + n, "sold", n) for n in range(RECORDS)]
        rates = [(Rate(f"n{n}", n + 2), 1, "rates", n) for n in range(2)]
        rows: list[LogRow] = [("rates", 1, log_table(rates, Rate)), ("sold", 2, log_table(sales, Sale))]
        assert not run.micro_batch(rows, 9)
        run.deal(labels, ["priced"])
        later = [(Rate("n0", 7), 10 + RECORDS // 2, "rates", 2)]
        found = run.micro_batch([("rates", 3, log_table(later, Rate))], 100)
        want = [
            (f"n{n % 2}", n * (3 if n % 2 else 2 if n < RECORDS // 2 else 7)) for n in range(RECORDS) if n % 3
        ]
        assert sorted(records_of(found["prices"])) == sorted(want)
        assert Counter(reasons(found)) == Counter(f"ValueError: no {n}" for n in range(0, RECORDS, 3))


def reasons(found: Mapping[str, Any]) -> list[str]:
    return [reason for _, _, reason, _ in records_of(found["_dead_letters"])]


@pytest.mark.parametrize("labels", [(20,), (20, 21, 22)])
def test_a_record_of_the_table_that_no_shard_can_read_is_one_letter(labels: tuple[int, ...]) -> None:
    run = StageRun(shop(), random.Random(1))
    run.deal(labels, ["priced"])
    rates = [(Rate(f"n{n}", n), 1, "rates", n) for n in range(11, 14) if n != 13]
    found = run.micro_batch([("rates", 1, log_table(rates, Rate))], 9)
    assert reasons(found) == ["the record cannot be read: ValueError: thirteen"]
