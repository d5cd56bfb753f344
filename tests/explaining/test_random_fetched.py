"""Random flows under random cuts: the log fetched page by page and run again gives the reference's answer."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, seed, settings

from geartrain.adapters.system import SystemClock
from geartrain.graph.graph import OVERTAKEN
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_client.cli.fetching import META_FILE, RECORDS_FILE, FetchedMeta
from geartrain_cloud.cli.fetched import Fetched, FetchedRun
from geartrain_cloud.explaining import records
from geartrain_cloud.explaining.question import RecordsQuestion
from tests.explaining.two_tier_log import drawn_plans, log_of
from tests.reference.flows import Case, cases, split_cases
from tests.reference.interpreter import interpret
from tests.reference.rows import same_bits
from tests.reference.two_tiers import Parts, answer_of

FLOWS = 20


def test_what_was_fetched_gives_the_answer_of_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAGE_ROWS", 5)

    def check(case: Case) -> None:
        rng, graph = case.rng(), case.graph
        want = interpret(graph, case.world.inputs(), case.world.bounds_us)
        plan, own = drawn_plans(case, rng)
        base, *others = (",".join(sorted(one.cut.edge)) for one in own)
        with tempfile.TemporaryDirectory() as folder:
            log_of(plan, case.world, rng, Path(folder), own)
            fetch(Path(folder), Path(folder), graph.name, base, tuple(others))
            found = answer_of(graph, asyncio.run(run_of(Fetched(Path(folder)), case)))
        for sink in (one.id for one in graph.sinks() if one.id in plan.cloud):
            assert [row.order for row in found.sinks[sink]] == [row.order for row in want.sinks[sink]]
            pairs = zip(found.sinks[sink], want.sinks[sink], strict=True)
            assert all(same_bits(row.value, other.value) for row, other in pairs)
        assert (found.dead, found.late) == (want.dead, want.late)

    for strategy in (cases(), split_cases()):
        limits = settings(
            max_examples=FLOWS, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        seed(3)(limits(given(strategy)(check)))()


def fetch(log: Path, folder: Path, flow: str, base: str, others: tuple[str, ...]) -> None:
    """What the client writes, without REST."""
    after, upto, done = dict[str, int](), dict[str, int](), False
    schemas: dict[str, str] = {}
    page: dict[str, Any] = {}
    with (folder / RECORDS_FILE).open("w", encoding="utf-8") as file:
        while not done:
            question = RecordsQuestion(flow, str(log), START_OF_TIME, END_OF_TIME, after, upto)
            page = json.loads(msgspec.json.encode(records.page_of(question)))
            for record in page["records"]:
                file.write(json.dumps(record) + "\n")
            schemas |= page["schemas"]
            after, upto, done = page["after"], page["upto"], page["done"]
    span = (START_OF_TIME, END_OF_TIME, False, 0)
    ended = (page["clocks"], schemas, page["removed"])
    meta = FetchedMeta("app", flow, "", base, {}, "", *span, *ended, others)
    (folder / META_FILE).write_bytes(msgspec.json.encode(meta))


async def run_of(fetched: Fetched, case: Case) -> Parts:
    run = FetchedRun(fetched, case.graph, SystemClock())
    parts = [
        (stream, batch)
        async for output in run.outputs(7, lambda: True)
        for stream, batches in output.batches.items()
        for batch in batches
        if stream != OVERTAKEN
    ]
    assert run.ended
    return parts
