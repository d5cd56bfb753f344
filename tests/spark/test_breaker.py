"""The breaker: one bad record stops nothing, one in a hundred stops the query until somebody says go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain_cloud.spark.breaker import LETTERS_MIN, MICRO_BATCHES, Breaker, resume
from geartrain_cloud.spark.errors import BreakerError


def folder(place: Path) -> Path:
    made = place / "keyed"
    made.mkdir()
    return made


def test_few_letters_never_stop_a_query(tmp_path: Path) -> None:
    breaker = Breaker("keyed", folder(tmp_path))
    breaker.count(10, LETTERS_MIN - 1)
    assert resume(tmp_path) == []


def test_a_hundredth_may_be_refused_and_no_more(tmp_path: Path) -> None:
    breaker = Breaker("keyed", folder(tmp_path))
    breaker.count(100_000, 1_000)
    with pytest.raises(
        BreakerError, match=r"'keyed' stopped: 1,001 dead letters of 100,000 records.*newest: why"
    ):
        breaker.count(0, 1, "why")


def test_a_stopped_query_stays_stopped_until_it_is_told_to_go_on(tmp_path: Path) -> None:
    place = folder(tmp_path)
    with pytest.raises(BreakerError) as first:
        Breaker("keyed", place).count(500, 400, "why")
    with pytest.raises(BreakerError) as again:
        Breaker("keyed", place)
    assert str(again.value) == str(first.value)
    (place / "tripped.json").write_text("{")
    with pytest.raises(BreakerError, match="gear deadletters resume"):
        Breaker("keyed", place)
    assert resume(tmp_path) == ["keyed"]
    Breaker("keyed", place).count(500, 200)
    assert resume(tmp_path) == []


def test_letters_of_long_ago_count_no_more(tmp_path: Path) -> None:
    breaker = Breaker("keyed", folder(tmp_path))
    for _ in range(5 * MICRO_BATCHES):
        breaker.count(100, LETTERS_MIN // MICRO_BATCHES - 1)
    with pytest.raises(BreakerError, match=f"{LETTERS_MIN} dead letters"):
        breaker.count(100, LETTERS_MIN - (MICRO_BATCHES - 1) * (LETTERS_MIN // MICRO_BATCHES - 1))


def test_it_can_be_told_to_let_all_pass(tmp_path: Path) -> None:
    Breaker("keyed", folder(tmp_path), percent=100.0).count(1, 10**6)
    assert resume(tmp_path) == []
