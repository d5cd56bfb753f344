"""What a process takes of a device, from totals and from what the system says."""

import os
from pathlib import Path

from geartrain.control.states import Measured, StepKept
from geartrain.ports import StateSize
from geartrain_edge.parent.measuring import Meter, Spent, spent_by


def _measured(meter: Meter) -> Measured | None:
    return meter.measured


def test_rates_are_those_of_the_last_whole_span() -> None:
    meter = Meter(30.0)
    assert meter.is_due(100.0)
    meter.take(Spent(1_000, 5.0, 40.0, 7), 100.0)
    assert _measured(meter) is None
    assert not meter.is_due(129.9)
    assert meter.is_due(131.25)
    meter.take(Spent(2_000, 20.0, 96.25, 9), 131.25)
    assert _measured(meter) == Measured(32.0, 0.48, 1.8, 9)
    meter.take(Spent(2_000, 20.0, 96.25, 9), 163.25)
    assert _measured(meter) == Measured(0.0, 0.0, 0.0, 9)


def test_the_steps_that_keep_most_are_told_of() -> None:
    meter = Meter(30.0)
    meter.take(Spent(0, 0.0, 0.0, 7), 0.0)
    kept = {f"s{number:02}": StateSize(number, 10 * number) for number in range(20)}
    wrong = {"x" * 129: StateSize(1, 10**6), "below": StateSize(-1, 10**6), "above": StateSize(1, 2**63)}
    meter.take(Spent(0, 0.0, 0.0, 7, kept | wrong), 30.0)
    found = _measured(meter)
    assert found is not None
    assert found.kept == tuple(StepKept(f"s{n:02}", n, 10 * n) for n in range(4, 20))


def test_totals_that_go_back_or_are_not_known_are_no_figures() -> None:
    meter = Meter(30.0)
    meter.take(Spent(1_000, 5.0, 0.0, 7), 0.0)
    meter.take(Spent(10, 6.0, 0.0, 7), 30.0)
    assert _measured(meter) is None
    meter.take(None, 60.0)
    meter.take(Spent(20, 7.0, 0.0, 7), 90.0)
    assert _measured(meter) is None, "the span began before it was known"
    meter.take(Spent(50, 8.5, 0.0, 7), 120.0)
    assert _measured(meter) == Measured(1.0, 0.05, 0.0, 7)


def test_the_system_says_what_a_process_has_taken(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text(f"42 (a ) b) S {' '.join(['0'] * 10)} {3 * ticks} {ticks} 0 0")
    (tmp_path / "stat").write_text(f"cpu  1 2 3 {50 * ticks} 5\ncpu0 1 2 3 4 5\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2048 kB\n")
    assert spent_by(42, 17, tmp_path) == Spent(17, 4.0, 50.0, 2 << 20)
    assert spent_by(43, 17, tmp_path) is None


def test_this_system_says_it_of_this_process() -> None:
    spent = spent_by(os.getpid(), 0)
    assert spent is not None
    assert spent.cpu_s > 0
    assert spent.free_bytes > 0
