"""Offline for days: a bounded spool, an ordered drain, and an urgent flow of the same device beside it."""

from __future__ import annotations

import sqlite3
import statistics
from contextlib import closing

from geartrain.adapters.toml_text import to_toml
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from tests.process.oracle import Account, read_log
from tests.process.programs import status_of
from tests.process.registry import scenario
from tests.process.world import COMMIT, UPLINK, ScenarioError, World, rows_of, set_gate

DAYS = 7
MINUTES_A_DAY = 1_440
LINK_BYTES_PER_S = 20_000
URGENT_MS_MAX = 60_000
"""The bound of the test; the figure is in the notes."""


def _two_flows(world: World, pulse_gate: str) -> None:
    """Give d1 both flows: numbers in a bounded spool, pulses first."""
    agent = world.agents["d1"]
    numbers = {
        "flow": "tests.process.flows:flow",
        "cut": "edge",
        "spool": {"bytes_max": 20_000 if world.small else 120_000, "policy": "drop_oldest"},
        "sources": {"numbers": world.source_of("d1") | {"step_ms": 60_000, "filling": 24}},
    }
    pulses = {
        "flow": "tests.process.flows:pulses",
        "urgent": True,
        "sources": {"pulses": {"records": 1 << 30, "every_ms": 100, "gate": pulse_gate}},
    }
    base = {
        "device": "d1",
        "state": str(world.state_of("d1")),
        "broker": "BROKER",
        "commit": COMMIT,
        "uplink": UPLINK,
    }
    text = to_toml(base)
    for flow in (numbers, pulses):
        text += to_toml({"flows": flow}).replace("[flows]", "[[flows]]", 1)
    agent.config.write_text(text, encoding="utf-8")


def latencies_ms(world: World) -> list[tuple[int, float]]:
    """(number, milliseconds from its making to the segment that holds it) of every pulse in the log."""
    reader = LogReader(world.log)
    with closing(sqlite3.connect(f"{(world.log / 'ledger.sqlite').as_uri()}?mode=ro", uri=True)) as ledger:
        made = dict(ledger.execute("SELECT name, made_us FROM segments").fetchall())
    found = []
    for entry in reader.entries("pulses", "pulses", 0, reader.positions("pulses").get("pulses", 0)):
        if entry.kind is EntryKind.ROWS:
            rows = reader.table(entry).to_pylist()
            found += [(row["number"], (made[entry.segment] - row["made_us"]) / 1_000) for row in rows]
    return found


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50": round(statistics.median(ordered), 1),
        "p95": round(ordered[int(len(ordered) * 0.95)], 1),
        "max": round(ordered[-1], 1),
    }


@scenario("offline for days, with an urgent flow")
async def offline(world: World) -> Account:
    """What the spool could not hold is declared to the record; alarms do not wait behind the backlog."""
    world.records = 600 if world.small else DAYS * MINUTES_A_DAY
    world.flows = ("numbers", "pulses")
    pulse_gate = world.folder / "pulse-gate"
    set_gate(pulse_gate, 0)
    world.prepare("d1", gate=60)
    _two_flows(world, str(pulse_gate))
    await world.launch()
    await world.until("the first hour came", lambda: world.logged() >= rows_of(60))
    set_gate(pulse_gate, 50)
    await world.until("so did the first urgent ones", lambda: world.logged() >= rows_of(60) + 50)
    world.near.refuse()
    world.open_gate(world.records)
    numbers = world.state_of("d1") / "numbers" / "status.json"
    pulses = world.state_of("d1") / "pulses" / "status.json"
    await world.until("days have passed", lambda: status_of(numbers).get("records_read") == world.records)
    world.notes["spool_bytes"] = status_of(numbers).get("spool_bytes")
    world.near.throttle(LINK_BYTES_PER_S)
    world.near.refuse(on=False)
    world.healed()
    first = 50
    while status_of(numbers).get("acked_seq", 0) < status_of(numbers).get("spooled_seq", 1):
        first += 5  # a few at a time, as long as the backlog drains
        set_gate(pulse_gate, first)
        await world.until(
            "urgent records were taken",
            lambda upto=first: status_of(pulses).get("records_read", 0) >= upto,  # type: ignore[misc]
        )
    world.near.heal()
    await world.until("the urgent flow is through", lambda: _all_acked(pulses, first))
    world.agents["d1"].terminate()
    await world.end_ingest()
    return _judged(world, first)


def _all_acked(pulses: object, upto: int) -> bool:
    found = status_of(pulses)  # type: ignore[arg-type]
    return found.get("records_read") == upto and found.get("acked_seq") == found.get("spooled_seq")


def _judged(world: World, pulses: int) -> Account:
    spool = status_of(world.state_of("d1") / "numbers" / "status.json")["counters"]
    found = world.account_of({k.removeprefix("rows."): v for k, v in spool.items() if k.startswith("rows.")})
    if not found.balances or found.duplicated or found.reordered or not found.declared_dropped:
        raise ScenarioError(f"what was declared is not what is missing: {found}")
    seen = read_log(world.log, "pulses")["pulses"]
    if seen.rows != pulses or seen.delivered != pulses or seen.reordered:
        raise ScenarioError(
            f"of {pulses} urgent records {seen.rows} came, {seen.delivered} of them different"
        )
    times = latencies_ms(world)
    world.notes["urgent_ms_before"] = _summary([ms for number, ms in times if number < 50])
    world.notes["urgent_ms_during_drain"] = _summary([ms for number, ms in times if number >= 50])
    if world.notes["urgent_ms_during_drain"]["max"] > URGENT_MS_MAX:
        raise ScenarioError(f"urgent records waited behind the backlog: {world.notes}")
    return found
