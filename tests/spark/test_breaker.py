"""The breaker: one bad record stops nothing, one in a hundred stops the flow until somebody says go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain_cloud.spark.breaker import LETTERS_MIN, MICRO_BATCHES, Breaker
from geartrain_cloud.spark.errors import BreakerError


def folder(place: Path) -> Path:
    made = place / "stone.1"
    made.mkdir()
    return made


def test_few_letters_never_stop_a_flow(tmp_path: Path) -> None:
    breaker = Breaker("stone.1", folder(tmp_path))
    breaker.count(10, LETTERS_MIN - 1)
    assert list(tmp_path.glob("*/*")) == []


def test_a_hundredth_may_be_refused_and_no_more(tmp_path: Path) -> None:
    breaker = Breaker("stone.1", folder(tmp_path))
    breaker.count(100_000, 1_000)
    with pytest.raises(
        BreakerError, match=r"flow stone.1 stopped: 1,001 dead letters of 100,000 records.*newest: why"
    ):
        breaker.count(0, 1, "why")


def test_a_stopped_flow_stays_stopped(tmp_path: Path) -> None:
    place = folder(tmp_path)
    with pytest.raises(BreakerError) as first:
        Breaker("stone.1", place).count(500, 400, "why")
    with pytest.raises(BreakerError) as again:
        Breaker("stone.1", place)
    assert str(again.value) == str(first.value)
    (place / "tripped.json").write_text("{")
    with pytest.raises(BreakerError, match="let it go on with `gear resume stone`"):
        Breaker("stone.1", place)


def test_letters_of_long_ago_count_no_more(tmp_path: Path) -> None:
    breaker = Breaker("stone.1", folder(tmp_path))
    for _ in range(5 * MICRO_BATCHES):
        breaker.count(100, LETTERS_MIN // MICRO_BATCHES - 1)
    with pytest.raises(BreakerError, match=f"{LETTERS_MIN} dead letters"):
        breaker.count(100, LETTERS_MIN - (MICRO_BATCHES - 1) * (LETTERS_MIN // MICRO_BATCHES - 1))


def test_it_can_be_told_to_let_all_pass(tmp_path: Path) -> None:
    Breaker("stone.1", folder(tmp_path), percent=100.0).count(1, 10**6)
    assert list(tmp_path.glob("*/*")) == []
