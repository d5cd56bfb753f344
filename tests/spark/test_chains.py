"""The steps of both queries without Spark: exact for any micro-batches, and loud when order breaks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql import Row

from geartrain.errors import LedgerError
from geartrain.keys import encode_key
from geartrain.letters import Letter
from geartrain.placement import make_plan
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.log.arrow import to_table
from geartrain_cloud.spark.chains import sharded_rows, stateless_rows
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_cloud.spark.embedded import BUCKETS, BucketState, EmbeddedFragment
from geartrain_cloud.spark.pack import table_to_ipc, unpack
from tests.spark.flows import Reading, expected_sums, sums_flow

LABELS = (10, 11, 12)
SplitReading = tuple[Reading, int, str, int]


def readings(count: int, seed: int = 1) -> list[SplitReading]:
    rng = random.Random(seed)
    return [
        (Reading(f"s{rng.randrange(7)}", float(rng.randrange(-3, 30))), i, "split", i) for i in range(count)
    ]


def log_table(records: Sequence[tuple[Any, int, str, int]], kind: Any = Reading) -> pa.Table:
    codec = RowCodec(kind)
    values, times, names, numbers = (list(c) for c in zip(*records, strict=True))
    rows, count = ColumnBatch(codec.to_columns(values), times, names, numbers), len(values)
    return to_table(codec.schema, rows, ["d"] * count, [1] * count, [False] * count, [False] * count)


def source_rows(channel: str, tables: Iterable[tuple[int, pa.Table]]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"channel": [""], "position": [0], "packed": pa.array([None], pa.binary())})
    for position, table in tables:
        packed = pa.array([table_to_ipc(table)], pa.binary())
        yield pa.record_batch({"channel": [channel], "position": [position], "packed": packed})


def sinks_of(batches: Iterable[pa.RecordBatch]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            found.setdefault(row["sink"], []).extend(zip(*unpack(row["packed"]).fields, strict=True))
    return found


class StateMap:
    """Spark's MapState as a dictionary, with a count of the calls."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.reads: list[int] = []
        self.writes: list[int] = []

    def getValue(self, key: tuple[int]) -> tuple[bytes] | None:  # noqa: N802
        self.reads.append(key[0])
        found = self.values.get(key[0])
        return None if found is None else (found,)

    def updateValue(self, key: tuple[int], value: tuple[bytes]) -> None:  # noqa: N802
        self.writes.append(key[0])
        self.values[key[0]] = value[0]


def keyed_query(cut: str) -> Query:
    return compile_queries(make_plan(sums_flow().graph(), cut))[1]


@pytest.fixture
def queries() -> tuple[Query, ...]:
    return compile_queries(make_plan(sums_flow().graph(), "cloud"))


def run_keyed(
    query: Query, records: list[SplitReading], cuts: list[int], rng: random.Random, channel: str = "readings"
) -> Any:
    """Micro-batches between `cuts`, entries of any size, rows of a shard handed over in any order."""
    states = {label: StateMap() for label in LABELS}
    found: dict[str, list[tuple[Any, ...]]] = {}
    position = 0
    for first, last in zip([0, *cuts], [*cuts, len(records)], strict=True):
        tables = []
        while first < last:
            size = min(rng.randrange(1, 50), last - first)
            position += 1
            tables.append((position, log_table(records[first : first + size])))
            first += size
        shuffled: dict[int, list[Row]] = {label: [] for label in LABELS}
        for batch in sharded_rows(query, LABELS)(source_rows(channel, tables)):
            for row in batch.to_pylist():
                shuffled[row["shard"]].append(Row(**row))
        for label, rows in shuffled.items():
            rng.shuffle(rows)
            for out in EmbeddedFragment(query, len(LABELS)).run(states[label], rows) if rows else ():
                found.setdefault(out.sink, []).extend(zip(*unpack(out.packed).fields, strict=True))
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
    letters = sorted(step for step, _, _ in found["_dead_letters"])
    zeros, thirteens = (sum(r.value == v for r, *_ in records) for v in (0.0, 13.0))
    assert letters == ["adding"] * thirteens + ["positive"] * zeros


def test_a_channel_that_is_keyed_already_goes_straight_to_its_shards() -> None:
    """The cut lies behind the key_by: no step is left above the state in the cloud."""
    query = keyed_query("by_sensor")
    assert set(query.channels) == {"by_sensor"}
    assert (len(query.prefix), query.boundaries) == (0, ("by_sensor",))
    records = [record for record in readings(800) if record[0].value > 0]
    found = run_keyed(query, records, [100, 400], random.Random(3), "by_sensor")
    expected = [(s.sensor, s.count, s.total) for s in expected_sums(r for r, *_ in records)]
    assert sorted(found["each"]) == sorted(expected)
    assert {step for step, _, _ in found["_dead_letters"]} == {"adding"}


def test_stateless_steps_leave_letters_of_shared_steps_to_the_other_query(queries: tuple[Query, ...]) -> None:
    records = readings(500)
    found = sinks_of(stateless_rows(queries[0])(source_rows("readings", [(1, log_table(records))])))
    kept = [(r.sensor, r.value) for r, *_ in records if r.value > 0]
    assert found == {"kept": kept}


def test_letters_of_devices_go_to_their_table(queries: tuple[Query, ...]) -> None:
    table = log_table([(Letter("readings", "no number", b"x"), 5, "split", 3)], Letter)
    found = sinks_of(stateless_rows(queries[0])(source_rows("_late", [(1, table)])))
    assert found == {"_late": [("readings", "no number", b"x")]}


def test_rows_of_another_flow_are_refused(queries: tuple[Query, ...]) -> None:
    table = log_table([(Letter("readings", "no number", b"x"), 5, "split", 3)], Letter)
    with pytest.raises(LedgerError, match="the log holds step string"):
        list(stateless_rows(queries[0])(source_rows("readings", [(1, table)])))


def test_a_position_that_goes_back_is_loud(queries: tuple[Query, ...]) -> None:
    states = {label: StateMap() for label in LABELS}
    records = readings(300)
    rows = [
        Row(**row)
        for batch in sharded_rows(queries[1], LABELS)(source_rows("readings", [(7, log_table(records))]))
        for row in batch.to_pylist()
    ]
    fragment = EmbeddedFragment(queries[1], len(LABELS))
    with_key = [row for row in rows if row.stream == "by_sensor"]
    list(fragment.run(states[with_key[0].shard], [with_key[0]]))
    with pytest.raises(LedgerError, match="position 7 came after 7"):
        list(fragment.run(states[with_key[0].shard], [with_key[0]]))


def test_only_touched_buckets_are_read_and_written() -> None:
    state = StateMap()
    one, two = encode_key("one"), encode_key("two")
    numbers = [crc32(key) // 3 % BUCKETS for key in (one, two)]
    assert numbers[0] != numbers[1]
    first = BucketState(state, 3)
    first.positions["s"] = 4
    first.save({("step", one): b"1", ("step", two): b"2", ("other", one): b"3"})
    state.reads, state.writes = [], []
    again = BucketState(state, 3)
    assert again.positions == {"s": 4}
    assert [again.load("step", one), again.load("other", one), again.load("nothing", one)] == [
        b"1",
        b"3",
        None,
    ]
    again.save({("step", one): None})
    assert state.reads == [-1, numbers[0]]
    assert state.writes == [numbers[0], -1]
    assert BucketState(state, 3).load("step", one) is None
    assert BucketState(state, 3).load("step", two) == b"2"
