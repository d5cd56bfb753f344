"""B: five trivial maps on whole numbers, which leaves what a record costs by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geartrain import Flow, Table
from geartrain.planning import Plan, make_plan
from tests.bench import peers
from tests.bench.at_the_edge import Given
from tests.bench.contest import RUNTIME, Contest
from tests.bench.harness import scaled

RECORDS = scaled(1_000_000, least=10_000)
STAGES = 5


def plus_one(value: int) -> int:
    """The trivial map."""
    return value + 1


def by_hand(rows: Sequence[int]) -> list[int]:
    """The loop that one would write, with the same five calls."""
    out = []
    for row in rows:
        out.append(plus_one(plus_one(plus_one(plus_one(plus_one(row))))))  # noqa: PERF401 - a loop is compared
    return out


def _timed(rows: Sequence[int]) -> tuple[list[int], list[Any]]:
    return list(rows), list(rows)


def plan_of(rows: Sequence[int]) -> Plan:
    """The same as a flow, all of it on the device."""
    flow = Flow("maps")
    stream: Any = flow.source("numbers", Given(rows=rows, make=_timed), out=int)
    for stage in range(STAGES):
        stream = stream.map(plus_one, name=f"plus_{stage}")
    stream.sink("out", Table("numbers"))
    return make_plan(flow.graph(), "edge")


def _bytewax(rows: Sequence[int]) -> list[int]:
    def build(op: Any, stream: Any) -> Any:
        for stage in range(STAGES):
            stream = op.map(f"plus_{stage}", stream, plus_one)
        return stream

    return peers.through_bytewax(rows, build)


def _streamz(rows: Sequence[int]) -> list[int]:
    def build(stream: Any) -> Any:
        for _ in range(STAGES):
            stream = stream.map(plus_one)
        return stream

    return peers.through_streamz(rows, build)


def _reactivex(rows: Sequence[int]) -> list[int]:
    return peers.through_reactivex(rows, *(peers.rx("map", plus_one) for _ in range(STAGES)))


def test_five_maps(tmp_path: Path) -> None:
    contest = Contest(
        "B: five maps",
        RECORDS,
        range(RECORDS),
        by_hand,
        plan_of,
        f"plus_{STAGES - 1}",
        {"bytewax": _bytewax, "streamz": _streamz, "reactivex": _reactivex},
    )
    results = contest.run(tmp_path, {RUNTIME: {"loop": 0.4, "bytewax": 1.0}}, None)
    assert results == list(range(STAGES, RECORDS + STAGES))
