"""Records that cannot be read or written inside Spark are dead letters of one query, and stop nothing."""

from __future__ import annotations

import random
from typing import Any

from geartrain import Flow, Record, Table, Task
from geartrain.declarations.task import Context
from geartrain.planning import make_plan
from geartrain.records.letters import Letter
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.testing import TestingSource
from geartrain_cloud.spark.compile import hosted_query
from geartrain_simulation.fleet.stage_run import StageRun
from tests.spark.stage_run import columns_table, records_of


class Fussy(Record):
    """Refuses some numbers when it is made: a device of another version wrote them."""

    key: str
    n: int
    tags: list[int]

    def __post_init__(self) -> None:
        if self.n == 13:
            raise ValueError("thirteen")


def tamper(record: Fussy) -> bool:
    """Puts into the record what its type does not hold."""
    if record.n == 5:
        record.tags.append(object())  # type: ignore[arg-type]
    return True


class Passing(Task[Fussy, Fussy]):
    """Emits what it gets."""

    state = int

    def on_next(self, value: Fussy, ctx: Context[Fussy, int]) -> None:
        ctx.state += 1
        ctx.emit(Fussy(value.key, value.n + 100, value.tags))


def run_query(flow: Flow, numbers: list[int]) -> dict[str, list[tuple[Any, ...]]]:
    """What the query gives of records with `numbers`, in order."""
    codec = RowCodec(Fussy)
    columns = [list(c) for c in codec.to_columns([Fussy(f"k{n}", 0, [n]) for n in numbers])]
    columns[1] = list(numbers)
    rows = ColumnBatch(
        columns, list(range(len(numbers))), ["split"] * len(numbers), list(range(len(numbers)))
    )
    table = columns_table(rows, Fussy)
    found: dict[str, list[tuple[Any, ...]]] = {}
    run = StageRun(hosted_query(make_plan(flow.graph(), "cloud")), random.Random(1))
    for sink, batches in run.micro_batch([("fussy", 1, table)], 100).items():
        if sink == "_dead_letters":
            values = [v for b in batches for v in RowCodec(Letter).from_columns(b.fields)]
            found[sink] = [(v.step, v.code, v.reason, v.raw) for v in values]
        else:
            found[sink] = records_of(batches)
    return found


def fussy_flow() -> tuple[Flow, Any]:
    flow = Flow("fussy")
    source: TestingSource[Fussy] = TestingSource()
    return flow, flow.source("fussy", source, out=Fussy, partitioned_by="key")


def test_a_record_that_cannot_be_read_is_one_letter_of_its_channel() -> None:
    flow, records = fussy_flow()
    records.filter(bool, name="any").sink("plain", Table("plain"))
    records.key_by("key").process("passing", Passing()).sink("kept", Table("kept"))
    found = run_query(flow, [1, 13, 2, 13, 3])
    assert sorted(n for _, n, _ in found["plain"]) == [1, 2, 3]
    assert sorted(n for _, n, _ in found["kept"]) == [101, 102, 103]
    reason = "the record cannot be read: ValueError: thirteen"
    assert [letter[:3] for letter in found["_dead_letters"]] == [("fussy", "unreadable", reason)] * 2
    assert b'"n":13' in found["_dead_letters"][0][3]


def test_a_record_that_a_function_has_spoilt_is_a_letter_of_the_step_that_handed_it_on() -> None:
    flow, records = fussy_flow()
    spoilt = records.filter(tamper)
    spoilt.sink("plain", Table("plain"))
    spoilt.key_by("key", name="by_key").process("passing", Passing()).sink("kept", Table("kept"))
    found = run_query(flow, [4, 5, 6])
    assert sorted(n for _, n, _ in found["plain"]) == [4, 6]
    assert sorted(n for _, n, _ in found["kept"]) == [104, 106]
    assert sorted(letter[0] for letter in found["_dead_letters"]) == ["by_key", "plain"]
    assert {letter[1] for letter in found["_dead_letters"]} == {"unwritable"}
