"""The tables of a platform do not depend on what its devices are called, or on where a source is read.

Real processes. Prices and sales have drawn times, many of them equal. One app has each source on a device,
the others read one of the two in the data centre. Names of devices stand before and after `cloud-1`.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.control.platform_client import client_of
from tests.proofs.test_platform import gear, until_ended
from tests.supervisor.test_up import platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ITEMS, TIMES, RECORDS = ("nut", "fig", "oat"), 40, 200
FACTOR, MODULUS = 31, 1_000_003
FLOW = f"""
from collections.abc import Mapping

from geartrain import Flow, Record, Table
from geartrain_devices.csv_replay import CsvReplay


class Change(Record):
    item: str
    cents: int


class Sold(Record):
    item: str
    number: int
    cents: int | None


def sold(sale: Change, prices: Mapping[str, Change]) -> Sold:
    return Sold(sale.item, -sale.cents, prices[sale.item].cents if sale.item in prices else None)


def extend(digest: int, change: Change) -> int:
    return (digest * {FACTOR} + change.cents) % {MODULUS}


def make(name: str, in_cloud: str) -> Flow:
    flow, streams = Flow(name), {{}}
    for step in ("prices", "a_sales"):
        reader = "all" if step == in_cloud else f"reads={{step}}"
        source = flow.source(step, CsvReplay(time_column="time"), out=Change, devices=reader)
        streams[step] = source.at("cloud") if step == in_cloud else source
    prices, sales = streams["prices"], streams["a_sales"]
    sales.broadcast("looked_up", prices, sold, key="item").sink("rows", Table("rows"))
    both = prices.merge("both", sales).key_by("item")
    both.fold("digest", int, extend).sink("digests", Table("digests"))
    return flow


devices = make("devices", "")
prices_above = make("prices_above", "prices")
sales_above = make("sales_above", "a_sales")
"""


class Line(NamedTuple):
    """A line of a file: seconds after midnight, item, and cents (a price) or the number of a sale below 0."""

    at_s: int
    item: str
    cents: int


def draw(rng: random.Random, sign: int) -> list[Line]:
    times = sorted(rng.randrange(TIMES) for _ in range(RECORDS))
    return [Line(at_s, rng.choice(ITEMS), sign * (number + 1)) for number, at_s in enumerate(times)]


def write(path: Path, lines: list[Line]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("time", "item", "cents"))
        writer.writerows((f"2026-01-01T00:00:{at_s:02}Z", item, cents) for at_s, item, cents in lines)


def sold_of(prices: list[Line], sales: list[Line]) -> Iterator[list[Any]]:
    """Each sale with the last price of its item until then, one of the same moment included."""
    for at_s, item, cents in sales:
        known = [price.cents for price in prices if price.item == item and price.at_s <= at_s]
        yield [item, -cents, known[-1] if known else None]


def digests_of(prices: list[Line], sales: list[Line]) -> Iterator[int]:
    """What the fold gives: of records with one time `a_sales` comes first, since its step does by name."""
    digests = dict.fromkeys(ITEMS, 0)
    for line in sorted([*sales, *prices], key=lambda line: line.at_s):
        digests[line.item] = (digests[line.item] * FACTOR + line.cents) % MODULUS
        yield digests[line.item]


def test_neither_names_of_devices_nor_the_place_of_a_source_shows_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(FLOW, encoding="utf-8")
    rng, state = random.Random(20), tmp_path / "state"
    prices, sales = draw(rng, 1), draw(rng, -1)
    write(tmp_path / "prices.csv", prices)
    write(tmp_path / "sales.csv", sales)
    given = [f"--set=prices.path={tmp_path / 'prices.csv'}", f"--set=a_sales.path={tmp_path / 'sales.csv'}"]
    readers = {"devices": ("a-1", "zoo"), "prices_above": (None, "b-1"), "sales_above": ("x-1", None)}
    with platform(state):
        client = client_of(state)
        for app, (for_prices, for_sales) in readers.items():
            for device, reads in ((for_prices, "prices"), (for_sales, "a_sales")):
                if device:
                    label = ["--label", f"reads={reads}", "--label", f"app={app}"]
                    gear(state, "device", "add", device, "--local", *label)
            gear(state, "submit", f"shop:{app}", "--devices", f"app={app}", "--no-wait", *given)
        for app in readers:
            until_ended(client, app)
            rows = client.get(f"/apps/{app}/tables/rows?limit=1000")["rows"]
            assert sorted(rows, key=lambda row: row[1]) == list(sold_of(prices, sales)), app
            digests = client.get(f"/apps/{app}/tables/digests?limit=1000")["rows"]
            assert sorted(row[0] for row in digests) == sorted(digests_of(prices, sales)), app
