"""Which windows are left to Spark, and what of the log does not get that far."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from geartrain import (
    Flow,
    KeyedStream,
    Record,
    Table,
    agg,
    every_records,
    global_window,
    session,
    sliding,
    tumbling,
)
from geartrain.graph.graph import OVERTAKEN
from geartrain.planning import make_plan
from geartrain.planning.native_table import engine
from geartrain.records.event_time import END_OF_TIME
from geartrain.testing import TestingSource
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_cloud.spark.native import window_results, window_rows
from geartrain_simulation.fleet.stage_run import all_at, source_rows
from tests.spark.stage_run import log_table, records_of

SECOND = timedelta(seconds=1)


class Modern(TestingSource[Any]):
    since_1970 = True


class Sample(Record):
    """Plain."""

    key: str
    n: int
    x: float
    perhaps: str | None = None


class Dated(Record):
    """With a field of which not every value is a record's."""

    key: str
    n: int
    at: datetime


class Held(Record):
    """Of a window."""

    key: str
    v: int


class Real(Record):
    """Of a window."""

    v: float


def flow_of(
    verb: Callable[[KeyedStream[Any, Any]], Any], kind: Any = Sample, key: Any = "key", source: Any = None
) -> Flow:
    flow = Flow("windows")
    samples = flow.source("samples", source or Modern(), out=kind)
    made = verb(samples.key_by(key, name="by_key"))
    made.sink("out", Table("out"))
    return flow


def engine_of(flow: Flow) -> str:
    plan = make_plan(flow.graph(), "cloud")
    return engine(plan, plan.graph["held"])


def sums(keyed: KeyedStream[Any, Any]) -> Any:
    return keyed.window(tumbling(SECOND)).aggregate("held", out=Held, v=agg.sum("n"))


def test_windows_of_whole_numbers_are_native() -> None:
    assert engine_of(flow_of(sums)) == "native"
    counted = flow_of(
        lambda k: k.window(sliding(SECOND, SECOND / 4)).aggregate("held", out=Held, v=agg.count("x"))
    )
    assert engine_of(counted) == "native"
    assert [query.name for query in compile_queries(make_plan(counted.graph(), "cloud"))] == [
        "stateless",
        "native_held",
    ]


def test_a_key_that_devices_give_is_as_good() -> None:
    flow = flow_of(sums)
    plan = make_plan(flow.graph(), "by_key")
    assert [channel.id for channel in plan.channels if not channel.id.startswith("_")] == ["by_key"]
    assert engine(plan, plan.graph["held"]) == "native"
    assert list(compile_queries(plan)[-1].channels) == ["by_key"]


def test_what_spark_would_not_give_to_the_bit_is_embedded() -> None:
    def of(window: Any, out: Any = Held, **fields: Any) -> Flow:
        return flow_of(lambda keyed: keyed.window(window).aggregate("held", out=out, **fields))

    window = tumbling(SECOND)
    later = flow_of(lambda keyed: sums(keyed).key_by("key", name="again").reduce("most", max))
    embedded = {
        "a sum of floats": of(window, Real, v=agg.sum("x")),
        "a mean": of(window, Real, v=agg.mean("n")),
        "a floating extreme": of(window, Real, v=agg.max("x")),
        "a place in order": of(window, v=agg.last("n")),
        "a function": of(window, v=agg.sum(lambda sample: sample.n)),
        "early results": of(window, v=agg.sum("n"), early=every_records(2)),
        "a session": of(session(SECOND), v=agg.sum("n")),
        "the global window": of(global_window(), v=agg.sum("n")),
        "too many windows": of(sliding(SECOND, SECOND / 65), v=agg.sum("n")),
        "a key that may be missing": flow_of(sums, key="perhaps", kind=Sample),
        "a function of the key": flow_of(sums, key=lambda sample: sample.key),
        "a field that may not be readable": flow_of(sums, kind=Dated),
        "times before 1970": flow_of(sums, source=TestingSource()),
        "state below": later,
    }
    assert {why: engine_of(flow) for why, flow in embedded.items()} == dict.fromkeys(embedded, "embedded")


def query_of(flow: Flow) -> Query:
    return next(query for query in compile_queries(make_plan(flow.graph(), "cloud")) if query.native)


def through(query: Query, table: pa.Table, clock: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of windows, and those that passed them by as they leave for their sinks."""
    batches = list(window_rows(query)(source_rows([("samples", 1, table)], all_at(query, clock))))
    rows = [row for batch in batches for row in batch.to_pylist()]
    passing = pa.Table.from_batches(batches).filter(pc.is_valid(pa.Table.from_batches(batches)["sink"]))
    grouped = passing.select(["start", "key", "sink", "letter"]).append_column(
        "a0", pa.nulls(passing.num_rows, pa.decimal128(38, 0))
    )
    left = [row for batch in window_results(query)(iter(grouped.to_batches())) for row in batch.to_pylist()]
    sinks: dict[str, Any] = {}
    for row in left:
        sinks.setdefault(row["sink"], []).append(unpack(row["packed"]))
    return [row for row in rows if row["sink"] is None], {s: records_of(b) for s, b in sinks.items()}


def test_rows_that_no_window_takes_pass_by_them() -> None:
    query = query_of(flow_of(sums))
    records = [
        (Sample("a", 1, 0.5), 1_500_000, "s", 1),
        (Sample("b", 2, 0.5), -1, "s", 2),
        (Sample("c", 3, 0.5), 2**61 + 1, "s", 3),
        (Sample("d", 4, 0.5), -7, "s", 4),
        (Sample("e", 5, 0.5), END_OF_TIME + 5, "s", 5),
    ]
    overtaken = [False, False, False, True, False]
    windows, sinks = through(query, log_table(records, Sample, overtaken), clock=1_000_500)
    assert [(row["start"], row["v0"]) for row in windows] == [(1_000_000, 1), (END_OF_TIME, 5)]
    assert windows[1]["ends"].year == 2200  # it leaves at the end of time, not after it
    assert [(step, code, reason) for step, code, reason, _ in sorted(sinks["_dead_letters"])] == [
        (
            "held",
            "no_window",
            "its event time is more than 73,000 years from 1970, where no window can be told",
        ),
        ("samples", "before_1970", "its event time is before 1970, which its source rules out"),
    ]
    ((step, code, _, raw),) = sinks[OVERTAKEN]
    assert (step, code, b'"d"' in raw) == ("samples", "overtaken", True)


@pytest.mark.parametrize(("clock", "leaves_us"), [(-(2**63), 1_000), (999, 1_000), (1_000, 2_000)])
def test_what_passes_by_leaves_when_the_clock_moves_on(clock: int, leaves_us: int) -> None:
    query = query_of(flow_of(sums))
    (batch,) = window_rows(query)(source_rows([], all_at(query, clock)))
    (row,) = batch.to_pylist()
    assert (row["sink"], row["ends"].timestamp()) == ("", leaves_us / 1e6)
