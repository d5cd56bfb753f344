"""What is on its way: how long acks take, and when one is overdue."""

from __future__ import annotations

import pytest

from geartrain_edge.flights import DEVIATION_S_MIN, PROBES_MAX, Flights


def measured(*seconds: float, timeout_ms_min: int = 1) -> Flights:
    """Acks took so long."""
    flights = Flights(timeout_ms_min, 2_000)
    for seq, took_s in enumerate(seconds, 1):
        flights.sent(seq, 10.0, again=False)
        flights.acked(seq, 10.0 + took_s)
    return flights


def timeout_s(flights: Flights) -> float | None:
    """Of a batch that is sent now."""
    flights.sent(1_000, 20.0, again=True)
    return None if flights.due_s is None else flights.due_s - 20.0


def test_nothing_is_overdue_before_something_was_measured() -> None:
    assert timeout_s(Flights(50, 2_000)) is None
    assert measured(0.1).due_s is None  # and nothing is on its way


def test_the_timeout_follows_what_was_measured() -> None:
    assert timeout_s(measured(0.1)) == pytest.approx(0.1 + 4 * 0.05)
    assert timeout_s(measured(*[0.1] * 40)) == pytest.approx(0.1 + DEVIATION_S_MIN)
    assert timeout_s(measured(*[0.1, 0.2] * 40)) == pytest.approx(0.15 + 4 * 0.05, abs=0.02)


def test_a_fast_link_has_a_floor_and_a_slow_one_is_left_to_the_resend_timer() -> None:
    assert timeout_s(measured(*[0.001] * 40, timeout_ms_min=50)) == pytest.approx(0.05)
    assert timeout_s(measured(*[2.5] * 40)) is None


def test_a_batch_that_was_sent_twice_measures_nothing() -> None:
    flights = measured(*[0.1] * 40)
    before = timeout_s(flights)
    flights.acked(1_000, 29.0)
    flights.sent(1_001, 30.0, again=False)
    flights.sent(1_001, 30.5, again=True)
    flights.acked(1_001, 30.51)
    assert timeout_s(flights) == before


def test_an_ack_of_several_measures_the_one_that_has_waited_for_the_longest() -> None:
    flights = Flights(1, 2_000)
    for seq, at_s in enumerate((10.0, 10.08, 10.09), 1):
        flights.sent(seq, at_s, again=False)
    flights.acked(3, 10.1)
    assert timeout_s(flights) == pytest.approx(0.1 + 4 * 0.05)


def test_few_are_sent_again_between_two_acks_each_after_twice_as_long() -> None:
    flights, waits = measured(*[0.1] * 40), []
    flights.sent(1_000, 20.0, again=False)
    while flights.due_s is not None:
        waits.append(flights.due_s - 20.0)
        flights.probed()
    assert len(waits) == PROBES_MAX
    assert waits == pytest.approx([0.11, 0.22])
    flights.acked(999, 20.5)  # it says that the link is alive
    assert flights.due_s == pytest.approx(20.11)


def test_the_oldest_one_is_overdue_and_none_after_a_new_beginning() -> None:
    flights = measured(*[0.1] * 40)
    flights.sent(100, 20.0, again=False)
    flights.sent(101, 20.05, again=False)
    assert flights.due_s == pytest.approx(20.11)
    flights.acked(100, 20.09)
    assert flights.due_s is not None
    assert flights.due_s > 20.15
    flights.clear()
    assert flights.due_s is None
