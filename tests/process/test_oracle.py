"""The oracle finds what it is there for: each kind of wrong account, made by hand."""

from __future__ import annotations

from collections import Counter

from tests.process.oracle import LETTERS, Account, Seen, account, missing_numbers
from tests.process.registry import HELD, Outcome
from tests.process.suite import recovered, table


def seen(*numbers: int, **more: int) -> Seen:
    keys = Counter[tuple[str, int, bytes]]({("d/numbers", number, b""): 1 for number in numbers})
    return Seen(rows=len(numbers), keys=keys, **more)


def test_all_there_once_is_exact() -> None:
    found = account({"numbers": seen(0, 1, 2), LETTERS: seen(3)}, {"numbers": 3, LETTERS: 1})
    assert found == Account(accepted=4, delivered=3, dead_lettered=1)
    assert found.is_exact


def test_a_record_that_is_nowhere_is_lost() -> None:
    found = account({"numbers": seen(0, 2)}, {"numbers": 3, "tallies": 5})
    assert (found.lost, found.balances) == (6, False)


def test_what_was_declared_or_quarantined_is_not_lost() -> None:
    found = account({"numbers": seen(0, dropped=1, quarantined=1)}, {"numbers": 3})
    assert (found.lost, found.declared_dropped, found.quarantined) == (0, 1, 1)
    assert found.is_exact


def test_what_was_declared_and_came_is_not_balanced_by_a_loss_elsewhere() -> None:
    found = account({"numbers": seen(0, 1, dropped=1), "tallies": seen(0)}, {"numbers": 2, "tallies": 2})
    assert (found.lost, found.surplus, found.balances) == (1, 1, False)


def test_doubled_and_reordered_and_altered_rows_are_told() -> None:
    doubled = seen(0, 1)
    doubled.rows = 3
    found = account({"numbers": doubled}, {"numbers": 2})
    assert (found.duplicated, found.balances, found.is_exact) == (1, True, False)
    assert not account({"numbers": seen(0, 1, reordered=1)}, {"numbers": 2}).is_exact
    assert account({"numbers": seen(0, 1, altered=1)}, {"numbers": 2}).lost == 1


def test_missing_numbers_are_looked_for_in_every_channel() -> None:
    found = {"numbers": seen(0, 1), "_late": seen(2), LETTERS: seen(4)}
    assert missing_numbers(found, "d/numbers", 6) == {3, 5}
    assert missing_numbers(found, "e/numbers", 2) == {0, 1}


def test_the_table_has_a_line_for_each() -> None:
    outcomes = [
        Outcome("one", Account(accepted=2, delivered=2), [0.5, 1.25], HELD, 3.0),
        Outcome("another", Account(lost=7), [], "7 are lost\nand more", 3.0),
    ]
    head, first, second = table(outcomes).splitlines()
    assert head.split()[:4] == ["scenario", "accepted", "delivered", "lost"]
    assert first.split() == ["one", "2", "2", "0", "0", "0", "0", "0", "0", "1.25", "held"]
    assert second.endswith("-  7 are lost")
    assert recovered(outcomes[1]) == "-"
