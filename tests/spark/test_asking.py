"""Questions to random flows, through the stages of a hosted query without Spark: they write nothing, every
cell can be told, and the answers of the flow stay those of the reference.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geartrain.planning import legal_cuts, make_plan
from geartrain.records.keys import decode_key
from geartrain_cloud.hosting.answering import Asked, answered, read_answers, sent
from geartrain_cloud.hosting.offsets import ANSWER, ASKED
from geartrain_cloud.hosting.questions import Answer, Question, merged
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.spark.buckets import BUCKETS, BucketState
from geartrain_cloud.spark.compile import Query, hosted_query
from geartrain_simulation.fleet.stage_run import LABELS, StageRun
from tests.reference.comparison import check_equal
from tests.reference.flows import Case, cases, split_cases
from tests.reference.interpreter import interpret
from tests.spark.case_log import Logged, answer_of, log_of
from tests.spark.stage_run import Sinks, columns_table

UNTOLD = {"broadcast"}
"""Kinds of steps whose cells are no user's keys."""


def hosted_of(query: Query) -> Hosted:
    """What a worker must know of the flow."""
    parts = dict.fromkeys(("plan", "request", "identity"), "x")
    many = dict.fromkeys(("keys", "channels", "sources"), ())
    stages = len(query.stages) - 1
    given = {"flow": "any.1", "generation": 1, "code": {}, "labels": LABELS}
    return msgspec.convert(parts | many | given | {"stages": stages, "buckets": BUCKETS}, Hosted)


def cells_of(run: StageRun) -> Iterator[tuple[str, bytes]]:
    """All that the shards keep: step and encoded key."""
    decode = msgspec.msgpack.Decoder(dict[str, dict[bytes, bytes]]).decode
    for state in run.states.values():
        for number, raw in state.values.items():
            for step, cells in decode(raw).items() if number >= 0 else ():
                yield from ((step, key) for key in cells)


def text_of(key: bytes) -> str:
    """A key as a person writes it."""
    value = decode_key(key)
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    plain = (
        [part.hex() if isinstance(part, bytes) else part for part in value]
        if isinstance(value, tuple)
        else value
    )
    return msgspec.json.encode(plain).decode()


def ask(run: StageRun, step: str, key: str | None) -> Answer:
    """As the reader, the shards and the end of a micro-batch do one after the other."""
    hosted = hosted_of(run.query)
    found = []
    for row in sent(run.query, hosted, [Asked(Question("q", "any.1", step, key), {"0": 1}, {})]):
        if row.stage == 0:
            assert row.stream == ANSWER
            found.append(row.packed)
            continue
        assert row.stream == ASKED
        state = run.states[row.stage, LABELS[row.shard]]
        before, writes = dict(state.values), len(state.writes)
        found.append(answered(run.query, hosted, state, row.packed))
        assert (state.values, len(state.writes)) == (before, writes)
    [answer] = merged(read_answers(found))
    return answer


def check_cells(run: StageRun, rng: random.Random, seen: Counter[str]) -> None:
    """Ask for some of the cells that there are."""
    cells = sorted(set(cells_of(run)))
    for step, key in rng.sample(cells, min(6, len(cells))):
        kind = run.query.graph[step].operator.kind
        if kind in UNTOLD:
            continue
        answer = ask(run, step, text_of(key))
        assert answer.refused == "" or "its state cannot be told" in answer.refused, (kind, answer.refused)
        if not answer.refused:
            assert answer.found, (kind, decode_key(key))
            assert {"state", "windows", "timers", "forgets_us"} == set(answer.told)
            assert ask(run, step, None).keys
            seen[kind] += 1


def run_asked(query: Query, log: list[Logged], rng: random.Random, seen: Counter[str]) -> Sinks:
    """As `run_query`, with questions after each micro-batch."""
    run, found, end = StageRun(query, rng), Sinks(), 0
    while end < len(log):
        start, end = end, min(len(log), end + rng.choice([1, 5, 40]))
        rows = [
            (entry.channel, position, columns_table(entry.rows, query.channels[entry.channel]))
            for position, entry in enumerate(log[start:end], start + 1)
            if entry.rows is not None and entry.channel in query.channels
        ]
        for sink, batches in run.micro_batch(rows, log[end - 1].clocks).items():
            found.setdefault(sink, []).extend(batches)
        check_cells(run, rng, seen)
    return found


def test_questions_change_nothing_and_every_cell_can_be_told() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.one_of(cases(), split_cases()))
    def check(case: Case) -> None:
        rng, graph = case.rng(), case.graph
        plan = make_plan(graph, sorted(rng.choice(legal_cuts(graph)).edge))
        query = hosted_query(plan)
        log = list(log_of(plan, case.world, rng))
        found = run_asked(query, log, rng, seen)
        check_equal(answer_of(graph, found), interpret(graph, case.world.inputs(), case.world.bounds_us))

    check()
    assert len(seen) >= 5, seen


def test_keys_are_named_from_the_first_buckets_that_have_enough() -> None:
    from geartrain.records.keys import encode_key
    from geartrain_simulation.fleet.stage_run import StateMap

    state = StateMap()
    saved = BucketState(state, 1)
    keys = [encode_key(f"k{number}") for number in range(500)]
    saved.save({("step", key): b"\xff" * 8 for key in keys})
    reads = len(state.reads)
    found = BucketState(state, 1).keys("step", 20)
    assert len(found) == 20
    assert set(found) <= set(keys)
    assert len(state.reads) - reads < 20
