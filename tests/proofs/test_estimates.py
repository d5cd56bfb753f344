"""What unmeasured `auto` sends of the examples and the NEXMark flows, beside the best cut by measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.graph.graph import Graph
from geartrain.planning import choose_cut, legal_cuts
from geartrain.planning.splitting import with_partials
from tests.examples.nexmark_reference import QUERIES
from tests.examples.nexmark_world import graph_of
from tests.planning.test_auto import NEAR_BEST, measured
from tests.reference.sent import EXAMPLES, example

EVENTS, PERIOD_US = 10_000, 1_000


def flow_of(name: str, folder: Path) -> Graph:
    """An example on its own data, or a NEXMark query on ten seconds of bids."""
    if name in EXAMPLES:
        return example(name, folder)
    graph = graph_of(name)
    return graph.with_options({s.id: {"events": EVENTS, "period_us": PERIOD_US} for s in graph.sources()})


@pytest.mark.parametrize("name", [*EXAMPLES, *QUERIES])
def test_unmeasured_auto_is_within_10_percent_of_the_best_cut(name: str, tmp_path: Path) -> None:
    graph = with_partials(flow_of(name, tmp_path))
    costs = measured(graph)
    best = costs.compare(graph, legal_cuts(graph))[0].bytes
    sent = {cut: costs.of_cut(graph, choose_cut(graph, cut)).bytes for cut in ("auto", "edge", "cloud")}
    print(f"{name}: best {best:,}, " + ", ".join(f"{cut} {size / best:.2f}" for cut, size in sent.items()))
    assert sent["auto"] <= NEAR_BEST * best
