"""Windows whose records are taken in by columns, against the windows that take them one by one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from geartrain import Record, agg, global_window, sliding, tumbling
from geartrain.accumulating.aggregating import Aggregating
from geartrain.declarations.windows import Window
from geartrain.graph.operator import Running, Services
from geartrain.operators.aggregate import WindowAggregate
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.state.keyed import DictBackend, KeyedState, due_of
from geartrain.windowing import column_windows
from geartrain.windowing.column_windows import ColumnWindows
from geartrain.windowing.windowing import Windowing


class Reading(Record):
    level: float | None
    step: int


class Summary(Record):
    key: str
    n: int
    levels: int
    total: float | None
    mean: float | None
    low: float | None
    spread: float | None
    steps: int | None
    top: int | None
    first: float | None

    def __post_init__(self) -> None:
        if self.n == 3:
            raise ValueError("three is refused")


FIELDS: dict[str, agg.AggregateSpec] = {
    "n": agg.count(),
    "levels": agg.count("level"),
    "total": agg.sum("level"),
    "mean": agg.mean("level"),
    "low": agg.min("level"),
    "spread": agg.variance("level"),
    "steps": agg.sum("step"),
    "top": agg.max("step"),
    "first": agg.first("level"),
}
KEY_FIELDS = (("key", None),)
ODD = [math.nan, math.inf, -math.inf, 2.0**1000, -(2.0**1000), 1e308, 5e-324, -0.0, None]


def _us(length: int) -> timedelta:
    return timedelta(microseconds=length)


class Opened:
    """One of the two, with what it refused and saved."""

    def __init__(self, window: Window, *, by_columns: bool) -> None:
        self.letters: list[DeadLetter] = []
        self.saved: dict[tuple[str, bytes], bytes] = {}
        self._window, self._by_columns = window, by_columns
        self.restart()

    def restart(self) -> None:
        """Go on from what was saved."""
        self.state = KeyedState(DictBackend(dict(self.saved)))
        services = Services("sums", Summary, self.letters.append, self.state, (Reading,))
        self.running: Running
        if self._by_columns:
            self.running = WindowAggregate(self._window, FIELDS, KEY_FIELDS).open(services)
            assert isinstance(self.running, ColumnWindows)
        else:
            content = Aggregating(services, FIELDS, KEY_FIELDS, self._window)
            self.running = Windowing(services, self._window, content, None)

    def commit(self) -> None:
        """Keep what changed."""
        for at, cell in self.state.changes().items():
            if cell is None:
                self.saved.pop(at, None)
            else:
                self.saved[at] = cell


def _batch(rng: random.Random, number: int, at: int) -> Batch:
    count_ = rng.choice((1, 2, 7, 40))
    odd = rng.random() < 0.4
    values: list[Any] = []
    for _ in range(count_):
        level = rng.choice(ODD) if odd and rng.random() < 0.3 else rng.uniform(-5, 5)
        values.append(Reading(level, rng.randrange(-(2**62), 2**62)))
    times = [at + rng.randrange(30) for _ in values]
    keys = [encode_key(rng.choice("abcde")) for _ in values]
    return Batch(values, times, ["s"] * count_, list(range(number, number + count_)), None, keys)


def _told(batches: Sequence[Batch]) -> list[Any]:
    return sorted(
        (time, repr(value), name, number, path)
        for batch in batches
        for value, time, name, number, path in zip(
            batch.values, batch.times, batch.names, batch.numbers, batch.paths or [], strict=True
        )
    )


WINDOWS: dict[str, Window] = {
    "tumbling": tumbling(_us(20)),
    "sliding": sliding(_us(45), _us(10)),
    "gaps": sliding(_us(4), _us(10)),
    "global": global_window(),
}


@pytest.mark.parametrize("waiting_max", [1, 50, 32_768])
@pytest.mark.parametrize("name", WINDOWS)
def test_columns_give_what_single_records_give(
    name: str, waiting_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_windows, "WAITING_MAX", waiting_max)
    for seed in range(4):
        rng = random.Random(seed)
        one, other = Opened(WINDOWS[name], by_columns=True), Opened(WINDOWS[name], by_columns=False)
        left: list[Batch] = []
        right: list[Batch] = []
        number = 0
        for at in range(0, 250, 10):
            batch = _batch(rng, number, at)
            number += len(batch)
            commits, restarts = rng.random() < 0.3, rng.random() < 0.2
            for opened, out in ((one, left), (other, right)):
                out.append(opened.running.feed(batch, 0))
                out.append(opened.running.advance(at))
                if commits:
                    opened.commit()
                    if restarts:
                        opened.restart()
            if commits:
                due = [{key: due_of(cell) for key, cell in opened.saved.items()} for opened in (one, other)]
                assert due[0] == due[1]
        for opened, out in ((one, left), (other, right)):
            out.append(opened.running.advance(END_OF_TIME))
            opened.commit()
            assert opened.saved == {}
        assert _told(left) == _told(right)
        assert sorted(map(repr, one.letters)) == sorted(map(repr, other.letters))
        assert len(_told(left)) > 3 or name == "global"


def test_a_cell_of_a_former_life_is_not_found_again_once_its_windows_have_ended() -> None:
    opened = Opened(tumbling(_us(20)), by_columns=True)
    key = encode_key("a")
    opened.running.feed(Batch([Reading(1.0, 1)], [5], ["s"], [0], None, [key]), 0)
    opened.commit()
    opened.restart()
    assert [r.n for r in opened.running.advance(20).values] == [1]
    opened.commit()
    opened.running.feed(Batch([Reading(1.0, 1)], [25], ["s"], [1], None, [key]), 0)
    assert [(r.n, r.steps) for r in opened.running.advance(40).values] == [(1, 1)]


def test_records_in_many_windows_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_windows, "WAITING_MAX", 100)
    opened = Opened(sliding(_us(1_000), _us(2)), by_columns=True)
    rows = 64
    values: list[Any] = [Reading(1.0, 1)] * rows
    keys = [encode_key("a")] * rows
    opened.running.feed(Batch(values, list(range(rows)), ["s"] * rows, list(range(rows)), None, keys), 0)
    found = opened.running.advance(END_OF_TIME).values
    assert sum(result.n for result in found) == rows * 500
