"""F: each right record with the left ones of its key within 10 s before it, of two sources in order of time.

Neither bytewax (which joins by key or by window, not by interval) nor reactivex knows such a join by itself:
bytewax runs the loop's state as a stateful step of the merged streams; streamz and reactivex get the loop.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from geartrain import Flow, Record, Table
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US
from tests.bench import peers
from tests.bench.at_the_edge import Given
from tests.bench.contest import Contest
from tests.bench.harness import scaled

RECORDS = scaled(200_000, least=2_000)
KEYS = 200
REACH_US = 10 * SECOND_US


class Door(Record):
    """A door opens, or closes: `left` tells which."""

    door: str
    time: int
    left: bool


class Stay(Record):
    """From an opening to a closing."""

    door: str
    opened: int
    closed: int


def doors() -> list[Door]:
    """In order of time, each time once; of each door about two a second, every other an opening."""
    rng = random.Random(6)
    return [
        Door(f"door-{rng.randrange(KEYS):03d}", SECOND_US + n * 20_000, n % 2 == 0) for n in range(RECORDS)
    ]


class Pairs:
    """The hand-written join: the openings of each door that a closing may still reach."""

    def __init__(self) -> None:
        self._open: dict[str, deque[int]] = {}

    def take(self, row: Door) -> list[Stay]:
        """The pairs of one record."""
        waiting = self._open.get(row.door)
        if waiting is None:
            waiting = self._open[row.door] = deque()
        while waiting and waiting[0] < row.time - REACH_US:
            waiting.popleft()
        if row.left:
            waiting.append(row.time)
            return []
        return [Stay(row.door, opened, row.time) for opened in waiting]


def by_hand(rows: Sequence[Door]) -> list[Stay]:
    """The loop that one would write over both, merged by time."""
    pairs, out = Pairs(), list[Stay]()
    for row in rows:
        out += pairs.take(row)
    return out


def _timed(rows: Sequence[Door]) -> tuple[list[int], list[Any]]:
    return [row.time for row in rows], list(rows)


def stay(opened: Door, closed: Door) -> Stay:
    """A pair."""
    return Stay(opened.door, opened.time, closed.time)


def plan_of(rows: Sequence[Door]) -> Plan:
    """The same as a flow of two sources, all of it on the device."""
    flow = Flow("doors")
    sides = [
        flow.source(
            name,
            Given(rows=[r for r in rows if r.left is left], make=_timed),
            out=Door,
            partitioned_by="door",
        )
        for name, left in (("opened", True), ("closed", False))
    ]
    left, right = sides[0].key_by("door", name="door"), sides[1].key_by("door", name="same_door")
    reach = timedelta(microseconds=REACH_US)
    stays = left.join("stays", right, stay, lower=timedelta(), upper=reach, keeps=["door"])
    stays.sink("out", Table("stays"))
    return make_plan(flow.graph(), "edge")


def _bytewax(rows: Sequence[Door]) -> list[Stay]:
    def mapped(state: Pairs | None, row: Door) -> tuple[Pairs, list[Stay]]:
        pairs = state or Pairs()
        return pairs, pairs.take(row)

    def build(op: Any, stream: Any) -> Any:
        keyed = op.key_on("key", stream, lambda row: row.door)
        return op.flat_map("pairs", op.key_rm("out_key", op.stateful_map("join", keyed, mapped)), list)

    return peers.through_bytewax(rows, build)


def _streamz(rows: Sequence[Door]) -> list[Stay]:
    pairs = Pairs()
    return peers.through_streamz(rows, lambda stream: stream.map(pairs.take).flatten())


def _reactivex(rows: Sequence[Door]) -> list[Stay]:
    pairs = Pairs()
    return peers.through_reactivex(rows, peers.rx("flat_map", pairs.take))


def test_interval_join(tmp_path: Path) -> None:
    contest = Contest(
        "F: interval join",
        RECORDS,
        doors(),
        by_hand,
        plan_of,
        "stays",
        {"bytewax": _bytewax, "streamz": _streamz, "reactivex": _reactivex},
        frozenset({"reactivex"}),
    )
    stays = contest.run(tmp_path, {}, lambda pair: (pair.closed, pair.opened))
    assert stays
