"""The stages of a query without Spark: exact for any micro-batches, and loud when order breaks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import Row

from geartrain.errors import LedgerError
from geartrain.graph.graph import DEAD_LETTERS, LATE
from geartrain.planning import make_plan
from geartrain.records.event_time import START_OF_TIME
from geartrain.records.letters import Letter
from geartrain_cloud.spark.clocks import encode_clocks
from geartrain_cloud.spark.compile import Query, hosted_query
from geartrain_cloud.spark.embedded import CALLS_MAX, EmbeddedFragment
from geartrain_simulation.fleet.stage_run import LABELS, LogRow, StageRun, StateMap
from tests.spark.flows import Reading, expected_sums, sums_flow
from tests.spark.stage_run import log_table, records_of

SplitReading = tuple[Reading, int, str, int]


def readings(count: int, seed: int = 1) -> list[SplitReading]:
    rng = random.Random(seed)
    return [
        (Reading(f"s{rng.randrange(7)}", float(rng.randrange(-3, 30))), i, "split", i) for i in range(count)
    ]


def query_of(cut: str) -> Query:
    return hosted_query(make_plan(sums_flow().graph(), cut))


@pytest.fixture
def query() -> Query:
    return query_of("cloud")


def run_stages(
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
def test_keyed_steps_are_exact_for_any_micro_batches(seed: int, query: Query) -> None:
    rng = random.Random(seed)
    records = readings(1_500, seed)
    cuts = sorted(rng.sample(range(1_500), rng.randrange(6)))
    found = run_stages(query, records, cuts, rng)
    expected = [(s.sensor, s.count, s.total) for s in expected_sums(r for r, *_ in records)]
    assert sorted(found["each"]) == sorted(expected)
    assert sorted(found["last"]) == sorted(expected)
    letters = sorted(step for step, *_ in found["_dead_letters"])
    zeros, thirteens = (sum(r.value == v for r, *_ in records) for v in (0.0, 13.0))
    assert sorted(found["kept"]) == sorted((r.sensor, r.value) for r, *_ in records if r.value > 0)
    assert letters == ["adding"] * thirteens + ["positive"] * zeros


def test_a_cut_behind_the_key_has_it_found_in_the_cloud_and_dealt_to_the_shards() -> None:
    """Only the key_by is left above the state in the cloud: the devices send its input once."""
    query = query_of("by_sensor")
    assert set(query.channels) == {"positive", DEAD_LETTERS, LATE}
    assert [b.stream for b in query.stages[1].inputs] == ["by_sensor"]
    records = [record for record in readings(800) if record[0].value > 0]
    found = run_stages(query, records, [100, 400], random.Random(3), "positive")
    expected = [(s.sensor, s.count, s.total) for s in expected_sums(r for r, *_ in records)]
    assert sorted(found["each"]) == sorted(expected)
    assert {step for step, *_ in found["_dead_letters"]} == {"adding"}


def test_letters_of_devices_go_to_their_table(query: Query) -> None:
    table = log_table([(Letter("readings", "not_a_record", "no number", b"x"), 5, "split", 3)], Letter)
    found = StageRun(query, random.Random(1)).micro_batch([("_late", 1, table)], 0)
    assert records_of(found["_late"]) == [("readings", "not_a_record", "no number", b"x")]


def test_overtaken_rows_have_a_table_of_their_own(query: Query) -> None:
    """They lie below the clock, where no step with state may see them, so no step at all does."""
    rows = [(Reading("a", 1.0), 5, "split", 0), (Reading("a", 2.0), 6, "split", 1)]
    table = log_table(rows, Reading, overtaken=[True, False])
    found = StageRun(query, random.Random(1)).micro_batch([("readings", 1, table)], 9)
    assert found.keys() == {"kept", "each", "last", "_overtaken"}
    assert records_of(found["kept"]) == [("a", 2.0)]
    assert records_of(found["each"]) == [("a", 1, 2.0)]
    reason = "overtaken: the clock had passed it when it came into the log"
    raw = b'{"sensor":"a","value":1.0}'
    assert records_of(found["_overtaken"]) == [("readings", "overtaken", reason, raw)]


def test_rows_of_another_flow_are_refused(query: Query) -> None:
    table = log_table([(Letter("readings", "not_a_record", "no number", b"x"), 5, "split", 3)], Letter)
    with pytest.raises(LedgerError, match="the log holds step string"):
        StageRun(query, random.Random(1)).micro_batch([("readings", 1, table)], 0)


def test_a_position_or_a_clock_that_goes_back_is_loud(query: Query) -> None:
    run = StageRun(query, random.Random(1))
    routed = run.routed([("readings", 7, log_table(readings(300), Reading))], {"readings": 5})
    rows = [row for row in routed if row.stage and row.shard == LABELS[0]]
    fragment = EmbeddedFragment(query, 1, LABELS)
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


def test_a_large_micro_batch_gets_no_longer_to_hang_in(query: Query) -> None:
    run = StageRun(query, random.Random(1))
    routed = run.routed([("readings", 7, log_table(readings(100_000), Reading))], {"readings": 5})
    rows = [row for row in routed if row.stage and row.shard == LABELS[0]]
    allowed = list[int]()
    list(EmbeddedFragment(query, 1, LABELS, on_work=allowed.append).run(StateMap(), iter(rows)))
    fed, moved = sum(allowed[:-1]), allowed[-1]
    assert fed > 2 * CALLS_MAX
    assert CALLS_MAX <= moved <= CALLS_MAX + 7, "seven sensors have state"
