"""I1 in the small: random flows give the same records under every legal cut, equal to the naive reference.

Each device runs its fragment in batches of random size, with a snapshot and restore at random points; its
channels pass the row codec; the cloud's fragment takes the devices' batches in a random interleaving.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geartrain.batch import Batch
from geartrain.graph import DEAD_LETTERS, LATE
from geartrain.placement import Cut, Plan, legal_cuts, make_plan
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.splits import SplitTracker
from geartrain.runtime.state import DictBackend
from geartrain.schema import RowCodec
from geartrain.testing import TestingSource
from tests.reference.flows import Case, cases
from tests.reference.interpreter import Answer, Row, interpret, same_bits

Rows = dict[str, list[Row]]


class _Node:
    """One tier's fragment, restarted from its saved state now and then."""

    def __init__(self, plan: Plan, steps: tuple[str, ...], rng: random.Random) -> None:
        self._plan, self._steps, self._rng = plan, steps, rng
        self._saved: dict[tuple[str, bytes], bytes] = {}
        self._fragment = Fragment(plan.graph, steps, DictBackend(self._saved))

    @property
    def fragment(self) -> Fragment:
        if self._rng.random() < 0.2:
            for at, value in self._fragment.changes().items():
                assert value is not None
                self._saved[at] = value
            self._fragment = Fragment(self._plan.graph, self._steps, DictBackend(dict(self._saved)))
        return self._fragment


def _device_outputs(case: Case, plan: Plan, device: str, rng: random.Random) -> list[tuple[str, Batch]]:
    node = _Node(plan, plan.edge, rng)
    sent: list[tuple[str, Batch]] = []
    for source in plan.graph.sources():
        split = f"{device}/{source.id}"
        items = TestingSource[Any](items=case.inputs[source.id][split], name=split)
        (reader,) = items.open(device, source.id, source.out)
        tracker = SplitTracker(source.id, split, case.bounds_us[source.id], None)
        while not tracker.progress.ended:
            poll = asyncio.run(reader.read(tracker.progress.position, rng.choice([1, 2, 7, 256])))
            batch, late, rejected = tracker.observe(poll)
            fragment = node.fragment
            for letter in rejected:
                fragment.reject(letter)
            for letter in late:
                fragment.divert_late(letter)
            fragment.feed(source.id, batch)
            sent += _parts(fragment.take())
    return sent


def _parts(output: Output) -> list[tuple[str, Batch]]:
    return [(stream, batch) for stream, batches in output.batches.items() for batch in batches]


def _over_the_link(plan: Plan, channel: str, batch: Batch) -> Batch:
    codec = RowCodec(plan.channel(channel).kind)
    columns = [list(c) for c in codec.to_columns(batch.values)]
    return Batch(codec.from_columns(columns), batch.times, batch.names, batch.numbers, batch.paths)


def run_cut(case: Case, cut: Cut, rng: random.Random) -> tuple[Rows, set[Any], set[Any]]:
    """The sinks, dead letters and late records of a case under one cut."""
    plan = make_plan(case.flow.graph(), sorted(cut.edge))
    assert plan.cut == cut
    waiting = [_device_outputs(case, plan, device, rng) for device in case.devices]
    cloud = _Node(plan, plan.cloud, rng)
    found: Rows = {s.id: [] for s in plan.graph.sinks()}
    dead: set[Any] = set()
    late: set[Any] = set()

    def collect(parts: list[tuple[str, Batch]]) -> None:
        for stream, batch in parts:
            for i, value in enumerate(batch.values):
                origin = batch.origin(i)
                row = Row(batch.times[i], origin.name, origin.number, tuple(origin.path), value)
                if stream == DEAD_LETTERS:
                    dead.add((value.step, row.name, row.number, row.path))
                elif stream == LATE:
                    late.add((row.name, row.number))
                else:
                    found[stream].append(row)

    while any(waiting):
        channel, batch = rng.choice([w for w in waiting if w]).pop(0)
        if channel in (DEAD_LETTERS, LATE):
            collect([(channel, batch)])
        else:
            fragment = cloud.fragment
            fragment.feed(channel, _over_the_link(plan, channel, batch))
            collect(_parts(fragment.take()))
    return found, dead, late


def _assert_equal(found: Rows, want: Answer) -> None:
    assert found.keys() == want.sinks.keys()
    for sink, rows in want.sinks.items():
        got = sorted(found[sink], key=lambda r: r.order)
        assert [r.order for r in got] == [r.order for r in rows]
        for left, right in zip(got, rows, strict=True):
            assert same_bits(left.value, right.value), (sink, left, right)


def check_case(case: Case, seed: int) -> None:
    """Assert that at most six legal cuts of `case` give what the reference gives; `seed` draws the
    interleaving.
    """
    graph = case.flow.graph()
    want = interpret(graph, case.inputs, case.bounds_us)
    rng = random.Random(seed)
    cuts = legal_cuts(graph)
    for cut in cuts if len(cuts) <= 6 else rng.sample(cuts, 6):
        found, dead, late = run_cut(case, cut, rng)
        _assert_equal(found, want)
        assert dead == want.dead
        assert late == want.late


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.integers(0, 2**32))
def test_every_legal_cut_of_a_random_flow_equals_the_reference(case: Case, seed: int) -> None:
    check_case(case, seed)
