"""E: 300 filters on one source at 500 records/s: what a device with many rules pays for each second of it.

The figure is how many times faster than the sensors a core is: 1 is a core that has no time left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geartrain import Flow, Record, Table
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US
from tests.bench import peers
from tests.bench.at_the_edge import Given, run_agent, run_runtime, spooled
from tests.bench.harness import Absent, Contender, Work, fsync_us, peer, rate, scaled

FILTERS = 300
A_SECOND = 500
SECONDS = scaled(20)
RECORDS = SECONDS * A_SECOND


class Reading(Record):
    """What a sensor sends."""

    sensor: int
    level: float


def rule(number: int) -> Callable[[Reading], bool]:
    """The filter of one rule: one sensor's level above a bound."""

    def above(reading: Reading) -> bool:
        return reading.sensor == number and reading.level > 90

    return above


RULES = [rule(number) for number in range(FILTERS)]


def readings() -> list[Reading]:
    """Of as many sensors as there are rules."""
    rng = random.Random(5)
    return [Reading(rng.randrange(FILTERS), rng.randrange(400) / 4) for _ in range(RECORDS)]


def by_hand(rows: Sequence[Reading]) -> list[Reading]:
    """The loop that one would write."""
    out = []
    for row in rows:
        for above in RULES:
            if above(row):
                out.append(row)  # noqa: PERF401 - a loop is compared
    return out


def _timed(rows: Sequence[Reading]) -> tuple[list[int], list[Any]]:
    return [SECOND_US] * len(rows), list(rows)


def plan_of(rows: Sequence[Reading]) -> Plan:
    """The same as a flow, all of it on the device; one table takes what passes any rule."""
    flow = Flow("rules")
    source = flow.source("readings", Given(rows=rows, make=_timed), out=Reading)
    first, *others = [source.filter(above, name=f"rule_{n}") for n, above in enumerate(RULES)]
    first.merge("passed", *others).at("edge").sink("out", Table("passed"))
    return make_plan(flow.graph(), "edge")


def _bytewax(rows: Sequence[Reading]) -> list[Reading]:
    def build(op: Any, stream: Any) -> Any:
        return op.merge("passed", *(op.filter(f"rule_{n}", stream, above) for n, above in enumerate(RULES)))

    return peers.through_bytewax(rows, build)


def _streamz(rows: Sequence[Reading]) -> list[Reading]:
    def build(stream: Any) -> Any:
        first, *others = [stream.filter(above) for above in RULES]
        return first.union(*others)

    return peers.through_streamz(rows, build)


def _reactivex(rows: Sequence[Reading]) -> list[Reading]:
    import reactivex
    from reactivex.subject import Subject

    out: list[Reading] = []
    subject: Subject[Reading] = Subject()
    passed = [subject.pipe(peers.rx("filter", above)) for above in RULES]
    reactivex.merge(*passed).subscribe(out.append)
    for row in rows:
        subject.on_next(row)
    return out


def test_many_filters(tmp_path: Path) -> None:
    rows = readings()
    plan = plan_of(rows)
    found: dict[str, Sequence[Any]] = {}
    spools: list[Path] = []

    def timed(name: str, run: Callable[[Sequence[Reading]], Sequence[Any]]) -> Contender:
        return lambda: rate(RECORDS, lambda: found.update({name: run(rows)})) * 1_000 / A_SECOND

    def agent() -> float:
        spools.append(tmp_path / f"agent-{len(spools)}")
        return rate(RECORDS, lambda: run_agent(plan, spools[-1])) * 1_000 / A_SECOND

    contenders: dict[str, Contender | Absent] = {
        "loop": timed("loop", by_hand),
        "runtime": timed("runtime", lambda rows: run_runtime(plan)["passed"]),
        "agent to its spool": agent,
        "bytewax": peer("bytewax", lambda: timed("bytewax", _bytewax)),
        "streamz": peer("streamz", lambda: timed("streamz", _streamz)),
        "reactivex": peer("reactivex", lambda: timed("reactivex", _reactivex)),
    }
    work = Work(
        "E: 300 filters",
        "x real time",
        contenders,
        ("loop", "bytewax"),
        versions=("bytewax", "streamz", "reactivex"),
    )
    work.notes.append(f"an fsync on this disk: {fsync_us(tmp_path):.0f} us")
    work.run()
    found["agent to its spool"] = spooled(plan, spools[-1])["passed"]
    expected = sorted(found["loop"], key=_place)
    assert expected
    for name, passed in found.items():
        assert sorted(passed, key=_place) == expected, f"{name} has other results than the loop"


def _place(reading: Reading) -> tuple[int, float]:
    return reading.sensor, reading.level
