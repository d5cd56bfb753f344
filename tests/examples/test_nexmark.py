"""The NEXMark flows answer as plain Python does: in one process, under every legal cut, in their tables."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from geartrain.planning import legal_cuts
from geartrain.testing import run_flow
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_examples.nexmark.records import Auction, Bid, Person
from geartrain_examples.nexmark.sources import ROUND, Bids
from tests.examples.nexmark_reference import QUERIES
from tests.examples.nexmark_world import dealt, events, graph_of, rows_of
from tests.reference.two_tiers import run_cut

EVENTS, PERIOD_US = 3_000, 20_000  # a minute
FEW_EVENTS, FEW_PERIOD_US = 1_000, 60_000


def test_the_house_has_the_published_proportions_and_can_be_read_from_anywhere() -> None:
    house = events(EVENTS, PERIOD_US)
    kinds = Counter(type(one) for _, one in house)
    assert kinds == {Person: EVENTS // 50, Auction: EVENTS // 50 * 3, Bid: EVENTS // 50 * 46}
    assert len({time for time, _ in house}) == EVENTS
    bids = [one for _, one in house[ROUND * 40 :] if isinstance(one, Bid)]
    hot = sum(count for _, count in Counter(bid.auction for bid in bids).most_common(2))
    assert 0.4 < hot / len(bids) < 0.6


@pytest.mark.parametrize("shares", [1, 3])
def test_shares_make_up_the_house(shares: int) -> None:
    found = [
        row
        for share in range(shares)
        for row in run_flow(
            graph_of("q0").with_options(
                {"bids": {"events": 400, "period_us": PERIOD_US, "share": share, "shares": shares}}
            )
        ).tables["bids_seen"]
    ]
    assert sorted(found, key=lambda row: row[0]) == [
        row for row in events(400, PERIOD_US) if isinstance(row[1], Bid)
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_answers_as_plain_python_does(query: str) -> None:
    graph = graph_of(query)
    options = {step.id: {"events": EVENTS, "period_us": PERIOD_US} for step in graph.sources()}
    results = run_flow(graph.with_options(options))
    (records,) = results.tables.values()
    expected = QUERIES[query]([one for _, one in events(EVENTS, PERIOD_US)])
    assert expected
    assert rows_of(graph, [record for _, record in records]) == expected
    assert not results.dead_letters
    assert not results.late


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_answers_the_same_under_every_cut(query: str) -> None:
    graph = graph_of(query)
    house = events(FEW_EVENTS, FEW_PERIOD_US)
    expected = QUERIES[query]([one for _, one in house])
    for number, cut in enumerate(legal_cuts(graph)):
        answer = run_cut(graph, cut, dealt(graph, house, 3), random.Random(number))
        (rows,) = answer.sinks.values()
        assert rows_of(graph, [row.value for row in rows]) == expected, sorted(cut.edge)
        assert not answer.dead
        assert not answer.late


def test_a_table_keeps_the_last_bid(tmp_path: Path) -> None:
    graph = graph_of("q18").with_options({"bids": {"events": EVENTS, "period_us": PERIOD_US}})
    run_in_process(graph, tmp_path)
    found = json.loads((tmp_path / "q18.json").read_text())
    expected = QUERIES["q18"]([one for _, one in events(EVENTS, PERIOD_US)])
    assert sorted(tuple(row[name] for name in Bid.__struct_fields__) for row in found) == expected


def test_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(Exception, match="share must be 0 to shares - 1"):
        Bids(share=2, shares=2).open("d", "bids", Bid)
