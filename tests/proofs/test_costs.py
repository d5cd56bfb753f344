"""The cost of every legal cut of the traffic example, by one measurement and by a run of each."""

from __future__ import annotations

import asyncio
from pathlib import Path

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.planning import choose_cut, legal_cuts
from geartrain.planning.splitting import with_partials
from geartrain_client.planning.measure import Measurement
from tests.reference.sent import Reads, example, sent_over


def test_auto_is_within_5_percent_of_the_best_of_all_cuts_of_the_traffic_flow(tmp_path: Path) -> None:
    graph = with_partials(example("traffic", tmp_path))
    measurement = Measurement(graph, cpu_time=lambda: 0.0, clock=SystemClock(), randomness=SystemRandomness())
    costs = asyncio.run(measurement.run(600))
    assert costs.ended
    cuts = legal_cuts(graph)
    assert len(cuts) > 25
    reads = Reads(graph)
    tried = {cut: sum(sent_over(graph, cut, reads).values()) for cut in cuts}
    assert {cut: costs.of_cut(graph, cut).bytes for cut in cuts} == tried
    assert tried[choose_cut(graph, "auto", costs)] <= min(tried.values()) * 1.05
