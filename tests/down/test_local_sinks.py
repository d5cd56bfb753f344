"""Sinks on a device for what never leaves it: committed first, then handed over, each once in a file."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest

from geartrain import Digits, Flow, Record
from geartrain.planning import Plan, make_plan
from geartrain.sinks import JsonLinesFile
from geartrain.testing import TestingSource
from geartrain_edge.spool.spool import SqliteSpool
from tests.down.broker import MemoryBroker
from tests.down.test_way_down import until_killed
from tests.down.world import Reading, Valve, World, command
from tests.edge.agents import MortalSpool, run
from tests.edge.network import NaiveIngest

ROWS = 150


def local_plan(sink: JsonLinesFile | Valve) -> Plan:
    """Readings become commands on the device, and end there."""
    flow = Flow("loop")
    items = [(number, Reading("d1", float(number))) for number in range(ROWS)]
    readings = flow.source("readings", TestingSource(items=items), out=Reading)
    readings.map(command).sink("valve", sink)
    return make_plan(flow.graph(), "edge")


def world_of(folder: Path, sink: JsonLinesFile | Valve) -> tuple[World, MemoryBroker]:
    plan = local_plan(sink)
    return World(folder, plan), MemoryBroker({"d1": NaiveIngest(plan)})


async def finish(world: World, broker: MemoryBroker, store: SqliteSpool | MortalSpool) -> None:
    assert await world.agent(store, broker).run()


@pytest.mark.parametrize("after", [False, True])
def test_a_file_has_each_row_once_wherever_the_agent_dies(tmp_path: Path, after: bool) -> None:
    for writes in (1, 2, 3, 5, 8, 13, 21, 34):
        folder = tmp_path / str(writes)
        world, broker = world_of(folder, JsonLinesFile("valve"))
        spool = folder / "spool.sqlite"
        run(until_killed(finish(world, broker, MortalSpool(spool, writes, after=after))))
        run(finish(world, broker, SqliteSpool(spool)))
        assert world.numbers() == list(range(ROWS)), writes
        assert len({line["_id"] for line in world.lines()}) == ROWS


class Kind(Enum):
    """Of an enum the name counts, so that its values may be anything."""

    PAIR = (1, 2)
    OBJECT = object()


class Odd(Record):
    number: int
    kind: Kind
    real: float
    price: Annotated[Decimal, Digits(18, 9)]
    raw: bytes
    at: datetime
    any: Any


def test_a_line_has_every_value_as_tables_show_it(tmp_path: Path) -> None:
    first = Odd(
        0, Kind.PAIR, math.inf, Decimal("-0.000000001"), b"\x00\xff", datetime(1, 1, 1, tzinfo=UTC),
        {(1, 2): math.nan, None: b"\xff", 1: {"\0": 2**63}},
    )  # fmt: skip
    second = Odd(
        1, Kind.OBJECT, -0.0, Decimal(0), b"", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), "\ufffe"
    )
    flow = Flow("loop")
    readings = flow.source("readings", TestingSource(items=[(0, first), (1, second)]), out=Odd)
    readings.sink("valve", JsonLinesFile("valve"))
    plan = make_plan(flow.graph(), "edge")
    world = World(tmp_path, plan)
    run(finish(world, MemoryBroker({"d1": NaiveIngest(plan)}), SqliteSpool(tmp_path / "spool.sqlite")))
    lines = [{name: line[name] for name in Odd.__struct_fields__} for line in world.lines()]
    assert lines == [
        {
            "number": 0, "kind": "PAIR", "real": None, "price": "-0.000000001", "raw": "00ff",
            "at": "0001-01-01T00:00:00Z", "any": {"(1, 2)": None, "None": "ff", "1": {"\0": 2**63}},
        },
        {
            "number": 1, "kind": "OBJECT", "real": 0.0, "price": "0.000000000", "raw": "",
            "at": "9999-12-31T23:59:59.999999Z", "any": "\ufffe",
        },
    ]  # fmt: skip
    assert math.copysign(1, lines[1]["real"]) == -1


def test_an_actuator_gets_each_row_in_order_with_an_identity_of_its_own(tmp_path: Path) -> None:
    valve = Valve("valve")
    world, broker = world_of(tmp_path, valve)
    run(finish(world, broker, SqliteSpool(tmp_path / "spool.sqlite")))
    assert [number for _, number in valve.calls] == list(range(ROWS))
    assert len({at for at, _ in valve.calls}) == ROWS


def test_an_actuator_that_was_cut_off_gets_the_same_identities_again(tmp_path: Path) -> None:
    valve = Valve("valve")
    world, broker = world_of(tmp_path, valve)
    spool = tmp_path / "spool.sqlite"
    for writes in (6, 9, 14):
        run(until_killed(finish(world, broker, MortalSpool(spool, writes, after=True))))
    run(finish(world, broker, SqliteSpool(spool)))
    assert sorted({number for _, number in valve.calls}) == list(range(ROWS))
    by_number: dict[int, set[str]] = {}
    for at, number in valve.calls:
        by_number.setdefault(number, set()).add(at)
    assert all(len(identities) == 1 for identities in by_number.values())
