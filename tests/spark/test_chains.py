"""The steps of both queries without Spark: exact for any micro-batches, and loud when order breaks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import Row

from geartrain.errors import LedgerError
from geartrain.planning import make_plan
from geartrain.records.event_time import START_OF_TIME
from geartrain.records.letters import Letter
from geartrain.records.record import Record
from geartrain.schema import derive
from geartrain_cloud.log.segment import SCHEMA_KEY
from geartrain_cloud.spark.chains import routed_rows
from geartrain_cloud.spark.clocks import encode_clocks
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_cloud.spark.embedded import EmbeddedFragment
from geartrain_simulation.fleet.stage_run import LABELS, LogRow, StageRun, StateMap, source_rows
from tests.spark.flows import Reading, expected_sums, sums_flow
from tests.spark.stage_run import log_table, records_of

SplitReading = tuple[Reading, int, str, int]


def readings(count: int, seed: int = 1) -> list[SplitReading]:
    rng = random.Random(seed)
    return [
        (Reading(f"s{rng.randrange(7)}", float(rng.randrange(-3, 30))), i, "split", i) for i in range(count)
    ]


def keyed_query(cut: str) -> Query:
    return compile_queries(make_plan(sums_flow().graph(), cut))[1]


@pytest.fixture
def queries() -> tuple[Query, ...]:
    return compile_queries(make_plan(sums_flow().graph(), "cloud"))


def run_keyed(
    query: Query, records: list[SplitReading], cuts: list[int], rng: random.Random, channel: str = "readings"
) -> dict[str, list[tuple[Any, ...]]]:
    """Micro-batches between `cuts`, entries of any size, rows of a shard handed over in any order."""
    run, position = StageRun(query, rng), 0
    found: dict[str, list[tuple[Any, ...]]] = {}
    for first, last in zip([0, *cuts], [*cuts, len(records)], strict=True):
        rows: list[LogRow] = []
        while first < last:
            size = min(rng.randrange(1, 50), last - first)
            position += 1
            rows.append((channel, position, log_table(records[first : first + size], Reading)))
            first += size
        for sink, batches in run.micro_batch(rows, clock=last).items():
            found.setdefault(sink, []).extend(records_of(batches))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_keyed_steps_are_exact_for_any_micro_batches(seed: int, queries: tuple[Query, ...]) -> None:
    rng = random.Random(seed)
    records = readings(1_500, seed)
    cuts = sorted(rng.sample(range(1_500), rng.randrange(6)))
    found = run_keyed(queries[1], records, cuts, rng)
    expected = [(s.sensor, s.count, s.total) for s in expected_sums(r for r, *_ in records)]
    assert sorted(found["each"]) == sorted(expected)
    assert sorted(found["last"]) == sorted(expected)
    letters = sorted(step for step, *_ in found["_dead_letters"])
    zeros, thirteens = (sum(r.value == v for r, *_ in records) for v in (0.0, 13.0))
    assert letters == ["adding"] * thirteens + ["positive"] * zeros


def test_a_cut_behind_the_key_has_it_found_in_the_cloud_and_dealt_to_the_shards() -> None:
    """Only the key_by is left above the state in the cloud: the devices send its input once."""
    query = keyed_query("by_sensor")
    assert set(query.channels) == {"positive"}
    assert [b.stream for b in query.stages[1].inputs] == ["by_sensor"]
    records = [record for record in readings(800) if record[0].value > 0]
    found = run_keyed(query, records, [100, 400], random.Random(3), "positive")
    expected = [(s.sensor, s.count, s.total) for s in expected_sums(r for r, *_ in records)]
    assert sorted(found["each"]) == sorted(expected)
    assert {step for step, *_ in found["_dead_letters"]} == {"adding"}


def test_stateless_steps_leave_letters_of_shared_steps_to_the_other_query(queries: tuple[Query, ...]) -> None:
    records = readings(500)
    run = StageRun(queries[0], random.Random(1))
    found = run.micro_batch([("readings", 1, log_table(records, Reading))], 0)
    kept = [(r.sensor, r.value) for r, *_ in records if r.value > 0]
    assert {sink: records_of(batches) for sink, batches in found.items()} == {"kept": kept}


def test_letters_of_devices_go_to_their_table(queries: tuple[Query, ...]) -> None:
    table = log_table([(Letter("readings", "not_a_record", "no number", b"x"), 5, "split", 3)], Letter)
    found = StageRun(queries[0], random.Random(1)).micro_batch([("_late", 1, table)], 0)
    assert records_of(found["_late"]) == [("readings", "not_a_record", "no number", b"x")]


class WithoutCode(Record):
    """A dead letter as release 0.2 sent it."""

    step: str
    reason: str
    raw: bytes


def test_letters_of_a_release_without_codes_get_one(queries: tuple[Query, ...]) -> None:
    table = log_table([(WithoutCode("readings", "no number", b"x"), 5, "split", 3)], WithoutCode)
    table = table.replace_schema_metadata({SCHEMA_KEY: derive(WithoutCode).to_json().encode()})
    found = StageRun(queries[0], random.Random(1)).micro_batch([("_late", 1, table)], 0)
    assert records_of(found["_late"]) == [("readings", "unknown", "no number", b"x")]


def test_overtaken_rows_have_a_table_of_their_own_and_come_from_one_query(queries: tuple[Query, ...]) -> None:
    """They lie below the clock, where no step with state may see them, so no step at all does."""
    rows = [(Reading("a", 1.0), 5, "split", 0), (Reading("a", 2.0), 6, "split", 1)]
    table = log_table(rows, Reading, overtaken=[True, False])
    stateless, keyed = (
        StageRun(q, random.Random(1)).micro_batch([("readings", 1, table)], 9) for q in queries
    )
    assert {sink: records_of(b) for sink, b in stateless.items()} == {"kept": [("a", 2.0)]}
    assert records_of(keyed["each"]) == [("a", 1, 2.0)]
    reason = "overtaken: the clock had passed it when it came into the log"
    raw = b'{"sensor":"a","value":1.0}'
    assert records_of(keyed["_overtaken"]) == [("readings", "overtaken", reason, raw)]


def test_rows_of_another_flow_are_refused(queries: tuple[Query, ...]) -> None:
    table = log_table([(Letter("readings", "not_a_record", "no number", b"x"), 5, "split", 3)], Letter)
    with pytest.raises(LedgerError, match="the log holds step string"):
        StageRun(queries[0], random.Random(1)).micro_batch([("readings", 1, table)], 0)


def test_a_position_or_a_clock_that_goes_back_is_loud(queries: tuple[Query, ...]) -> None:
    batches = routed_rows(queries[1], LABELS)(
        source_rows([("readings", 7, log_table(readings(300), Reading))], {"readings": 5})
    )
    rows = [Row(**row) for batch in batches for row in batch.to_pylist() if row["shard"] == LABELS[0]]
    fragment = EmbeddedFragment(queries[1], 1, LABELS)
    with pytest.raises(LedgerError, match="position 7 of 0 came after 0"):
        list(fragment.run(StateMap(), iter([*rows, *rows])))
    state = StateMap()
    assert len(list(fragment.run(state, iter(rows)))) >= 2
    with pytest.raises(LedgerError, match="position 7 of 0 came after 7"):
        list(fragment.run(state, iter(rows)))
    tick = rows[0].asDict() | {"stream": "", "stage": 1, "position": 0}
    for brought, said in (({"readings": 4}, "4"), ({"others": 9}, str(START_OF_TIME))):
        earlier = Row(**(tick | {"packed": encode_clocks(brought)}))
        with pytest.raises(LedgerError, match=f"'readings' stands at 5 and the micro-batch brings {said}"):
            list(fragment.run(state, iter([earlier])))
    with pytest.raises(LedgerError, match="brings no clock"):
        list(fragment.run(state, iter([row for row in rows if row.stream])))
