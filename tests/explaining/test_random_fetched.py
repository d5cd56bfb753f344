"""Random flows under random cuts: the log fetched page by page and run again gives the reference's answer."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain import Record
from geartrain.adapters.system import SystemClock
from geartrain.errors import LedgerError
from geartrain.graph.graph import OVERTAKEN
from geartrain.records.batch import DeadLetter
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.schema import ColumnBatch, derive
from geartrain_client.cli.fetching import META_FILE, RECORDS_FILE, FetchedMeta
from geartrain_cloud.cli.fetched import Fetched, FetchedRows, FetchedRun
from geartrain_cloud.explaining import records
from geartrain_cloud.explaining.question import RecordsQuestion
from geartrain_cloud.log.arrow import from_table, to_table
from geartrain_cloud.log.segment import SCHEMA_KEY
from geartrain_cloud.spark.upgrading import Present
from tests.explaining.two_tier_log import drawn_plans, log_of
from tests.reference.flows import Case, cases, check_drawn, split_cases
from tests.reference.interpreter import interpret
from tests.reference.records import Brief, Reading
from tests.reference.rows import same_bits
from tests.reference.two_tiers import Parts, answer_of

FLOWS = 20
LINE = {
    "time": 1,
    "split": "s",
    "number": 1,
    "path": "",
    "values": {"key": "a", "n": 1, "x": 0.5, "note": None},
}


def test_what_was_fetched_gives_the_answer_of_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAGE_ROWS", 5)

    former, several = random.Random(1), list[str]()

    def check(case: Case) -> None:
        rng, graph = case.rng(), case.graph
        want = interpret(graph, case.world.inputs(), case.world.bounds_us)
        plan, own = drawn_plans(case, rng)
        base, *others = (",".join(sorted(one.cut.edge)) for one in own)
        with tempfile.TemporaryDirectory() as folder:
            log_of(plan, case.world, rng, Path(folder), own, former)
            fetch(Path(folder), Path(folder), graph.name, base, tuple(others))
            fetched = Fetched(Path(folder))
            several.extend(one for one, schemas in fetched.meta.types.items() if len(schemas) > 1)
            found = answer_of(graph, asyncio.run(run_of(fetched, case)))
        for sink in (one.id for one in graph.sinks() if one.id in plan.cloud):
            assert [row.order for row in found.sinks[sink]] == [row.order for row in want.sinks[sink]]
            pairs = zip(found.sinks[sink], want.sinks[sink], strict=True)
            assert all(same_bits(row.value, other.value) for row, other in pairs)
        assert (found.dead, found.late) == (want.dead, want.late)

    for strategy in (cases(), split_cases()):
        check_drawn(check, strategy, 3, FLOWS)
    assert several


def test_a_record_of_which_none_can_be_made_becomes_the_letter_that_the_platform_writes() -> None:
    former = derive(Brief)
    rests = [msgspec.msgpack.encode((1, float("nan"), None)), b"\xc1", msgspec.msgpack.encode((3, 0.5, "c"))]
    rows = ColumnBatch([["a", "b", "c"], rests], [1, 2, 3], ["s"] * 3, [1, 2, 3], [b"", b"p", b""])
    table = to_table(former, rows, ["d"] * 3, [1] * 3, [False] * 3, [False] * 3)
    table = table.replace_schema_metadata({SCHEMA_KEY: former.to_json().encode()})
    lines = [
        {
            "time": n,
            "split": "s",
            "number": n,
            "path": path.hex(),
            "values": {"name": name, "rest": rest.hex()},
        }
        for n, name, path, rest in zip((1, 2, 3), "abc", (b"", b"p", b""), rests, strict=True)
    ]
    want: list[DeadLetter] = []
    found: list[DeadLetter] = []
    read, kept = Present("in", Reading).table(table, "in", want.append)
    columns, ours = FetchedRows("in", Reading).columns(lines, former.to_json(), found.append)
    assert (list(ours), found) == (list(kept), want)
    assert list(ours) == [0, 2]
    assert len(found) == 1
    assert repr(columns.fields) == repr(from_table(derive(Reading), read).fields)


def test_records_of_a_type_that_was_given_up_become_the_letters_that_the_platform_writes() -> None:
    class Lost(Record):
        name: str
        weight: int

    former = derive(Lost)
    rows = ColumnBatch([["a", "b"], [7, 8]], [1, 2], ["s"] * 2, [1, 2], [b"", b"p"])
    table = to_table(former, rows, ["d"] * 2, [1] * 2, [False] * 2, [False] * 2)
    table = table.replace_schema_metadata({SCHEMA_KEY: former.to_json().encode()})
    values = [{"name": "a", "weight": 7}, {"name": "b", "weight": 8}]
    lines = [
        {"time": n, "split": "s", "number": n, "path": path.hex(), "values": one}
        for n, path, one in zip((1, 2), (b"", b"p"), values, strict=True)
    ]
    want: list[DeadLetter] = []
    found: list[DeadLetter] = []
    _, kept = Present("in", Reading, [former.layout]).table(table, "in", want.append)
    _, ours = FetchedRows("in", Reading, [former.layout]).columns(lines, former.to_json(), found.append)
    assert (list(ours), list(kept), found) == ([], [], want)
    assert [(one.origin.number, one.event_time) for one in want] == [(1, 1), (2, 2)]
    assert all("given up by an update with --dead-letter-old: Lost" in one.reason for one in want)
    assert json.loads(want[0].raw) == values[0]
    with pytest.raises(LedgerError):
        Present("in", Reading).table(table, "in", want.append)


def fetch(log: Path, folder: Path, flow: str, base: str, others: tuple[str, ...]) -> None:
    """What the client writes, without REST."""
    after, upto, done = dict[str, int](), dict[str, int](), False
    types: dict[str, dict[str, str]] = {}
    page: dict[str, Any] = {}
    with (folder / RECORDS_FILE).open("w", encoding="utf-8") as file:
        while not done:
            question = RecordsQuestion(flow, str(log), START_OF_TIME, END_OF_TIME, after, upto)
            page = json.loads(msgspec.json.encode(records.page_of(question)))
            for record in page["records"]:
                file.write(json.dumps(record) + "\n")
            for channel, schemas in page["types"].items():
                types.setdefault(channel, {}).update(schemas)
            after, upto, done = page["after"], page["upto"], page["done"]
    span = (START_OF_TIME, END_OF_TIME, False, 0)
    ended = (page["clocks"], page["removed"], types)
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
