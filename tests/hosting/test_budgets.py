"""How large micro-batches become: by a clock of the test's, on a model of what micro-batches take."""

from __future__ import annotations

import pytest

from geartrain_cloud.hosting.budgets import FIRST_ROWS, ROWS_LEAST, SIZE_MAX, WHOLE_S, Budgets

MICRO_BATCHES = 40


class Model:
    """Micro-batches that take `own_s`, and `cost_s` more for each row."""

    def __init__(self, own_s: float, cost_s: float) -> None:
        self.own_s, self.cost_s = own_s, cost_s
        self.now_s = 100.0
        self.budgets = Budgets(lambda: self.now_s)
        self._number = 0

    def run(self, given: dict[str, int], *, switches: bool = False, size: int = 0) -> float:
        """Run one with so many rows of flows with a backlog; returns its seconds."""
        self._number += 1
        end = {"!plan": self._number}
        self.budgets.begin(end, given, switches=switches)
        seconds = self.own_s + self.cost_s * sum(given.values()) + (20.0 if switches else 0.0)
        self.now_s += seconds
        self.budgets.settle(end, lambda: {name: (rows, rows * size) for name, rows in given.items()})
        return seconds


@pytest.mark.parametrize("cost_s", [1e-6, 1e-5, 1e-4, 1e-3])
def test_a_backlog_alone_has_micro_batches_of_a_second(cost_s: float) -> None:
    model, seconds, rows = Model(0.3, cost_s), list[float](), FIRST_ROWS
    for _ in range(MICRO_BATCHES):
        assert model.budgets.alone("log") <= max(FIRST_ROWS, 2 * rows)
        rows = model.budgets.alone("log")
        seconds.append(model.run({"log": rows}))
    assert 0.9 * WHOLE_S < seconds[-1] < 1.2 * WHOLE_S
    assert model.budgets.own_s == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize("cost_s", [1e-5, 1e-4])
def test_beside_a_flow_with_little_to_read_backlogs_take_half_of_its_time(cost_s: float) -> None:
    model = Model(0.3, cost_s)
    for _ in range(MICRO_BATCHES):
        model.run({"log": model.budgets.alone("log")})
    assert 1.2 * 0.3 < model.run({"log": model.budgets.beside("log")}) < 1.6 * 0.3


def test_two_backlogs_together_take_a_second() -> None:
    model, seconds = Model(0.3, 1e-5), 0.0
    for _ in range(MICRO_BATCHES):
        seconds = model.run({name: model.budgets.alone(name) // 2 for name in ("log", "wheel")})
    assert 0.8 * WHOLE_S < seconds < 1.3 * WHOLE_S


def test_a_machine_that_becomes_busy_still_reads_as_long_as_it_plans() -> None:
    """A micro-batch of 3 s whatever it reads would leave nothing for rows if each had to end within 1 s."""
    model = Model(0.3, 1e-5)
    for _ in range(MICRO_BATCHES):
        model.run({"log": model.budgets.alone("log")})
    model.own_s, model.cost_s, rows = 3.0, 1e-4, 0
    for _ in range(MICRO_BATCHES):
        rows = model.budgets.alone("log")
        model.run({"log": rows})
    assert 0.7 * model.own_s < rows * model.cost_s < 1.5 * model.own_s


def test_micro_batches_that_bring_code_or_little_to_read_do_not_mislead() -> None:
    model = Model(0.3, 1e-5)
    model.run({}, switches=True)
    for _ in range(MICRO_BATCHES):
        model.run({})
    assert model.budgets.own_s == pytest.approx(0.3, rel=0.05)
    assert model.budgets.alone("log") == FIRST_ROWS


def test_results_bound_the_rows_that_make_them() -> None:
    model = Model(0.3, 1e-6)
    for _ in range(MICRO_BATCHES):
        model.run({"log": model.budgets.alone("log")}, size=20_000)
    assert model.budgets.alone("log") == SIZE_MAX // 20_000


def test_a_slow_flow_keeps_the_least_budget_and_another_process_is_not_learnt_from() -> None:
    model = Model(0.3, 1.0)
    for _ in range(MICRO_BATCHES):
        model.run({"log": model.budgets.alone("log")})
    assert model.budgets.alone("log") == ROWS_LEAST
    fresh = Budgets(lambda: 0.0)
    fresh.settle({"!plan": 7}, lambda: {"log": (1, 2 * SIZE_MAX)})
    assert fresh.alone("log") == FIRST_ROWS


def test_a_flow_that_has_left_is_forgotten() -> None:
    model = Model(0.3, 1e-6)
    for _ in range(MICRO_BATCHES):
        model.run({"log": model.budgets.alone("log")})
    known = model.budgets.alone("log")
    model.budgets.forget({"log", "wheel"})
    assert model.budgets.alone("log") == known > FIRST_ROWS
    model.budgets.forget({"wheel"})
    assert model.budgets.alone("log") == FIRST_ROWS
