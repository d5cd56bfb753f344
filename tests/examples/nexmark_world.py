"""The auction house for tests: its events, dealt to devices, and a flow's answer in the reference's form."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

import msgspec

from geartrain.declarations.sink import Table
from geartrain.graph.graph import Graph
from geartrain_examples.nexmark.records import Auction, Bid, Event, Person
from geartrain_examples.nexmark.sources import ROUND, event
from tests.examples.nexmark_reference import Rows
from tests.reference.two_tiers import World

KINDS: dict[str, type[Any]] = {"persons": Person, "auctions": Auction, "bids": Bid}


def graph_of(query: str) -> Graph:
    """The graph of a query."""
    graph: Graph = import_module(f"geartrain_examples.nexmark.{query}").flow.graph()
    return graph


@cache
def events(count: int, period_us: int, seed: int = 1) -> tuple[tuple[int, Event], ...]:
    """(event time, event) of the house, in the order of time."""
    return tuple(event(seed, number, period_us) for number in range(count))


def dealt(graph: Graph, house: Iterable[tuple[int, Event]], devices: int) -> World:
    """The house's events for the sources of `graph`, round by round to so many devices."""
    sources = [step.id for step in graph.sources()]
    world: dict[str, dict[str, dict[str, list[Any]]]] = {
        f"d{d}": {source: {f"d{d}": []} for source in sources} for d in range(devices)
    }
    for number, (time, one) in enumerate(house):
        device = f"d{number // ROUND % devices}"
        for source in sources:
            if isinstance(one, KINDS[source]):
                world[device][source][device].append((time, one))
    return World(world, dict.fromkeys(sources, 0))


def rows_of(graph: Graph, records: Iterable[Any]) -> Rows:
    """Records of the only sink, in canonical order, as sorted tuples; of q18 those that its table keeps."""
    (sink,) = graph.sinks()
    table: Any = sink.operator
    rows = list(records)
    if graph.name == "nexmark_q18":
        assert isinstance(table.table, Table)
        rows = list({tuple(getattr(row, name) for name in table.table.key): row for row in rows}.values())
    return sorted(msgspec.structs.astuple(row) for row in rows)
