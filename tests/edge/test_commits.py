"""When commits are made and when the spool is trimmed: seldom, and nothing waits for it that need not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from geartrain import Flow, Source, Table
from geartrain.planning import Plan, make_plan
from geartrain.ports import SpoolCommit
from geartrain.records.event_time import SECOND_US
from geartrain.source import Batch, Split
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import QUICK, agent_of, run
from tests.edge.flows import Reading
from tests.edge.network import MemoryNet, NaiveIngest

RECORDS = 300


@dataclass
class _Few:
    """Gives `RECORDS` readings, a few at a read: those of the milliseconds that have passed, or one."""

    by_the_clock: bool
    reads: int = 0
    began_s: float = 0.0
    name: str = "d1"
    out_of_orderness_us: int = 0

    async def read(self, position: int, limit: int) -> Batch:
        self.reads += 1
        self.began_s = self.began_s or time.monotonic()
        born = int((time.monotonic() - self.began_s) * 1_000) if self.by_the_clock else position + 1
        numbers = range(position, max(position, min(born, position + limit, RECORDS)))
        readings = [Reading("s", float(n)) for n in numbers]
        return Batch(
            readings, [SECOND_US + n for n in numbers], numbers, numbers.stop, ended=numbers.stop == RECORDS
        )

    async def close(self) -> None:
        """Nothing to release."""


class FewAtATime(Source[Reading]):
    """One split of a few at a time."""

    bounded: ClassVar[bool] = True
    pausable: ClassVar[bool] = True
    split: Any = None

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        return [self.split]


class _Counting(SqliteSpool):
    """A spool that counts its trims, and notes when rows were committed."""

    trims = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.filled_s: list[float] = []

    async def commit(self, change: SpoolCommit) -> None:
        if any(batch.count for batch in change.batches):
            self.filled_s.append(time.monotonic())
        await super().commit(change)

    async def trim(self, through_seq: int) -> None:
        self.trims += 1
        await super().trim(through_seq)


def _plan(split: _Few) -> Plan:
    flow = Flow("fleet")
    flow.source("readings", FewAtATime(split=split), out=Reading).sink("out", Table("readings"))
    return make_plan(flow.graph(), "edge")


def _batches(tmp_path: Path, split: _Few, settings: AgentSettings) -> list[int]:
    """How many rows each batch with rows had."""
    plan = _plan(split)
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest), settings).run())
    assert [row[2:4] for row in ingest.rows["readings"]] == [("readings/d1", n) for n in range(RECORDS)]
    return [count for count in ingest.counts if count]


def test_what_the_clock_brings_row_by_row_is_committed_together(tmp_path: Path) -> None:
    settings = AgentSettings("d1", linger_ms=50, interval_ms=60_000, uplink=QUICK)
    split = _Few(by_the_clock=True)
    counts = _batches(tmp_path, split, settings)
    assert 2 <= len(counts) <= 2 + RECORDS // 50  # as often as lingering lets it, whatever the interval
    assert split.reads < RECORDS


def test_a_source_that_gives_one_row_a_read_is_not_waited_for(tmp_path: Path) -> None:
    settings = AgentSettings("d1", linger_ms=50, interval_ms=60_000, records_max=100, uplink=QUICK)
    counts = _batches(tmp_path, _Few(by_the_clock=False), settings)
    assert len(counts) <= RECORDS // 100 + 2
    assert max(counts) == 100


def test_commits_lie_as_far_apart_as_durability_says(tmp_path: Path) -> None:
    settings = AgentSettings("d1", linger_ms=0, interval_ms=1, durability_ms=20, uplink=QUICK)
    plan = _plan(_Few(by_the_clock=True))
    ingest, store = NaiveIngest(plan), _Counting(tmp_path / "spool.sqlite")
    assert run(agent_of(plan, store, MemoryNet(ingest), settings).run())
    assert [row[2:4] for row in ingest.rows["readings"]] == [("readings/d1", n) for n in range(RECORDS)]
    # The welcome of a fresh epoch waits for nothing, nor does the end, after which nothing can come.
    gaps = [after - before for before, after in pairwise(store.filled_s)][1:-1]
    assert len(gaps) >= 2
    assert all(gap >= 0.02 for gap in gaps)
    assert store.trims <= len(store.filled_s) + 3


def test_a_full_commit_waits_for_no_durability(tmp_path: Path) -> None:
    settings = AgentSettings("d1", durability_ms=60_000, records_max=50, uplink=QUICK)
    began_s = time.monotonic()
    counts = _batches(tmp_path, _Few(by_the_clock=False), settings)
    assert max(counts) == 50
    assert sum(counts) == RECORDS
    assert time.monotonic() - began_s < 30


def test_the_spool_is_trimmed_seldom_and_is_empty_at_the_end(tmp_path: Path) -> None:
    settings = AgentSettings("d1", records_max=3, uplink=replace(QUICK, window=2, trim_ms=300))
    plan = _plan(_Few(by_the_clock=False))
    ingest, store = NaiveIngest(plan), _Counting(tmp_path / "spool.sqlite")
    began_s = time.monotonic()
    agent = agent_of(plan, store, MemoryNet(ingest), settings)
    assert run(agent.run())
    assert ingest.seq >= RECORDS // 3
    assert store.trims <= (time.monotonic() - began_s) / 0.3 + 1
    assert agent.status().acked_seq == agent.status().spooled_seq == ingest.seq
