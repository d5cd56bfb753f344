"""The recovery figures: ranks, verdicts and the table."""

from __future__ import annotations

from dataclasses import replace

from tests.process.oracle import Account
from tests.process.timings import Figure, rank, table

FIGURE = Figure("broker back", (0.3, 0.1, 0.2, 2.5), 2.0, Account(accepted=7, delivered=7))


def test_a_rank_is_one_of_the_runs() -> None:
    twenty = [number / 10 for number in range(20, 0, -1)]
    assert (rank(twenty, 0.5), rank(twenty, 0.95), rank(twenty, 1.0)) == (1.0, 1.9, 2.0)
    assert (rank([0.7], 0.5), rank([0.7], 0.95), rank([], 0.95)) == (0.7, 0.7, 0.0)


def test_the_table_says_what_is_above_its_bar_and_what_went_wrong() -> None:
    within = replace(FIGURE, name="within", bar_s=2.5)
    wrong = replace(within, name="wrong", verdict="2 records are nowhere\nd1 said ...", seconds=())
    head, above, kept, failed = table([FIGURE, within, wrong]).split("\n")
    assert head.split() == ["recovery", "runs", "p50", "p95", "maximum", "bar", "lost", "doubled"]
    words = [" ".join(line.split()) for line in (above, kept, failed)]
    assert words == [
        "broker back 4 200 ms 2.50 s 2.50 s 2.00 s 0 0 above its bar",
        "within 4 200 ms 2.50 s 2.50 s 2.50 s 0 0",
        "wrong 0 - - - 2.50 s 0 0 2 records are nowhere",
    ]
    assert [figure.is_within for figure in (FIGURE, within, wrong)] == [False, True, False]


def test_a_figure_that_is_only_printed_is_within() -> None:
    assert replace(FIGURE, bar_s=None).is_within
    assert FIGURE.content()["p95_s"] == 2.5
