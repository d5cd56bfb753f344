"""What is on its way: how long acks take, and when one is overdue."""

from __future__ import annotations

import random

import pytest

from geartrain.delivery.rtt import DEVIATIONS_MAX, MARGIN_S_MIN, PROBES_MAX, RoundTrips


def measured(*seconds: float, timeout_ms_min: int = 1) -> RoundTrips:
    """Acks took so long."""
    flights = RoundTrips(timeout_ms_min / 1_000, 2.0)
    for seq, took_s in enumerate(seconds, 1):
        flights.sent(seq, 10.0, again=False)
        flights.acked(seq, 10.0 + took_s)
    return flights


def timeout_s(flights: RoundTrips) -> float | None:
    """Of a batch that is sent now."""
    flights.sent(1_000, 20.0, again=True)
    return None if flights.due_s is None else flights.due_s - 20.0


def test_nothing_is_overdue_before_something_was_measured() -> None:
    assert timeout_s(RoundTrips(50 / 1_000, 2.0)) is None
    assert measured(0.1).due_s is None  # and nothing is on its way


def test_the_timeout_follows_what_was_measured() -> None:
    assert timeout_s(measured(0.1)) == pytest.approx(0.1 + 2 * 0.05)
    assert timeout_s(measured(*[0.1] * 40)) == pytest.approx(0.1 + MARGIN_S_MIN)
    assert timeout_s(measured(*[0.1, 0.2] * 40)) == pytest.approx(0.15 + 2 * 0.05, abs=0.02)


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
    flights = RoundTrips(1 / 1_000, 2.0)
    for seq, at_s in enumerate((10.0, 10.08, 10.09), 1):
        flights.sent(seq, at_s, again=False)
    flights.acked(3, 10.1)
    assert timeout_s(flights) == pytest.approx(0.1 + 2 * 0.05)


def test_few_are_sent_again_between_two_acks_each_after_twice_as_long() -> None:
    flights, waits = measured(*[0.1] * 40), []
    flights.sent(1_000, 20.0, again=False)
    while flights.due_s is not None:
        waits.append(flights.due_s - 20.0)
        flights.probed(flights.due_s)
    assert len(waits) == PROBES_MAX
    assert waits == pytest.approx([0.105, 0.21])


def test_it_stays_doubled_until_another_was_measured() -> None:
    flights = measured(*[0.1] * 40)
    flights.sent(1_000, 20.0, again=False)
    flights.probed(20.105)
    flights.sent(1_000, 20.105, again=True)
    assert not flights.acked(1_000, 20.2)  # which of the two it answers, nobody knows
    assert timeout_s(flights) == pytest.approx(0.21)
    flights.acked(1_000, 20.3)
    flights.sent(1_001, 30.0, again=False)
    flights.acked(1_001, 30.1)
    assert timeout_s(flights) == pytest.approx(0.105)


def test_a_link_that_has_become_slower_is_not_asked_twice_for_ever() -> None:
    flights, probes = measured(*[0.06] * 40), 0
    for seq in range(100, 200):
        at_s = float(seq)
        flights.sent(seq, at_s, again=False)
        while (due_s := flights.due_s) is not None and due_s < at_s + 0.12:
            probes += 1
            flights.probed(due_s)
            flights.sent(seq, due_s, again=True)
        flights.acked(seq, at_s + 0.12)
    assert probes <= 5


def test_a_needless_one_widens_the_margin_for_a_while() -> None:
    flights = measured(*[0.1, 0.12] * 40)
    narrow = timeout_s(flights)
    assert narrow is not None
    flights.acked(1_000, 20.0 + narrow)
    flights.sent(1_001, 30.0, again=False)
    flights.probed(30.0 + narrow)
    flights.sent(1_001, 30.0 + narrow, again=True)
    assert flights.acked(1_001, 30.0 + narrow + 0.01)
    wide = timeout_s(flights)
    assert wide is not None
    assert wide > narrow + 0.015
    flights.acked(1_000, 40.0)
    for seq in range(1_002, 1_202):
        flights.sent(seq, 50.0, again=False)
        flights.acked(seq, 50.1 + 0.02 * (seq % 2))
    assert timeout_s(flights) == pytest.approx(narrow, abs=0.002)


def test_a_needless_one_measures_what_its_first_sending_took() -> None:
    flights = measured(*[0.1] * 40)
    flights.sent(1_000, 20.0, again=False)
    flights.probed(20.105)
    flights.sent(1_000, 20.105, again=True)
    assert flights.acked(1_000, 20.12)
    due_s = timeout_s(flights)
    assert due_s is not None
    assert 0.11 < due_s < 0.15  # neither doubled nor as narrow as before


def test_a_batch_that_was_sent_on_another_connection_measures_nothing() -> None:
    flights = measured(*[0.1] * 40)
    before = timeout_s(flights)
    flights.clear()
    flights.sent(1_000, 30.0, again=True)
    flights.probed(30.1)
    flights.sent(1_000, 30.1, again=True)
    assert flights.acked(1_000, 30.11)
    flights.sent(1_001, 40.0, again=False)
    flights.acked(1_001, 40.1)
    assert timeout_s(flights) == pytest.approx(before, abs=0.002)


@pytest.mark.parametrize("spread", [0.2, 1.0, 5.0])
def test_few_batches_are_sent_twice_however_much_acks_vary(spread: float) -> None:
    chance, flights, needless, at_s = random.Random(1), RoundTrips(0.001, 1_000.0), 0, 0.0
    for seq in range(1, 3_001):
        took_s = 0.05 + chance.expovariate(1 / (0.05 * spread))
        flights.sent(seq, at_s, again=False)
        while (due_s := flights.due_s) is not None and due_s < at_s + took_s:
            needless += 1
            flights.probed(due_s)
            flights.sent(seq, due_s, again=True)
        at_s += took_s
        flights.acked(seq, at_s)
    assert needless <= 3_000 * 0.1
    assert flights._deviations <= DEVIATIONS_MAX


def test_the_oldest_one_is_overdue_and_none_after_a_new_beginning() -> None:
    flights = measured(*[0.1] * 40)
    flights.sent(100, 20.0, again=False)
    flights.sent(101, 20.05, again=False)
    assert flights.due_s == pytest.approx(20.105)
    flights.acked(100, 20.09)
    assert flights.due_s is not None
    assert flights.due_s > 20.15
    flights.clear()
    assert flights.due_s is None
